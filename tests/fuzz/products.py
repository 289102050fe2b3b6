"""Random nests of loops and branches whose steps leave products and copies in flight.

Operands lie in scopes, of which a loop opens the same one again, and in members of unions, or are values. What was in flight
when such memory is used again is the compiler's to wait for and to fence, on each path. An accumulator that may be in use is
refused while compiling (`UnreadAccumulator`); what compiles must give the results of the steps one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.fuzz.choose import Choices
from tests.fuzz.written import Written

ROWS, COLUMNS = 64, 32  # of a tile; its first 32 rows are the right side of a product, too
DEPTH = 2
STEPS = 24  # that a warpgroup takes at most: a step has up to nine operations
REFUSED = "accumulator-use"


@dataclass
class State:
    """What the model of one warpgroup changes: its values, its accumulators, and the outputs that all add to."""

    v: np.ndarray
    h: np.ndarray
    accs: list[np.ndarray]
    sums: np.ndarray
    numbers: list[int]


@dataclass
class Node:
    """A step: its lines and what it does; or a nest: a `kind`, the text of its count, its index, its blocks."""

    lines: list[str] = field(default_factory=list)
    does: Callable[[State, int], None] | None = None
    kind: str = ""
    count: str = ""
    index: str = ""
    blocks: list[list[Node]] = field(default_factory=list)


class Program(Written):
    """One tree of steps for each warpgroup."""

    def __init__(self, seed: int) -> None:
        super().__init__(f"products_{seed}")
        self.c = c = Choices(seed)
        self.warpgroups = c.one([1, 1, 1, 2])
        self.sites = 0
        self.g = c.rng.integers(-2, 3, (3, ROWS, COLUMNS)).astype(np.float16)
        self.inputs["g"] = self.g
        numbers = [c.below(4) for _ in range(3)]
        for value in numbers:
            self.scalar(value)
        self.sums: list[str] = []
        trees: list[tuple[list[Node], list[str]]] = []
        for me in range(self.warpgroups):
            accs = [f"acc{me}{n}" for n in range(2)]
            self.scratch |= dict.fromkeys(accs, f"kd.ACC(({ROWS}, {COLUMNS}), kd.float32)")
            self.accs = accs
            tree = self.block(0)
            while steps(tree, numbers) > STEPS:
                tree = self.block(0)
            trees.append((tree, accs))
        count = max(self.sites, 1)
        sums, values = np.zeros((count, ROWS, COLUMNS)), []
        for me, (tree, accs) in enumerate(trees):
            state = State(
                np.zeros((ROWS, COLUMNS)),
                self.g[0].astype(np.float64),
                [np.zeros((ROWS, COLUMNS)) for _ in accs],
                sums,
                numbers,
            )
            run(tree, state, 0)
            values += [state.v, *state.accs]
            at = me * 3
            lines = [
                f"v = kd.zeros(({ROWS}, {COLUMNS}), kd.float32)",
                "h = g[0]",
                *(f"{a}[...] = v" for a in accs),
                *text(tree),
                f"vs[{at}] = v",
                *(f"vs[{at + 1 + n}] = {a}[...]" for n, a in enumerate(accs)),
            ]
            if self.warpgroups > 1:
                self.branch(f'kd.axis_index("me") == {me}', lines)
            else:
                self.lines += lines
        if self.warpgroups > 1:
            self.options = f'num_threads={self.warpgroups}, thread_name="me"'
        self.outputs["vs"] = np.stack(values).astype(np.float32), None
        self.outputs["sums"] = sums.astype(np.float16), 0

    # --- the tree --------------------------------------------------------------------------------

    def block(self, depth: int) -> list[Node]:
        made: list[Node] = []
        for _ in range(self.c.between(1, 4)):
            if depth < DEPTH and self.c.chance(0.35):
                made.append(self.nest(depth))
                continue
            kind = self.c.weighted(
                (
                    (self.scope, 6),
                    (self.union, 4),
                    (self.wait, 3),
                    (self.value, 2),
                    (self.touch, 2),
                    (self.read, 2),
                    (self.held, 3),
                )
            )
            made += kind()
        return made

    def nest(self, depth: int) -> Node:
        c = self.c
        kind = c.weighted((("for", 3), ("while", 3), ("when", 1), ("cond", 1), ("switch", 1)))
        count = c.one(["s0", "s1", "s2"]) if kind not in ("for", "while") else c.one(["0", "1", "2", "s0", "s1", "s2"])
        self.sites += 1
        blocks = {"while": 2, "cond": 2, "switch": 3}.get(kind, 1)
        index = f"i{self.sites}"
        return Node(kind=kind, count=count, index=index, blocks=[self.block(depth + 1) for _ in range(blocks)])

    def wait(self) -> list[Node]:
        n = self.c.one([0, 0, 0, 1, 1, 2])
        inside = self.c.one(["", "", "s0", "s1"])
        return [Node([f"kd.when({inside} > 1)(lambda: kd.wgmma_wait({n}))" if inside else f"kd.wgmma_wait({n})"])]

    def read(self) -> list[Node]:
        """An accumulator's value, after its own wait."""
        n = self.c.below(2)

        def does(s: State, _: int) -> None:
            s.v = s.v + s.accs[n] % 8

        return [Node([f"v = v + (kd.astype({self.accs[n]}[...], kd.int32) & 7)"], does)]

    def touch(self) -> list[Node]:
        """A change of an accumulator: refused if a product may be in flight."""
        n = self.c.below(2)
        wait = ["kd.wgmma_wait(0)"] * self.c.chance(0.8)

        def does(s: State, _: int) -> None:
            s.accs[n] = s.accs[n] * 0 + s.v if store else s.accs[n] * 2

        store = self.c.chance(0.5)
        acc = self.accs[n]
        return [
            Node(
                [*wait, f"{acc}[...] = v" if store else f"{acc}.scale_rows(kd.full(({ROWS},), 2.0, kd.float32))"], does
            )
        ]

    def value(self) -> list[Node]:
        """A left side in registers, which may be made again in the next turn: refused, unless it waits."""
        n, k = self.c.below(2), self.c.below(3)
        wait = ["kd.wgmma_wait(0)"] * self.c.chance(0.8)
        tile = self.fixed(k)

        def does(s: State, i: int) -> None:
            left = self.g[k].astype(np.float64) * (1 + i % 2)
            s.accs[n] = s.accs[n] + left @ self.g[k][:COLUMNS].astype(np.float64)

        line = (
            f"kd.wgmma({self.accs[n]}, g[{k}] * kd.astype(1 + (0 * s0 + INDEX) % 2, kd.float16), {tile}.at[:{COLUMNS}])"
        )
        return [Node([*self.filled(tile, k, "store"), line, *wait], does)]

    def held(self) -> list[Node]:
        """A left side that goes through loops and branches, and may change there while a product reads it."""
        n, k = self.c.below(2), self.c.below(3)
        tile = self.fixed(k)
        kind = self.c.one(["product", "product", "change", "anew"])
        wait = ["kd.wgmma_wait(0)"] * self.c.chance(0.7)
        if kind == "product":

            def does(s: State, _: int) -> None:
                s.accs[n] = s.accs[n] + s.h @ self.g[k][:COLUMNS].astype(np.float64)

            return [
                Node(
                    [*self.filled(tile, k, "store"), f"kd.wgmma({self.accs[n]}, h, {tile}.at[:{COLUMNS}])", *wait], does
                )
            ]

        def changes(s: State, _: int) -> None:
            s.h = np.where(s.h > 0, -s.h, 1 - s.h) if kind == "change" else self.g[k].astype(np.float64)

        return [Node([*wait, "h = kd.where(h > 0, -h, 1 - h)" if kind == "change" else f"h = g[{k}]"], changes)]

    def fixed(self, k: int) -> str:
        """A tile that one site alone uses."""
        self.sites += 1
        name = f"own{self.sites}"
        self.scratch[name] = TILE
        return name

    def filled(self, tile: str, k: int, how: str) -> list[str]:
        """Lines that fill a tile with g[k]."""
        if how == "store":
            # a tile of a site's own is its author's: nothing of an earlier turn may read it
            own = ["kd.wgmma_wait(0)"] * tile.startswith("own")
            return [*own, f"{tile}[...] = g[{k}]", "kd.commit_smem()"]
        if how == "cp.async":
            return [f"kd.copy_gmem_to_smem(g.at[{k}], {tile})", "kd.wait_gmem_to_smem(0)", "kd.commit_smem()"]
        barrier = f"b{self.sites}{k}{tile}"
        self.scratch[barrier] = "kd.Barrier()"
        return [f"kd.copy_gmem_to_smem(g.at[{k}], {tile}, {barrier})", f"kd.barrier_wait({barrier})"]

    def use(self, tile: str, k: int) -> tuple[list[str], list[Callable[[State, int], None]]]:
        """Uses of a filled tile: products, copies to GMEM, loads by other lanes, most of them left in flight."""
        c, lines, does = self.c, [], []
        g = self.g[k].astype(np.float64)
        for _ in range(c.between(1, 3)):
            kind = c.weighted((("product", 4), ("add", 3), ("load", 2), ("wait", 1)))
            if kind == "product":
                n = c.below(2)
                lines.append(f"kd.wgmma({self.accs[n]}, {tile}, {tile}.at[:{COLUMNS}])")

                def product(s: State, _: int, n: int = n) -> None:
                    s.accs[n] = s.accs[n] + g @ g[:COLUMNS]

                does.append(product)
            elif kind == "add":
                self.sites += 1
                at = self.sites - 1
                lines.append(f'kd.copy_smem_to_gmem({tile}, sums.at[{at}], reduction_op="add")')

                def add(s: State, _: int, at: int = at) -> None:
                    s.sums[at] += g

                does.append(add)
            elif kind == "load":
                lines.append(f"v = v + {tile}[...][::-1]")

                def load(s: State, _: int) -> None:
                    s.v = s.v + g[::-1]

                does.append(load)
            else:
                lines.append(
                    c.one(["kd.wgmma_wait(0)", "kd.wait_smem_to_gmem(0, wait_read_only=True)", "kd.wgmma_wait(1)"])
                )
        return lines, does

    def scope(self) -> list[Node]:
        """A tile that ends with its scope."""
        k, how = self.c.below(3), self.c.one(["store", "store", "copy", "cp.async"])
        self.sites += 1
        name = f"f{self.sites}"
        lines = self.filled("tile", k, how)
        used, does = self.use("tile", k)
        body = [f"def {name}(tile, v=v):", *(f"    {line}" for line in [*lines, *used, "return v"])]
        return [Node([*body, f"v = kd.run_scoped({name}, {TILE})"], together(does))]

    def union(self) -> list[Node]:
        """One member after another of a union, each filled and used."""
        c = self.c
        self.sites += 1
        name, count = f"u{self.sites}", c.one([2, 2, 3])
        self.scratch[name] = f"kd.RefUnion({', '.join([TILE] * count)})"
        lines, all_done = [f"{', '.join(f'{name}m{n}' for n in range(count))} = {name}"], []
        for n in range(count):
            k = c.below(3)
            lines += self.filled(f"{name}m{n}", k, c.one(["store", "store", "copy", "cp.async"]))
            used, does = self.use(f"{name}m{n}", k)
            lines += used
            all_done += does
        return [Node(lines, together(all_done))]


TILE = f"kd.SMEM(({ROWS}, {COLUMNS}), kd.float16, transforms=(kd.TilingTransform((8, 32)), kd.SwizzleTransform(64)))"


def together(does: list[Callable[[State, int], None]]) -> Callable[[State, int], None]:
    def all_of(s: State, i: int) -> None:
        for one in does:
            one(s, i)

    return all_of


def turns(node: Node, numbers: list[int]) -> list[list[Node]]:
    """The blocks that a nest runs, in order."""
    count = numbers[int(node.count[1])] if node.count[0] == "s" else int(node.count)
    match node.kind:
        case "for":
            return node.blocks * count
        case "while":
            return [*node.blocks * count, node.blocks[0]]
        case "when":
            return node.blocks * (count > 1)
        case "cond":
            return [node.blocks[count <= 1]]
        case _:
            return [node.blocks[min(count, 2)]]


def steps(block: list[Node], numbers: list[int]) -> int:
    """The number of steps that a block takes."""
    return sum(sum(steps(b, numbers) for b in turns(n, numbers)) if n.blocks else 1 for n in block)


def run(block: list[Node], s: State, i: int) -> None:
    """What a block does to the state; `i`: the index of the loop around it."""
    for node in block:
        if not node.blocks:
            if node.does is not None:
                node.does(s, i)
            continue
        looped = node.kind in ("for", "while")
        for n, part in enumerate(turns(node, s.numbers)):
            before = s.v, s.h
            run(part, s, n // len(node.blocks) if looped else i)
            if node.kind == "when" or (node.kind == "while" and part is node.blocks[0]):
                s.v, s.h = before  # the block gives no values back


def text(block: list[Node], index: str = "0") -> list[str]:
    """The lines of a block."""
    out: list[str] = []
    for node in block:
        if node.blocks:
            out += nested(node, index)
        else:
            out += [line.replace("INDEX", index) for line in node.lines]
    return out


def nested(node: Node, index: str) -> list[str]:
    def body(name: str, parameters: str, block: list[Node], result: str, inner: str) -> list[str]:
        return [f"def {name}({parameters}):", *(f"    {t}" for t in [*text(block, inner), f"return {result}"])]

    i, f = node.index, f"f_{node.index}"
    if node.kind == "for":
        made = body(f, f"{i}, state", node.blocks[0], "v, h", i)
        return [made[0], "    v, h = state", *made[1:], f"v, h = kd.fori_loop(0, {node.count}, {f}, (v, h))"]
    if node.kind == "while":
        test = body(f"{f}t", "state", node.blocks[0], f"({i} < {node.count}) & (kd.sum(v) < 1e9)", i)
        step = body(f, "state", node.blocks[1], f"({i} + 1, v, h)", i)
        for lines in (test, step):
            lines.insert(1, f"    {i}, v, h = state")
        return [*test, *step, f"_, v, h = kd.while_loop({f}t, {f}, (kd.int32(0), v, h))"]
    if node.kind == "when":
        return [*body(f, "v=v, h=h", node.blocks[0], "None", index), f"kd.when({node.count} > 1)({f})"]
    made = [line for n, block in enumerate(node.blocks) for line in body(f"{f}_{n}", "v, h", block, "v, h", index)]
    names = ", ".join(f"{f}_{n}" for n in range(len(node.blocks)))
    if node.kind == "cond":
        return [*made, f"v, h = kd.cond({node.count} > 1, {names}, v, h)"]
    return [*made, f"v, h = kd.switch({node.count}, [{names}], v, h)"]


def generate(seed: int) -> Program:
    """The program of a seed."""
    return Program(seed)
