"""Random bodies that nest: scans, sorts, random numbers, products and scratch inside loops, branches and one another.

A body is text with two meanings: with `kd` it is traced, and with `tests.fuzz.model` it computes what the kernel must give.
Ints wrap and small numbers in floats are exact, so both agree element by element.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz import model
from tests.fuzz.choose import Choices
from tests.fuzz.nest_steps import INTS, STEPS, Body, named, step
from tests.fuzz.texts import FromText

# --- control flow --------------------------------------------------------------------------------


def _tree(c: Choices, names: list[str]) -> str:
    """Names as a carry: a tuple, a list, a dict, or a nest of them. The first may stand alone."""
    if len(names) == 1 and c.chance(0.6):
        return names[0]
    if c.chance(0.3):
        return f"{{'b': {names[0]}, 'a': ({', '.join(names[1:])}{',' * (len(names) == 2)})}}"
    return f"[{', '.join(names)}]" if c.chance(0.3) else f"({', '.join(names)},)"


def _form(tree: str, names: list[str], others: list[str]) -> str:
    """The same tree of other names."""
    for name, other in zip(names, others, strict=True):
        tree = tree.replace(name, f"<{other[1:]}>", 1)
    return tree.replace("<", "v").replace(">", "")


def _opened(tree: str, whole: str, names: list[str]) -> list[str]:
    """Lines that take a tree apart."""
    if tree.startswith("{"):
        lines = [f"{names[0]} = {whole}['b']"]
        return lines + [f"{n} = {whole}['a'][{i}]" for i, n in enumerate(names[1:])]
    if tree[0] in "([":
        return [f"{n} = {whole}[{i}]" for i, n in enumerate(names)]
    return [f"{names[0]} = {whole}"]


def _carried(b: Body) -> list[str]:
    chosen = {b.pick(lambda v: v.size <= 300) for _ in range(b.c.between(1, 3))} - {None}
    return sorted(chosen)  # type: ignore[type-var]


def _block(b: Body, names: list[str], made: list[str]) -> tuple[Body, list[str]]:
    """A body whose first names are `made`, and for each the name of a value of its shape and dtype at the end."""
    inner = b.nested()
    for old, new in zip(names, made, strict=True):
        inner.names[new] = inner.names[old]
        inner.live.append(new)
    for _ in range(b.c.between(1, 4)):
        inner.c.weighted(STEPS if b.depth < 1 else [s for s in STEPS if s[0] not in FLOW])(inner)
    results: list[str] = []
    for name in made:
        v = inner.value(name)
        same = [n for n in inner.live[len(b.live) :] if inner.value(n).shape == v.shape]
        found = b.c.one(same)
        if inner.value(found).dtype != v.dtype:
            if v.dtype.kind in "iu" and inner.value(found).dtype.kind in "iu":
                found = inner.make(f"kd.astype({found}, {named(v.dtype)})")
            else:
                found = name
        results.append(found)
    return inner, results


def _function(name: str, parameters: str, first: list[str], inner: Body, result: str) -> list[str]:
    return [f"def {name}({parameters}):", *(f"    {line}" for line in [*first, *inner.lines]), f"    return {result}"]


@step(6)
def loops(b: Body) -> None:
    names = _carried(b)
    if not names:
        return
    c, f, whole = b.c, b.fresh(), b.fresh()
    made, out = [b.fresh() for _ in names], [b.fresh() for _ in names]
    index = b.fresh()
    tree = _tree(c, names)
    kind = c.one(["fori", "fori", "loop", "while"])
    b.names[index] = np.array(0, np.int32)
    b.live.append(index)
    inner, results = _block(b, names, made)
    b.live.remove(index)
    result = _form(tree, names, results)
    opened = _opened(tree, "carry", made)
    trips = c.one(["0", "1", "2", "3", b.scalar()])
    if kind == "fori":
        unroll = c.one(["None", "None", "None", "2", "False"])
        lines = _function(f, f"{index}, carry", opened, inner, result)
        lines.append(f"{whole} = kd.fori_loop({c.one(['0', '1', '-1'])}, {trips}, {f}, {tree}, unroll={unroll})")
    elif kind == "loop":
        lines = [f"@kd.loop(0, {trips}, step={c.between(1, 2)}, init_carry={tree})"]
        lines += _function(whole, f"{index}, carry", opened, inner, result)
    else:
        lines = _function(f, "state", [f"{index}, carry = state", *opened], inner, f"({index} + 1, {result})")
        zero = "kd.astype(kd.max(kd.arange(3)) - 2, kd.int32)"
        lines.append(f"{whole} = kd.while_loop(lambda s: s[0] < {trips}, {f}, ({zero}, {tree}))[1]")
    b.run([*lines, *_opened(tree, whole, out)], *out)


@step(4)
def branches(b: Body) -> None:
    names = _carried(b)
    if not names:
        return
    c, whole = b.c, b.fresh()
    tree, out = _tree(c, names), [b.fresh() for _ in names]
    count = c.one([2, 2, 3])
    functions, lines = [b.fresh() for _ in range(count)], []
    for f in functions:
        made = [b.fresh() for _ in names]
        inner, results = _block(b, names, made)
        lines += _function(f, ", ".join(made), [], inner, _form(tree, names, results))
    operands = ", ".join(names)
    if count == 2:
        lines.append(f"{whole} = kd.cond({b.scalar()} == {c.below(4)}, {', '.join(functions)}, {operands})")
    else:
        lines.append(f"{whole} = kd.switch({b.scalar()} - 1, [{', '.join(functions)}], {operands})")
    b.run([*lines, *_opened(tree, whole, out)], *out)


FLOW = (loops, branches)


# --- programs ------------------------------------------------------------------------------------


class Program(FromText):
    """A kernel: alone, of a grid, of warpgroups, batched by `kd.vmap`, or with declared extents."""

    def __init__(self, seed: int) -> None:
        c = Choices(seed)
        self.name = f"nests_{seed}"
        self.axis = c.weighted((("", 4), ("grid", 2), ("warpgroups", 2), ("vmap", 2), ("dims", 2)))
        self.instances = c.between(1, 3) if self.axis not in ("", "dims") else 1
        self.target = c.one(["sm_90a", "sm_90a", "sm_80"])
        self.inputs: dict[str, np.ndarray] = {}
        for number in range(c.between(1, 3)):
            shape = [max(n, 1) for n in c.shape(200)] or [c.between(1, 40)]
            array = c.rng.integers(-40, 100, (self.instances, *shape[:3]))
            self.inputs[f"x{number}"] = array.astype(c.one(INTS))
        names = self._names(0)
        b = Body(c, names)
        for ref in names["refs"]:
            shape = self.inputs[ref].shape[1:]
            b.make(f"{ref}[{', '.join(f'kd.ds(0, {n})' for n in shape) if self.axis == 'dims' else '...'}]")
        for _ in range(c.between(3, 8)):
            c.weighted(STEPS)(b)
        self.results = [n for n in b.live if b.value(n).ndim or c.chance(0.5)][-8:]
        self.types = [(b.value(n).shape, b.value(n).dtype) for n in self.results]
        self.lines = b.lines

    def _names(self, instance: int) -> dict[str, Any]:
        names: dict[str, Any] = {x: model.Ref(a[instance].copy()) for x, a in self.inputs.items()}
        more = {"kd": model, "count": [0], "refs": list(names), "dims": self.axis == "dims"}
        return {**names, **more, "warpgroups": self.axis == "warpgroups"}

    def source(self) -> str:
        """The module that defines `kernel`."""
        several = self.axis in ("grid", "warpgroups")
        lead = (self.instances,) if several else ()
        outs = [f"kd.ShapeDtypeStruct({(*lead, *s)}, {named(d)})" for s, d in self.types]
        options = [f"out_type=({', '.join(outs)},)", f'name="{self.name}"']
        options.append(f'compiler_params=kd.CompilerParams(target="{self.target}")')
        if self.axis == "grid":
            options.append(f'grid=({self.instances},), grid_names=("me",)')
        if self.axis == "warpgroups":
            options.append(f'num_threads={self.instances}, thread_name="me"')
        if self.axis == "dims":
            shapes = {
                x: f"({', '.join(f'kd.Dim({x + str(i)!r}, max=5000)' for i in range(a.ndim - 1))},)"
                for x, a in self.inputs.items()
            }
            options.append(f"shapes={{{', '.join(f'{x!r}: {s}' for x, s in shapes.items())}}}")
        lines = [f"    {line}" for line in self.lines]
        if several:
            lines = [f"    {x} = {x}.at[me]" for x in self.inputs] + lines
            lines.insert(0, '    me = kd.axis_index("me")')
        lines += [f"    o{i}[{'me' if several else '...'}] = {n}" for i, n in enumerate(self.results)]
        names = [*self.inputs, *(f"o{i}" for i in range(len(self.results)))]
        head = [f"@kd.kernel({', '.join(options)})", f"def kernel({', '.join(names)}):"]
        end = ["kernel = kd.vmap(kernel)"] if self.axis == "vmap" else []
        return "\n".join(["import kernel_dsl as kd", "", "", *head, *lines, "", *end]) + "\n"

    def arguments(self) -> list[np.ndarray]:
        alone = self.axis in ("", "dims")
        return [a[0] if alone else a for a in self.inputs.values()]

    def run(self, interpret: Any = True) -> list[np.ndarray]:
        return [np.asarray(o) for o in self.kernel()(*self.arguments(), interpret=interpret)]

    def wanted(self) -> list[np.ndarray]:
        """What each instance's lines compute with the model."""
        rows: list[list[np.ndarray]] = []
        for instance in range(self.instances):
            names = self._names(instance)
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec("\n".join(self.lines), names)
            rows.append([np.asarray(names[n]) for n in self.results])
        alone = self.axis in ("", "dims")
        return [row[0] if alone else np.stack(row) for row in zip(*rows, strict=True)]

    def check(self, outputs: list[np.ndarray]) -> None:
        for name, got, want in zip(self.results, outputs, self.wanted(), strict=True):
            wide = [x if x.dtype.kind in "iub" else x.astype(np.float64) for x in (got, want)]
            assert got.dtype == want.dtype and got.shape == want.shape, name
            np.testing.assert_array_equal(*wide, err_msg=f"{self.name} {name}")


def generate(seed: int) -> Program:
    """The program of a seed."""
    return Program(seed)


__all__ = ["Program", "generate", "kd"]
