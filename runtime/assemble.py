"""PTX to machine code: by ptxas when there is one, else by the driver's own compiler.

nvJitLink is not used: it compiles as if for linking and ignores `setmaxnreg`, without a warning. This halves the
speed of a warp-specialised kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_dsl.compiled import Assembled, CompiledKernel, Remark, Resources
from kernel_dsl.options import assembler_environment

from .build import device_library, elf, tools
from .build.driver_assemble import assemble_with_driver
from .build.occupancy import blocks_per_multiprocessor, target_limits
from .build.problems import AssemblerError, ToolFailed, ToolMissing
from .build.ptxas_log import Message, messages, usage, user_line
from .devices import driver
from .devices.devices import cuda_device

_ERRORS = ("error", "fatal")
_LEAST_SECONDS = 30.0
_SECONDS_A_BYTE = 1e-4


@dataclass(frozen=True)
class AssemblerOptions:
    """How to assemble. Part of the cache key.

    `ptxas`: the program, or the folder it lies in; None looks for it. `optimization`: 0 to 3; anything below 3 leaves
    wgmma kernels with copies around each instruction. `line_info`: the user's lines in the cubin, for profilers and
    `sass`. `seconds`: the time limit of ptxas; None computes one from the size of the PTX, some hundred times the time
    that it needs.
    """

    ptxas: str | None = None
    optimization: int = 3
    line_info: bool = True
    seconds: float | None = None


DEFAULT_OPTIONS = AssemblerOptions()


@dataclass(frozen=True)
class Library:
    """Of a device library: the functions that kernels may call, and how they become PTX."""

    functions: Sequence[str]
    definitions: device_library.Definitions


def find_ptxas(options: AssemblerOptions = DEFAULT_OPTIONS) -> Path | None:
    """The ptxas that `assemble` would run, or None.

    Raises ToolMissing if the options name one that is not there.
    """
    path = tools.find("ptxas", options.ptxas)
    if path is None and options.ptxas:
        raise ToolMissing(
            f"No ptxas at {options.ptxas!r}, where the options say it is. Correct the path, or "
            "leave it out to have the nvidia-cuda-nvcc wheel, the CUDA toolkit and PATH searched."
        )
    return path


def assembler_identity(options: AssemblerOptions = DEFAULT_OPTIONS, *, library_for: str = "") -> str:
    """A text that changes with the assembler, for cache keys; 'driver' without ptxas.

    `library_for`: the target of a kernel that calls the device library; the text changes with that, too.
    """
    path = find_ptxas(options)
    assembler = tools.identity(path) if path is not None else "driver"
    return f"{assembler}, {device_library.identity(library_for)}" if library_for else assembler


def assemble(
    kernel: CompiledKernel, *, options: AssemblerOptions = DEFAULT_OPTIONS, library: Library | None = None
) -> Assembled:
    """The kernel with its machine code, resources and remarks.

    Runs ptxas (10 ms for a small kernel) or, without ptxas and with a GPU, the driver's compiler. `library`: how a device
    library becomes PTX, for a kernel that calls its functions.

    Raises:
        AssemblerError: the PTX was refused; it names the user's line.
        ToolMissing: there is neither ptxas nor a GPU, or no device library for a kernel that calls it.
        ToolFailed: ptxas did not end, was ended by a signal, or is another program.
    """
    whole = kernel
    if library is not None and device_library.calls(kernel.ptx):
        whole = replace(kernel, ptx=device_library.with_definitions(kernel, library.functions, library.definitions))
    ptxas = find_ptxas(options)
    if ptxas is not None:
        cubin, log = _run_ptxas(ptxas, whole, options)
    else:
        cubin, log = _run_driver(whole, options)
    remarks = tuple(Remark(m.text, m.kind, user_line(kernel, m)) for m in messages(log))
    return Assembled(kernel, cubin, resources(kernel, log), remarks)


def resources(kernel: CompiledKernel, log: str) -> Resources:
    """The resources of the kernel's entry in the assembler's log, and how many of its blocks fit a multiprocessor."""
    used = usage(log, kernel.entry)
    shared = used.shared + kernel.launch.dynamic_smem
    x, y, z = kernel.launch.block
    return Resources(
        registers=used.registers,
        spills=used.spill_stores + used.spill_loads,
        local_bytes=used.stack,
        shared_bytes=shared,
        barriers=used.barriers,
        blocks_per_multiprocessor=blocks_per_multiprocessor(
            target_limits(kernel.target),
            threads=x * y * z,
            registers=used.registers,
            shared_bytes=shared,
        ),
    )


def _arguments(ptxas: Path, kernel: CompiledKernel, options: AssemblerOptions) -> list[str]:
    words = [str(ptxas), f"-arch={kernel.target}", "-v", f"-O{options.optimization}"]
    if options.line_info:
        words.append("-lineinfo")
    # A directive in the text overrides the option, with a remark, so the option is only for texts without one.
    if kernel.max_registers is not None and ".maxnreg" not in kernel.ptx:
        words.append(f"-maxrregcount={kernel.max_registers}")
    return words


def _run_ptxas(ptxas: Path, kernel: CompiledKernel, options: AssemblerOptions) -> tuple[bytes, str]:
    """The cubin and the log. Text and code go through pipes: no file is written."""
    words = [*_arguments(ptxas, kernel, options), "/dev/stdin", "-o", "/dev/stdout"]
    text, environment = kernel.ptx.encode(), assembler_environment()
    seconds = _LEAST_SECONDS + len(text) * _SECONDS_A_BYTE if options.seconds is None else options.seconds
    try:
        done = tools.run(words, seconds=seconds, given=text, environment=environment)
        if done.status != 0:
            raise _refusal(kernel, done.words, f"{ptxas} (status {done.status})")
        wrong = elf.problem(done.output)
        if wrong:
            said = "".join(f"\n  it said: {line}" for line in done.words.strip().splitlines()[:3])
            raise ToolFailed(f"{ptxas} is no ptxas that works: what it made is no machine code, as {wrong}{said}")
    except ToolFailed as error:
        hint = "Name a working one in KERNEL_DSL_PTXAS, or install it: pip install nvidia-cuda-nvcc"
        raise ToolFailed(f"Kernel {kernel.name!r} was not assembled: {error.fields['message']}. {hint}") from None
    return done.output, done.words


def _run_driver(kernel: CompiledKernel, options: AssemblerOptions) -> tuple[bytes, str]:
    if not driver.available():
        raise _nothing_assembles(kernel)
    cubin, log, taken = assemble_with_driver(
        kernel,
        cuda_device().context,
        optimization=options.optimization,
        line_info=options.line_info,
    )
    if not taken:
        raise _refusal(kernel, log, "the CUDA driver's compiler")
    return cubin, log


def _nothing_assembles(kernel: CompiledKernel) -> ToolMissing:
    return ToolMissing(
        f"Kernel {kernel.name!r} cannot be assembled: there is no ptxas in the nvidia-cuda-nvcc "
        "wheel, in a CUDA toolkit or on PATH, and no GPU whose driver could compile it. Install "
        "one: pip install nvidia-cuda-nvcc. Tracing, PTX and the interpreter need none."
    )


def _refusal(kernel: CompiledKernel, log: str, who: str) -> AssemblerError:
    errors = [m for m in messages(log) if m.kind in _ERRORS and "aborted due to errors" not in m.text]
    first = errors[0] if errors else Message("fatal", log.strip() or "no message", None)
    line = user_line(kernel, first)
    text = [f"the assembler refused kernel {kernel.name!r} for {kernel.target}: {first.text}"]
    if first.ptx_line is not None:
        text.append(f"  PTX line {first.ptx_line}: {_ptx_line(kernel.ptx, first.ptx_line)}")
    text += [f"  also: {m.text}" for m in errors[1:4]]
    text.append(f"  assembler: {who}")
    return AssemblerError("\n".join(text), line=line, log=log)


def _ptx_line(ptx: str, number: int) -> str:
    lines = ptx.splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def ptxas_version(options: AssemblerOptions = DEFAULT_OPTIONS) -> str | None:
    """The release of the ptxas that would run, such as '13.0.88'; None without one."""
    path = find_ptxas(options)
    return None if path is None else tools.version(path)
