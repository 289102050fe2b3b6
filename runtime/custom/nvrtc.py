"""CUDA C++ to PTX or cubin through NVRTC. The only module that imports `cuda.bindings.nvrtc`, at first use.

What is needed (the `nvrtc` extra, or a CUDA toolkit): the NVRTC library, the CUDA runtime's headers (cuda_fp16.h,
cuda_bf16.h, cooperative_groups.h) and CCCL (cuda/std, nv/target). Neither a driver nor a GPU is.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from kernel_dsl import forking, options

from ..errors import DeviceError, RunError

INSTALL_HINT = (
    "Install the extra: pip install 'kernel-dsl[nvrtc]' (NVRTC, the CUDA runtime's headers and "
    "CCCL), "
    "or a CUDA toolkit, and set CUDA_HOME if it is not in /usr/local/cuda."
)


class NvrtcUnavailableError(DeviceError):
    """NVRTC or the headers it needs are not installed."""

    code = "nvrtc-missing"


@dataclass(frozen=True)
class Diagnostic:
    """One message of NVRTC.

    `file` is a name from a `#line`, or of a header; `line` is 1-based. `through`: file and line of the instantiations
    that led there, the nearest first.
    """

    file: str
    line: int
    severity: str  # "error", "warning", "catastrophic error"
    message: str
    through: tuple[tuple[str, int], ...] = ()


class CompileError(RunError, RuntimeError):
    """NVRTC refuses the source. `log` is NVRTC's whole log, and `diagnostics` its messages."""

    code = "compile-failed"

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The messages of the compiler, each with the line of the source that it is about."""
        return parse_log(self.log)


@dataclass(frozen=True)
class Toolchain:
    """An NVRTC that works: its version and the folders of its headers."""

    version: tuple[int, int]
    include_dirs: tuple[str, ...]
    architectures: tuple[int, ...]


def unavailable() -> str:
    """The reason why NVRTC can't be used here, or an empty string."""
    try:
        toolchain()
    except NvrtcUnavailableError as error:
        return str(error)
    return ""


@cache
def toolchain() -> Toolchain:
    """The NVRTC of this process. Raises NvrtcUnavailableError, which says what to install."""
    nvrtc = _module()
    _, major, minor = _ok(nvrtc.nvrtcVersion(), "nvrtcVersion")
    _, archs = _ok(nvrtc.nvrtcGetSupportedArchs(), "nvrtcGetSupportedArchs")
    version = (int(major), int(minor))
    return Toolchain(version, _include_dirs(version), tuple(int(a) for a in archs if int(a)))


@cache
def _module() -> Any:
    try:
        nvrtc: Any = import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise NvrtcUnavailableError(
            f"compiling CUDA C++ needs cuda-python, which cannot be imported ({error}). {INSTALL_HINT}"
        ) from None
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:  # cuda-python raises several kinds when the library is missing
        text = str(error).strip().splitlines()
        raise NvrtcUnavailableError(
            f"the NVRTC library was not found ({text[0] if text else type(error).__name__}). {INSTALL_HINT}"
        ) from None
    return nvrtc


def _ok(result: tuple[Any, ...], call: str) -> tuple[Any, ...]:
    if int(result[0]) != 0:
        raise CompileError(f"{call} failed: {getattr(result[0], 'name', result[0])}")
    return result


# --- headers --------------------------------------------------------------------------------------


def _roots() -> Iterator[Path]:
    """Folders that may hold CUDA headers: the wheels', then toolkits'."""
    for entry in sys.path:
        base = Path(entry or ".") / "nvidia"
        yield base / "cu13" / "include"  # wheels of CUDA 13
        yield base / "cuda_runtime" / "include"  # wheels of CUDA 12
        yield base / "cuda_cccl" / "include"
    for toolkit in options.toolkits():
        yield toolkit / "include"
    yield Path("/usr/local/cuda/include")
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield Path(nvcc).resolve().parent.parent / "include"
    yield from sorted(Path("/usr/local").glob("cuda-*/include"), reverse=True)


def _include_dirs(version: tuple[int, int]) -> tuple[str, ...]:
    """The runtime's headers and CCCL, of NVRTC's own version if there are several."""
    roots = [root for root in dict.fromkeys(_roots()) if root.is_dir()]
    runtimes = [root for root in roots if (root / "cuda_fp16.h").is_file()]
    cccl = [d for root in roots for d in (root / "cccl", root) if (d / "cuda" / "std").is_dir()]
    missing = [
        what
        for what, found in (
            ("the CUDA runtime's headers (cuda_fp16.h)", runtimes),
            ("CCCL (cuda/std)", cccl),
        )
        if not found
    ]
    if missing:
        raise NvrtcUnavailableError(f"NVRTC is here, but not {' and '.join(missing)}. {INSTALL_HINT}")
    # Headers newer than the compiler may use builtins it lacks: the same version comes first, then
    # the order found.
    # Among those, one with the compiler's own headers beside it: mma.h includes them.
    runtime = min(runtimes, key=lambda root: (_header_version(root) != version, not (root / "crt" / "mma.h").is_file()))
    own = [d for d in cccl if d in (runtime, runtime / "cccl")]
    return str(runtime), str((own or cccl)[0])


def _header_version(root: Path) -> tuple[int, int] | None:
    """CUDA_VERSION of a folder's cuda.h (or cuda_runtime_api.h), such as (13, 0)."""
    for name, macro in (("cuda.h", "CUDA_VERSION"), ("cuda_runtime_api.h", "CUDART_VERSION")):
        path = root / name
        if path.is_file():
            found = re.search(rf"#define\s+{macro}\s+(\d+)", path.read_text(errors="replace"))
            if found:
                number = int(found.group(1))
                return number // 1000, number % 1000 // 10
    return None


# --- compiling ------------------------------------------------------------------------------------

# Follows our includes at the beginning of a source: NVRTC 12.8 and newer keep those compiled, in this process' memory,
# for the next source that begins alike (NVRTC, 'Precompiled Headers'). cooperative_groups.h alone takes seconds. No
# code of the user may come before it, because NVRTC does not notice that a header given by name has changed.
HEADERS_END = "#pragma nv_hdrstop"
_PRECOMPILES = (12, 8)

# NVRTC is thread-safe: the lock keeps two threads from compiling the same text, and a fork from copying half a compile.
_lock = forking.lock()
forking.fork_waits_for(_lock)
_compiled: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
_MAX_COMPILED = 256


def compile_source(
    source: str,
    *,
    file: str,
    target: str,
    kind: str,
    headers: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> bytes:
    """Compile CUDA C++ for `target` ("sm_90a") to PTX text (`kind="ptx"`) or machine code (`kind="cubin"`).

    `headers` are includable by name without being files. The same text with the same options is compiled once a
    process. Raises CompileError with NVRTC's log, NvrtcUnavailableError.
    """
    tools = toolchain()
    included = dict(headers or {})
    key = (source, file, target, kind, tuple(sorted(included.items())), tuple(options))
    with _lock:
        if key in _compiled:
            _compiled.move_to_end(key)
        else:
            arch = _architecture(target, kind, tools)
            flags = [
                f"--gpu-architecture={arch}",
                "--std=c++17",
                "--device-as-default-execution-space",
                "--device-int128",
                *(f"--include-path={d}" for d in tools.include_dirs),
                *options,
            ]
            if HEADERS_END in source and tools.version >= _PRECOMPILES:
                # Suppress two messages: 20283 comes at every #line, 629 for other options.
                flags += ["--pch", "--pch-messages=false", "--diag-suppress=629,20283"]
            _compiled[key] = _compile(source, file, included, flags, kind)
            if len(_compiled) > _MAX_COMPILED:
                _compiled.popitem(last=False)
        return _compiled[key]


def _architecture(target: str, kind: str, tools: Toolchain) -> str:
    found = re.fullmatch(r"sm_(\d+)[af]?", target)
    if found is None:
        raise CompileError(f"{target!r} is not a GPU architecture such as 'sm_90a'")
    if int(found.group(1)) not in tools.architectures:
        known = ", ".join(f"sm_{a}" for a in tools.architectures)
        raise CompileError(
            f"NVRTC {tools.version[0]}.{tools.version[1]} cannot compile for {target}; it knows "
            f"{known}. "
            "Install the NVRTC of another CUDA version."
        )
    return target if kind == "cubin" else target.replace("sm_", "compute_")


def _compile(source: str, file: str, headers: dict[str, str], flags: list[str], kind: str) -> bytes:
    nvrtc = _module()
    names, texts = list(headers), list(headers.values())
    _, program = _ok(
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            file.encode(),
            len(names),
            [t.encode() for t in texts],
            [n.encode() for n in names],
        ),
        "nvrtcCreateProgram",
    )
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = _log(nvrtc, program)
        if int(status) != 0:
            raise CompileError(f"{file} does not compile ({status.name}):\n{log.strip()}", log)
        if kind == "cubin":
            return _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        text = _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0").decode()
        return drop_unused_globals(text).encode()
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(size: Any, get: Any, program: Any) -> bytes:
    _, count = _ok(size(program), "the size of NVRTC's output")
    buffer = bytearray(count)
    _ok(get(program, buffer), "reading NVRTC's output")
    return bytes(buffer)


def _log(nvrtc: Any, program: Any) -> str:
    return _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode(errors="replace")


_GLOBAL = re.compile(
    r"^(?:\.(?:visible|weak|extern|common)\s+)*\.(?:global|const)\b[^;{]*?([\w$]+)(?:\[[^\]]*\])*\s*(?:=.*)?;$"
)


def drop_unused_globals(ptx: str) -> str:
    """The PTX without unused module variables.

    Device code is the default here, so every static member of cuda::std and of cooperative_groups becomes a variable: a
    thousand lines that need not be parsed.
    """
    uses = Counter(re.findall(r"[A-Za-z_$%][\w$]*", ptx))
    kept: list[str] = []
    for line in ptx.splitlines():
        found = _GLOBAL.match(line)
        if found is None or uses[found.group(1)] > 1:
            kept.append(line)
    return "\n".join(kept) + "\n"


_DIAGNOSTIC = re.compile(r"^(.*?)\((\d+)\): ((?:catastrophic |internal )?error|warning)(?: #[\w-]+)?: (.*)$")


_INSTANTIATION = re.compile(r"^\s+instantiation of .* at line (\d+)(?: of (.*))?$")


def parse_log(log: str) -> list[Diagnostic]:
    """NVRTC's log as values, in order."""
    out: list[Diagnostic] = []
    for line in log.splitlines():
        found = _DIAGNOSTIC.match(line)
        if found:
            out.append(Diagnostic(found.group(1), int(found.group(2)), found.group(3), found.group(4)))
            continue
        found = _INSTANTIATION.match(line)
        if found and out:
            last = out[-1]
            # the log names a file only when it changes
            file = found.group(2) or (last.through[-1][0] if last.through else last.file)
            out[-1] = replace(last, through=(*last.through, (file, int(found.group(1)))))
    return out
