"""The code of every kernel: the IR, the LLVM text, the PTX, and what the runtime is told, as digests.

Nothing in the texts depends on the checkout's folder, on where in its file a kernel stands, on the process, or on what
was compiled before.
"""

from __future__ import annotations

import hashlib
import re
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_dsl.ops.debug import DebugCheck

from .entries import Gate
from .kernels import kernels

PARTS = ("IR", "LLVM", "PTX", "launch")
_LLVM_NODE = re.compile(r"!(\d+|llvm\.[\w.]+) = ")
_LLVM_PLACE = re.compile(r",? !dbg !\d+")
# .loc and what comes with it, and a counter of all calls that the process has compiled
_PTX_PLACE = re.compile(r"\s*(\.(file|loc)\b|\.section\s+\.debug|\$L__(tmp|func_begin|func_end)\d+:)|\s*$")
_PTX_COUNTER = re.compile(r" // callseq \d+.*")


def texts(name: str, target: str, parts: int = len(PARTS)) -> dict[str, str]:
    """The first texts of a kernel for a target, by part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # large values and conversions: their own tests look at them
        stages = kernels()[name].lower(target)
        for op in stages.ir.walk():
            if isinstance(op, DebugCheck):  # it tells the GPU where it is
                op.file, op.line = Path(op.file).name, 0
        found: dict[str, str] = {PARTS[0]: stages.key_text}
        if parts == 1:
            return found
        llvm = [_LLVM_PLACE.sub("", line) for line in stages.llvm.split("\n") if not _LLVM_NODE.match(line)]
        found[PARTS[1]] = "\n".join(llvm)
        if parts == 2:
            return found
        ptx = [_PTX_COUNTER.sub("", line) for line in stages.ptx.split("\n") if not _PTX_PLACE.match(line)]
        return found | dict(zip(PARTS[2:], ("\n".join(ptx), _launch(stages.kernel)), strict=True))


def _launch(kernel: Any) -> str:
    """A `CompiledKernel` but for its PTX and its places."""
    smem = tuple(replace(region, line=None) for region in kernel.names.smem)
    uses = {spans for spans, _ in kernel.names.smem_uses}  # without the lines of the PTX
    names = replace(kernel.names, smem=smem, smem_uses=tuple(sorted(uses)))
    plain = replace(kernel, ptx="", lines=(), source=None, names=names)
    return "\n".join(f"{field} = {value!r}" for field, value in vars(plain).items() if field != "conditions" or value)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def entries() -> dict[str, str]:
    """Digests in the order of `PARTS`, by kernel and target."""
    return {
        f"{name} {target}": _digests(name, target) for name, kernel in kernels().items() for target in kernel.targets
    }


def _digests(name: str, target: str, parts: int = len(PARTS)) -> str:
    return " ".join(digest(text) for text in texts(name, target, parts).values())


def sample(old: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The IR of each kernel for one target, and of an eighth for all; the LLVM text of an eighth for one, and PTX of a sixteenth.

    LLVM gives the same PTX for the same text and target, so that the others change with their text, or all of them do.
    """
    kept, new = dict(old), {}
    for name, kernel in kernels().items():
        part, number = divmod(zlib.crc32(name.encode()), 1 << 28)
        one = kernel.targets[number % len(kernel.targets)]
        for target in kernel.targets:
            key, parts = f"{name} {target}", (len(PARTS), 2, *[1] * 14)[part] if target == one else int(part < 2)
            if parts:
                new[key] = _digests(name, target, parts)
            if key in kept and parts:
                kept[key] = " ".join(kept[key].split()[:parts])
            elif key in kept:
                del kept[key]
    return kept, new


def difference(old: str, new: str) -> str:
    """Which parts are not the same."""
    pairs = zip(old.split(), new.split(), strict=True)
    other = [part for part, (a, b) in zip(PARTS, pairs, strict=False) if a != b]
    return f"another {', '.join(other)}" if other else ""


GATE = Gate(
    "code",
    f"Digests of {', '.join(PARTS)} of each kernel and target. `python -m tests.gate NAME` shows what they are of;\n"
    "`python -m tests.gate --renew code` writes this file, and a commit that does says why.",
    entries,
    difference,
    width=44,
    sample=sample,
)
