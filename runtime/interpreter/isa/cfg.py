"""A function's control flow: segments of straight-line code, in an order that makes lanes meet again.

The scheduler runs the group of lanes whose segment comes first. Every loop is contiguous, and every join comes after all
segments that lead to it. So diverged lanes wait at their post-dominator without a stack, and lanes of different warps and
blocks at the same instruction run as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..ptx.module import BraceGroup, Function, Instruction, Label, PtxError, Reg, Sym
from .instructions import known_form


@dataclass(slots=True)
class Segment:
    """One segment of a function's code.

    `sync`: an instruction that may have to wait, alone in its segment. `targets`: the segments that `end` may go to.
    `kind`: "fall", "branch" (guarded by `guard`), "table", "call", "return" or "exit".
    """

    sync: Instruction | None = None
    code: list[Instruction] = field(default_factory=list[Instruction])
    kind: str = "fall"
    end: Instruction | None = None
    guard: tuple[Reg, bool] | None = None
    targets: list[int] = field(default_factory=list[int])


def may_wait(ins: Instruction) -> bool:
    """Return whether `ins` needs other lanes, warps or engines, or lets others run."""
    form = known_form(ins)
    return form is not None and form.waits


def synchronises(ins: Instruction) -> bool:
    """Return whether `ins` is a synchronisation event: an mbarrier operation or a strong access."""
    form = known_form(ins)
    if form is None or ins.opcode[0] not in ("mbarrier", "atom", "red", "ld", "st"):
        return False
    return ins.opcode[0] in ("mbarrier", "atom", "red") or form.words.get("order") not in ("", "weak", None)


class _Builder:
    def __init__(self, fn: Function, fine: bool) -> None:
        self.fn = fn
        self.fine = fine
        self.segments: list[Segment] = []
        self.labels: dict[str, int] = {}
        self.jumps: list[tuple[int, int, str]] = []

    def new(self) -> int:
        self.segments.append(Segment())
        return len(self.segments) - 1

    def run(self) -> list[Segment]:
        at = self.new()
        for item in self.fn.body:
            if isinstance(item, Label):
                following = self.new()
                self.segments[at].targets.append(following)
                self.labels[item.name] = at = following
            else:
                at = self._instruction(at, item)
        self.segments[at].kind = "exit" if self.fn.entry else "return"
        for segment, slot, label in self.jumps:
            self.segments[segment].targets[slot] = self.labels[label]
        return self.segments

    def _instruction(self, at: int, ins: Instruction) -> int:
        here = self.segments[at]
        head = ins.opcode[0]
        if head == "bra":
            return self._branch(at, ins)
        if head in ("brx", "call", "ret", "exit", "trap") or may_wait(ins) or (self.fine and synchronises(ins)):
            if ins.guard is not None:
                # A guarded instruction that ends or waits becomes a branch around it.
                inner, after = self.new(), self.new()
                here.kind, here.guard, here.end = "branch", ins.guard, ins
                here.targets = [inner, after]
                self._unguarded(inner, ins, after)
                return after
            following = self.new()
            if head in ("brx", "call", "ret", "exit", "trap"):
                self._unguarded(at, ins, following)
            else:
                wait = self.new()
                here.targets = [wait]
                self._unguarded(wait, ins, following)
            return following
        here.code.append(ins)
        return at

    def _branch(self, at: int, ins: Instruction) -> int:
        here = self.segments[at]
        following = self.new()
        target = ins.operands[0]
        assert isinstance(target, Sym)
        here.end = ins
        if ins.guard is None:
            here.targets = [-1]
        else:
            here.kind, here.guard, here.targets = "branch", ins.guard, [-1, following]
        self.jumps.append((at, 0, target.name))
        return following

    def _unguarded(self, at: int, ins: Instruction, following: int) -> None:
        here = self.segments[at]
        head = ins.opcode[0]
        if head == "brx":
            table = ins.operands[1]
            assert isinstance(table, Sym)
            names = self.fn.branch_targets[table.name]
            here.kind, here.end, here.targets = "table", ins, [-1] * len(names)
            self.jumps += [(at, i, name) for i, name in enumerate(names)]
        elif head == "call":
            here.kind, here.end, here.targets = "call", ins, [following]
        elif head in ("ret", "exit", "trap"):
            kind = "exit" if head == "exit" or (head == "ret" and self.fn.entry) else head
            here.kind, here.end = ("return" if kind == "ret" else kind), ins
        else:
            here.sync, here.targets = ins, [following]


def build_segments(fn: Function, fine: bool = False) -> list[Segment]:
    """Return the segments of `fn`, the entry first, in scheduling order, without unreachable ones.

    `fine`: instructions that synchronise without a wait also get separate segments.
    """
    raw = _Builder(fn, fine).run()
    _check_control(fn)
    successors = [s.targets for s in raw]
    order = _loop_order(successors)
    place = {old: new for new, old in enumerate(order)}
    result: list[Segment] = []
    for old in order:
        segment = raw[old]
        segment.targets = [place[t] for t in segment.targets]
        result.append(segment)
    return result


# Instructions of control flow (PTX ISA 9.7.12): the words behind the name, of which .uni may be left out, and the operands.
_CONTROL = {
    "bra": (("uni",), 1), "brx": (("idx", "uni"), 2), "call": (("uni",), None), "ret": (("uni",), 0), "exit": ((), 0),
    "trap": ((), 0),
}  # fmt: skip


def _check_control(fn: Function) -> None:
    """Check the forms of instructions that have no row. Raises PtxError."""
    for ins in fn.body:
        if not isinstance(ins, Instruction) or ins.opcode[0] not in _CONTROL:
            continue
        words, count = _CONTROL[ins.opcode[0]]
        if ins.opcode[1:] not in (words, tuple(w for w in words if w != "uni")):
            raise PtxError(f"'{ins.name}' is no form of {ins.opcode[0]}", ins.line, ins.column)
        if count is not None and len(ins.operands) != count:
            takes = ("no operands", "one label", "an index and a .branchtargets label")[count]
            raise PtxError(f"{ins.opcode[0]} takes {takes}", ins.line, ins.column)
        if count is None:
            _check_callee(fn, ins)


def _check_callee(fn: Function, ins: Instruction) -> None:
    """Check the target of a call: a function, or a register with the label of a prototype or of targets."""
    rest = [operand for operand in ins.operands if not isinstance(operand, BraceGroup)]
    direct = bool(rest) and isinstance(rest[0], Sym)
    if not direct and not (rest and isinstance(rest[0], Reg)):
        raise PtxError("call takes a function, or a register and a prototype", ins.line, ins.column)
    label = rest[1] if len(rest) == 2 else None
    known = isinstance(label, Sym) and label.name in fn.prototypes
    if len(rest) > 2 or (direct and label is not None) or not (direct or known):
        what = "a function has no prototype here" if direct else "a call by address needs the label of a prototype"
        raise PtxError(f"call: {what}", ins.line, ins.column)


_NESTED = 48  # loops in loops, which no compiler makes


def _loop_order(successors: list[list[int]]) -> list[int]:
    reachable = _reachable(successors)
    return _order(reachable, {n: list(successors[n]) for n in reachable}, 0)


def _reachable(successors: list[list[int]]) -> list[int]:
    seen, stack, out = {0}, [0], [0]
    while stack:
        for t in successors[stack.pop()]:
            if t not in seen:
                seen.add(t)
                stack.append(t)
                out.append(t)
    return sorted(out)


def _order(nodes: list[int], edges: dict[int, list[int]], entry: int, depth: int = 0) -> list[int]:
    """Return the strongly connected components in topological order, with each loop ordered in the same way.

    Loops that are nested deeper than _NESTED stay in the order of the text.
    """
    order: list[int] = []
    for component in reversed(components(nodes, edges, entry)):
        if len(component) == 1:
            order.append(component[0])
            continue
        if depth == _NESTED:
            order.extend(sorted(component))
            continue
        inside = set(component)
        header = entry if entry in inside else _header(inside, nodes, edges)
        inner = {n: [t for t in edges[n] if t in inside and t != header] for n in component}
        order.extend(_order(sorted(component), inner, header, depth + 1))
    return order


def _header(inside: set[int], nodes: list[int], edges: dict[int, list[int]]) -> int:
    entered = {t for n in nodes if n not in inside for t in edges[n] if t in inside}
    return min(entered) if entered else min(inside)


def components(nodes: Sequence[int], edges: dict[int, list[int]], entry: int) -> list[list[int]]:
    """Return the strongly connected components that are reached from `entry`, and then from `nodes`.

    They are in reverse topological order, so that without `nodes` the component of `entry` is the last one. This is
    Tarjan's algorithm (1972) without recursion.
    """
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    out: list[list[int]] = []
    for root in [entry, *nodes]:
        if root in number:
            continue
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                number[node] = low[node] = len(number)
                stack.append(node)
                on_stack.add(node)
            descended = False
            targets = edges[node]
            for i in range(at, len(targets)):
                t = targets[i]
                if t not in number:
                    work += [(node, i + 1), (t, 0)]
                    descended = True
                    break
                if t in on_stack:
                    low[node] = min(low[node], number[t])
            if descended:
                continue
            if low[node] == number[node]:
                component: list[int] = []
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    component.append(member)
                    if member == node:
                        break
                out.append(component)
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    return out
