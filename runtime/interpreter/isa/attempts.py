"""Loads of a first guess: ordinary loads whose value only a compare-and-swap uses.

    old = *p;  do { assumed = old; old = atomicCAS(p, assumed, f(assumed)); } while (assumed != old);

is the pattern for atomic operations that a GPU lacks, in CUDA's headers and guide. The swap fails unless the loaded value is
still in memory, so the load does not race with other atomics at that place (with ordinary stores it does).
"""

from __future__ import annotations

from ..ptx.module import Function, Instruction, Label, Sym
from .liveness import bits_of, used

_PURE = frozenset(
    "mov add sub mul mad fma neg abs min max and or xor not shl shr shf lop3 prmt bfi bfe cvt selp div rem sad".split()  # noqa: SIM905
)
_MOST = 2_000_000  # the most instructions that the search visits for all loads of a function


def first_guesses(fn: Function) -> set[tuple[int, int]]:
    """Return lines and columns of loads in `fn` whose value reaches only compare-and-swaps.

    They compare it, and compute the new value from it.
    """
    swaps = [i for i in fn.body if isinstance(i, Instruction) and _is_swap(i)]
    sizes = {i.opcode[-1][1:] for i in swaps}
    loads = [
        (at, i)
        for at, i in enumerate(fn.body)
        if isinstance(i, Instruction)
        and i.opcode[0] == "ld"
        and i.opcode[-1][1:] in sizes
        and not {"v2", "v4", "v8", "param", "local", "const", "nc"} & set(i.opcode)
    ]
    if not swaps or len(loads) * len(fn.body) > _MOST:
        return set()
    flow = _Flow(fn, swaps)
    return {(i.line, i.column) for at, i in loads if flow.only_tried(at, i)}


def _is_swap(ins: Instruction) -> bool:
    return ins.opcode[0] == "atom" and "cas" in ins.opcode


class _Flow:
    """The registers that each instruction of a function reads and writes, and the next instructions."""

    def __init__(self, fn: Function, swaps: list[Instruction]) -> None:
        self.body = fn.body
        self.labels = {item.name: at for at, item in enumerate(fn.body) if isinstance(item, Label)}
        self.uses = [used(i) if isinstance(i, Instruction) else (0, 0) for i in fn.body]
        self.swapped = 0
        for ins in swaps:
            self.swapped |= used(ins)[1]

    def only_tried(self, at: int, load: Instruction) -> bool:
        """Return whether a swap compares the value of `load`, and only swaps and their tests of success depend on it."""
        held = {at + 1: self.uses[at][1]}
        waiting, tried = [at + 1], False
        while waiting:
            here = waiting.pop()
            if here >= len(self.body):
                continue
            taint, ins = held[here], self.body[here]
            after = taint
            if isinstance(ins, Instruction):
                verdict = self._step(here, ins, taint)
                if verdict is None:
                    return False
                after, swap = verdict
                tried |= swap
            if not after:
                continue
            for following in self._next(here, ins):
                known = held.get(following, 0)
                if known | after != known:
                    held[following] = known | after
                    waiting.append(following)
        return tried

    def _step(self, at: int, ins: Instruction, taint: int) -> tuple[int, bool] | None:
        """Return the registers that depend on the load after an instruction.

        Also return whether it is a swap of them; None if another instruction uses them.
        """
        reads, writes = self.uses[at]
        name = ins.opcode[0]
        if name in ("call", "brx"):
            return None
        kept = taint if ins.guard else taint & ~writes
        if not reads & taint:
            return kept, False
        if ins.guard and taint >> ins.guard[0].index & 1:
            return None
        if _is_swap(ins):
            place, compared = bits_of(ins.operands[1]), bits_of(ins.operands[2])
            return None if place & taint else (kept, bool(compared & taint))
        if name == "setp":
            return (kept, False) if reads & self.swapped & ~taint else None
        return (taint | writes, False) if name in _PURE else None

    def _next(self, at: int, ins: Instruction | Label) -> list[int]:
        if not isinstance(ins, Instruction) or ins.opcode[0] not in ("bra", "ret", "exit", "trap"):
            return [at + 1]
        found = [at + 1] if ins.guard else []
        if ins.opcode[0] == "bra":
            target = ins.operands[0]
            assert isinstance(target, Sym)
            found.append(self.labels[target.name])
        return found
