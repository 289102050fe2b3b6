"""Stacks of calls. A batch makes each stack only once, so equal stacks are the same object at any depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checks.kinds import HazardKind
from ..checks.parted_shadow import memory_left

if TYPE_CHECKING:
    from ..ptx.module import Instruction
    from .group import Group

# The most bytes of a lane's stack. The driver allocates a stack for each lane that the whole GPU can hold: with 80 GB it can
# give each some 290,000 bytes. (The architecture's limit is 512 KiB.)
STACK_BYTES = 256 << 10
_RETURN = 8  # bytes that a call needs besides its local variables: the address to which it returns
_ALIGN = 16
_LOOK = 512  # calls between two checks of the machine's memory
_ROOM = 1 << 30  # free bytes that the machine must have at a check


class Stack:
    """Nested calls: the last one, which returns to segment `pc` of function `name`, and the stack before it, `outer`.

    `far` is a stack further out. With it, a walk outwards over n calls takes about log(n) steps. The empty stack is its
    own `outer` and `far`.
    """

    __slots__ = ("bytes", "depth", "far", "inner", "name", "outer", "pc")

    def __init__(self, outer: Stack | None = None, name: str = "", pc: int = 0, size: int = 0) -> None:
        self.outer: Stack = outer or self
        self.name: str = name
        self.pc: int = pc
        self.inner: dict[tuple[str, int, int], Stack] = {}
        self.depth: int = outer.depth + 1 if outer else 0
        self.bytes: int = size + (outer.bytes if outer else 0)
        self.far: Stack = self.outer
        if outer and outer.depth - outer.far.depth == outer.far.depth - outer.far.far.depth:
            self.far = outer.far.far

    def at(self, depth: int) -> Stack:
        """Return the stack of its outermost `depth` calls."""
        found = self
        while found.depth > depth:
            found = found.far if found.far.depth >= depth else found.outer
        return found


def called(c: Group, pc: int, size: int, ins: Instruction) -> Stack:
    """Return the stack of `c` after a call from segment `pc` to a function whose local variables take `size` bytes."""
    key = c.frame.code.name, pc, size
    found = c.stack.inner.get(key)
    if found is None:
        found = Stack(c.stack, c.frame.code.name, pc, -(-(size + _RETURN) // _ALIGN) * _ALIGN)
        c.stack.inner[key] = found
        if found.bytes > STACK_BYTES:
            _overflow(c, found, ins)
        if found.depth % _LOOK == 0 and (left := memory_left()) is not None and left < _ROOM:
            raise MemoryError(f"{found.depth} calls are nested in each other, and this machine has {left} bytes left")
    return found


def _overflow(c: Group, stack: Stack, ins: Instruction) -> None:
    reporter = c.batch.run.reporter
    _, _, who = reporter.group(c, c.active)
    what = f"{stack.depth} nested calls need more than {STACK_BYTES} bytes of stack, which GPUs can't give each lane"
    reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,), "see that the recursion ends", ends=True)
    raise AssertionError("a stack that overflows is always an error")


def before(stack: Stack, pc: int, other: Stack, other_pc: int) -> bool:
    """Return whether a place comes before another: the segments of the calls, and then `pc`, in lexical order."""
    if stack is other:
        return pc < other_pc
    depth = min(stack.depth, other.depth)
    a, b = stack.at(depth), other.at(depth)
    if a is b:
        here = pc if stack is a else stack.at(depth + 1).pc
        there = other_pc if other is b else other.at(depth + 1).pc
        return (here, stack.depth) < (there, other.depth)
    while a.outer is not b.outer:
        a, b = (a.far, b.far) if a.far is not b.far else (a.outer, b.outer)
    return a.pc < b.pc
