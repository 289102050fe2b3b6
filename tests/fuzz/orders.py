"""Random nests of loops and branches in which warpgroups, or blocks of a cluster, take turns with the same memory.

One of them acts at a time, and tells the next one by an arrival, a copy, an asynchronous store, a signal or an atomic. So the
results are those of the steps one after another. Barriers and fences between the lanes' accesses, and before what the next
one copies over them, are the compiler's. Steps stand in bodies and in tests of loops.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import kernel_dsl as kd
from tests.fuzz.choose import Choices
from tests.fuzz.written import Written

N = 512  # four elements a lane: reversed, each is another warp's
DEPTH = 2


@dataclass
class Node:
    """A step of one actor (`kind`, `names`), or a `for`, `while`, `when`, `cond` or `switch` with its blocks."""

    kind: str
    owner: int = 0
    names: tuple[str, ...] = ()
    number: int = 0
    count: str = ""  # trips, or what chooses the block
    index: str = ""  # the loop's index, or that of the loop around a step
    blocks: list[list[Node]] = field(default_factory=list)


# What a step does to the actor's value `v`, as text for the kernel; the model has the same kinds in `Model.step`.
STEPS: dict[str, list[str]] = {
    "load": ["{a} = {b}[kd.ds({i}, N)][::-1]"],
    "use": ["v = v + {a} * 3"],
    "store": ["w{n}[kd.ds({i}, N)] = v + {i}"],
    "in place": ["w{n}[kd.ds(0, N)] = w{n}[kd.ds(0, N)][::-1] * 2 + 1"],
    "add": ["kd.atomic_add(w{n}.at[kd.ds({i}, N)], v)"],
    "store array": ["q{n}[kd.ds({i}, N)] = v * 5"],
    "add to array": ["kd.atomic_add(q{n}.at[kd.ds({i}, N)], 7)"],
    "copy in": ["kd.copy_gmem_to_smem(g.at[{r}], c{n}, {b})", "kd.barrier_wait({b})"],
    "copy out": ["kd.copy_smem_to_gmem(k{r}, o{n})", "kd.wait_smem_to_gmem(0)"],
    "meet": ["kd.commit_smem()"],
}
TELL: dict[str, tuple[str, str]] = {
    "arrival": ("kd.barrier_arrive({b})", "kd.barrier_wait({b})"),
    "copy": ("kd.copy_gmem_to_smem(g.at[1], {h}, {b})", "kd.barrier_wait({b})"),
    "store": (
        'kd.async_store_smem(v, {h}, {b}, cluster_dim="c", cluster_idx={to})',
        "kd.barrier_wait({b})",
    ),
    "signal": ('kd.semaphore_signal({m}, memory_scope="{scope}")', 'kd.semaphore_wait({m}, memory_scope="{scope}")'),
    "atomic": (
        'kd.atomic_add({m}, 1, order="release", scope="{scope}")',
        'kd.semaphore_wait({m}, memory_scope="{scope}")',
    ),
}
SMEM = ("w0", "w1", "c0", "c1")
GMEM = ("o0", "o1", "q0", "q1")
COPIED = ("c0", "o0", "c0", "o0")  # copies overwrite what lanes have read


class Program(Written):
    """`actors`: warpgroups of a block, or blocks of a cluster, each of which then has SMEM of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__(f"orders_{seed}")
        self.c = c = Choices(seed)
        self.cluster = c.chance(0.2)
        self.actors = 2 if self.cluster else c.one([1, 1, 2, 2, 3])
        self.sites = 0
        self.signals: list[str] = []
        self.inputs["g"] = c.rng.integers(-50, 50, (3, N)).astype(np.int32)
        self.numbers = [c.below(4) for _ in range(3)]
        for value in self.numbers:
            self.scalar(value)
        self.tree = self.block(0, 0)
        self.wanted()
        self.write()

    # --- the tree --------------------------------------------------------------------------------

    def block(self, depth: int, owner: int, index: str = "0") -> list[Node]:
        """Nodes that begin and end with actor 0's turn."""
        c, made, late = self.c, [], []
        for _ in range(c.between(1, 5)):
            if depth < DEPTH and c.chance(0.3):
                made += self.turn(owner, 0, index)
                owner = 0
                made.append(self.nest(depth, index))
            else:
                to = c.below(self.actors)
                made += self.turn(owner, to, index)
                owner = to
                made += self.step(owner, index, late)
            if late and c.chance(0.4):
                made += self.turn(owner, late[0].owner, index)
                owner = late[0].owner
                made.append(late.pop(0))
        for use in late:
            made += self.turn(owner, use.owner, index)
            owner = use.owner
            made.append(use)
        return made + self.turn(owner, 0, index)

    def step(self, owner: int, index: str, late: list[Node]) -> list[Node]:
        c, n = self.c, self.c.one([0, 0, 1])
        kind = c.weighted((("load", 8), ("store", 3), ("in place", 1), ("add", 1), ("store array", 2), ("add to array", 1),
            ("copy in", 5), ("copy out", 4), ("meet", 1)))  # fmt: skip
        node = Node(kind, owner, number=n, index=index, count=str(c.below(2)))
        if kind == "load":
            self.sites += 1
            node.names = (f"t{self.sites}", c.one([*SMEM, *GMEM, *COPIED]))
            late.append(Node("use", owner, node.names))
        elif kind == "copy in":
            node.names = (self.barrier(),)
        return [node]

    def barrier(self) -> str:
        self.sites += 1
        name = f"b{self.sites}"
        self.scratch[name] = "kd.Barrier()"
        return name

    def turn(self, owner: int, to: int, index: str) -> list[Node]:
        """The next actor's turn; some read what came with the message."""
        if owner == to:
            return []
        c = self.c
        kind = c.one(
            ["store", "store", "signal", "atomic"] if self.cluster else ["arrival", "copy", "copy", "signal", "atomic"]
        )
        self.sites += 1
        held, sem = f"h{self.sites}", f"m{self.sites}"
        barrier = ""
        if kind in ("signal", "atomic"):
            self.signals.append(sem)
        else:
            barrier = self.barrier()
        if kind in ("copy", "store"):
            self.scratch[held] = f"kd.SMEM(({N},), kd.int32)"
        return [Node("turn", owner, (kind, held, barrier, sem, c.one(["cta", "gpu"])), to, index=index)]

    def nest(self, depth: int, index: str) -> Node:
        c = self.c
        kind = c.weighted((("for", 3), ("while", 3), ("when", 1), ("cond", 1), ("switch", 1)))
        self.sites += 1
        node = Node(kind, index=f"i{self.sites}", count=c.one(["0", "1", "2", "3", "s0", "s1", "s2"]))
        if kind in ("when", "cond", "switch"):
            node.count = c.one(["s0", "s1", "s2"])
        inner = node.index if kind in ("for", "while") else index
        blocks = {"while": 2, "cond": 2, "switch": 3}.get(kind, 1)
        node.blocks = [self.block(depth + 1, 0, inner) for _ in range(blocks)]
        return node

    # --- the kernel ------------------------------------------------------------------------------

    def write(self) -> None:
        two = f"kd.SMEM(({2 * N},), kd.int32)"
        self.scratch |= {"w0": two, "w1": two, **dict.fromkeys(("k0", "k1"), f"kd.SMEM(({N},), kd.int32)")}
        self.scratch |= dict.fromkeys(("c0", "c1"), f"kd.SMEM(({N},), kd.int32)") | {"first": "kd.Barrier()"}
        start = [
            *(f"w{n}[...] = kd.full(({2 * N},), {n + 2}, kd.int32)" for n in (0, 1)),
            *(f"k{n}[...] = g[{n}] + {n + 1}" for n in (0, 1)),
            "kd.commit_smem()",
        ]
        for n in (0, 1):
            start += [f"kd.copy_gmem_to_smem(g.at[{n}], c{n}, first)", "kd.barrier_wait(first)"]
        if self.cluster:
            self.options = 'grid=(1,), grid_names=("x",), cluster=(2,), cluster_names=("c",)'
            self.lines += ['me = kd.axis_index("c")', *start]
        elif self.actors > 1:
            self.options = f'num_threads={self.actors}, thread_name="me"'
            self.lines += ['me = kd.axis_index("me")']
            self.branch("me == 0", start)
        else:
            self.lines += start
        if self.signals:  # blocks share those of the grid
            self.lines.append(f"sems = kd.get_global(kd.SemaphoreType.REGULAR(({len(self.signals)},)))")
            self.lines += [f"{name} = sems.at[{n}]" for n, name in enumerate(self.signals)]
        order = self.c.rng.permutation(self.actors).tolist()
        if not self.cluster and self.actors > 1:  # others begin when all is there
            for actor in range(1, self.actors):
                self.scratch[f"ready{actor}"] = "kd.Barrier()"
                self.branch("me == 0", [f"kd.barrier_arrive(ready{actor})"])
        for actor in order:
            lines = [f"v = g[2] + {actor}", *self.text(self.tree, actor), f"vs[{actor}] = v"]
            if actor and not self.cluster:
                lines.insert(0, f"kd.barrier_wait(ready{actor})")
            if self.actors > 1:
                self.branch(f"me == {actor}", lines)
            else:
                self.lines += lines
        self.lines = [line.replace("N)", f"{N})") for line in self.lines]

    def text(self, block: list[Node], actor: int) -> list[str]:
        out: list[str] = []
        for node in block:
            if node.blocks:
                out += self.nested(node, actor)
            elif node.kind == "turn":
                kind, held, barrier, sem, scope = node.names
                if actor in (node.owner, node.number):
                    text = TELL[kind][actor == node.number]
                    scope = "gpu" if self.cluster else scope
                    out.append(text.format(b=barrier, h=held, m=sem, scope=scope, to=node.number))
                if actor == node.number and kind in ("copy", "store"):
                    out.append(f"v = v + {held}[::-1]")
            elif node.owner == actor:
                a, b = (*node.names, "", "")[:2]
                b = a if node.kind == "copy in" else b
                whole = b[:1] in ("c", "o")
                lines = STEPS[node.kind]
                if node.kind == "load" and whole:
                    lines = ["{a} = {b}[::-1]"]
                out += [line.format(a=a, b=b, i=node.index, n=node.number, r=node.count) for line in lines]
        return out

    def nested(self, node: Node, actor: int) -> list[str]:
        def body(name: str, parameters: str, block: list[Node], result: str) -> list[str]:
            return [
                f"def {name}({parameters}):",
                *(f"    {t}" for t in self.text(block, actor)),
                f"    return {result}",
            ]

        i, f = node.index, f"f_{node.index}"
        if node.kind == "for":
            return [*body(f, f"{i}, v", node.blocks[0], "v"), f"v = kd.fori_loop(0, {node.count}, {f}, v)"]
        if node.kind == "while":
            first = f"{i}, v = state"
            test = body(f"{f}t", "state", node.blocks[0], f"({i} < {node.count}) & (kd.sum(v & 1) >= 0)")
            step = body(f, "state", node.blocks[1], f"({i} + 1, v)")
            test.insert(1, f"    {first}")
            step.insert(1, f"    {first}")
            return [*test, *step, f"v = kd.while_loop({f}t, {f}, (kd.int32(0), v))[1]"]
        if node.kind == "when":
            made = body(f, "v=v", node.blocks[0], "None")
            return [*made, f"kd.when({node.count} > 1)({f})"]
        made = [line for n, block in enumerate(node.blocks) for line in body(f"{f}_{n}", "v", block, "v")]
        names = ", ".join(f"{f}_{n}" for n in range(len(node.blocks)))
        if node.kind == "cond":
            return [*made, f"v = kd.cond({node.count} > 1, {names}, v)"]
        return [*made, f"v = kd.switch({node.count}, [{names}], v)"]

    # --- the model -------------------------------------------------------------------------------

    def wanted(self) -> None:
        """Fill the outputs with the results of the steps, one after another."""
        model = Model(self)
        model.run(self.tree, {})
        for name, init in INITS.items():
            self.outputs[name] = model.gmem[name], init
        self.outputs["vs"] = np.stack(model.v), None


INITS = {"o0": 3, "o1": 4, "q0": 5, "q1": 6}


class Model:
    """The memory, and the value of each actor."""

    def __init__(self, p: Program) -> None:
        self.p, self.g = p, p.inputs["g"]
        self.gmem = {n: np.full(N if n[0] == "o" else 2 * N, init, np.int32) for n, init in INITS.items()}
        owners = p.actors if p.cluster else 1
        self.smem = [
            {
                "w0": np.full(2 * N, 2, np.int32),
                "w1": np.full(2 * N, 3, np.int32),
                "c0": self.g[0].copy(),
                "c1": self.g[1].copy(),
            }
            for _ in range(owners)
        ]
        self.v = [self.g[2] + np.int32(actor) for actor in range(p.actors)]
        self.named: dict[str, np.ndarray] = {}

    def number(self, text: str) -> int:
        return self.p.numbers[int(text[1])] if text[0] == "s" else int(text)

    def run(self, block: list[Node], at: dict[str, int]) -> None:
        for node in block:
            if node.blocks:
                self.nest(node, at)
            elif node.kind == "turn":
                if node.names[0] == "copy":
                    self.v[node.number] = self.v[node.number] + self.g[1][::-1]
                elif node.names[0] == "store":
                    self.v[node.number] = self.v[node.number] + self.v[node.owner][::-1]
            else:
                self.step(node, at.get(node.index, 0))

    def nest(self, node: Node, at: dict[str, int]) -> None:
        count = self.number(node.count)
        if node.kind == "for":
            for i in range(count):
                self.run(node.blocks[0], {**at, node.index: i})
        elif node.kind == "while":
            i = 0
            while True:
                self.dropped(node.blocks[0], {**at, node.index: i})
                if i >= count:
                    break
                self.run(node.blocks[1], {**at, node.index: i})
                i += 1
        elif node.kind == "when":
            if count > 1:
                self.dropped(node.blocks[0], at)
        elif node.kind == "cond":
            self.run(node.blocks[0 if count > 1 else 1], at)
        else:
            self.run(node.blocks[min(count, 2)], at)

    def dropped(self, block: list[Node], at: dict[str, int]) -> None:
        """Run a block that gives no value back."""
        before = list(self.v)
        self.run(block, at)
        self.v = before

    def step(self, node: Node, i: int) -> None:
        me, n = node.owner, node.number
        smem, v = self.smem[me if self.p.cluster else 0], self.v[me]
        part = slice(i, i + N)
        if node.kind == "load":
            name, ref = node.names
            source = smem[ref] if ref in smem else self.gmem[ref]
            self.named[name] = source[part if ref[0] in "wq" else slice(None)][::-1].copy()
        elif node.kind == "use":
            self.v[me] = v + self.named[node.names[0]] * np.int32(3)
        elif node.kind == "store":
            smem[f"w{n}"][part] = v + np.int32(i)
        elif node.kind == "in place":
            smem[f"w{n}"][:N] = smem[f"w{n}"][:N][::-1] * np.int32(2) + np.int32(1)
        elif node.kind == "add":
            smem[f"w{n}"][part] += v
        elif node.kind == "store array":
            self.gmem[f"q{n}"][part] = v * np.int32(5)
        elif node.kind == "add to array":
            self.gmem[f"q{n}"][part] += np.int32(7)
        elif node.kind == "copy in":
            smem[f"c{n}"][:] = self.g[int(node.count)]
        elif node.kind == "copy out":
            k = int(node.count)
            self.gmem[f"o{n}"][:] = self.g[k] + np.int32(k + 1)


def generate(seed: int) -> Program:
    """The program of a seed."""
    return Program(seed)


__all__ = ["Program", "generate", "kd"]
