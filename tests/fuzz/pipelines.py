"""Random pipelines whose bodies write their blocks in place, and scratch that is used again, against NumPy.

Whatever a body stores to a block of an input, the next steps' loads overwrite; whatever ends with a scope or shares a
union's memory, the next one gets while copies may still read it. The fences and waits are the compiler's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz.choose import Choices
from tests.fuzz.written import Written

ROWS, COLUMNS = 8, 32


def _diagonal(b: np.ndarray) -> np.ndarray:
    out = b.copy()
    out[np.arange(ROWS), np.arange(ROWS)] = 1
    return out


# (how a body changes the block `b` of shape (ROWS, COLUMNS), what NumPy makes of it); ints, so that every sum is exact
CHANGES: list[tuple[str, Any]] = [
    ("b[...] = b[...] * 2", lambda b: b * 2),
    ("b[2:5] = b[2:5] + 7", lambda b: np.concatenate([b[:2], b[2:5] + 7, b[5:]])),
    ("kd.atomic_add(b, 3)", lambda b: b + 3),
    ("kd.atomic_max(b.at[1], 50)", lambda b: np.concatenate([b[:1], np.maximum(b[1:2], 50), b[2:]])),
    ("b.T[...] = b.T[...] + 1", lambda b: b + 1),
    ("b.reshape(-1)[::2] = b.reshape(-1)[::2] - 4", lambda b: b - 4 * (np.arange(b.size).reshape(b.shape) % 2 == 0)),
    ("b.bitcast(kd.uint32)[0] = b.bitcast(kd.uint32)[0] + 9", lambda b: b + 9 * (np.arange(ROWS)[:, None] == 0)),
    ("b[kd.arange(ROWS), kd.arange(ROWS)] = kd.full((ROWS,), 1, kd.int32)", _diagonal),
    ("kd.when(kd.sum(b[...]) > 0)(lambda: b.__setitem__(..., b[...] + 5))", lambda b: b + 5 * (b.sum() > 0)),
    (
        "kd.fori_loop(0, 2, lambda i, c: (b.__setitem__(i, b[i] * 3), c)[1], 0)",
        lambda b: np.concatenate([b[:2] * 3, b[2:]]),
    ),
]


class Program(Written):
    """`in_place`: whether stores of a body have to be fenced, as TMA overwrites them."""

    in_place = False


def generate(seed: int) -> Program:
    """The program of a seed."""
    c = Choices(seed)
    p = Program(f"pipelines_{seed}")
    if c.chance(0.3):
        _scratch(c, p)
    else:
        _pipeline(c, p)
    return p


def _array(c: Choices, shape: tuple[int, ...]) -> np.ndarray:
    return c.rng.integers(-20, 100, shape).astype(np.int32)


def _block(x: np.ndarray, low: int, high: int, row: int) -> np.ndarray:
    """Block `row` of rows low to high of an array, zeros beyond."""
    part = x[low:high][row * ROWS : (row + 1) * ROWS]
    return np.pad(part, [(0, ROWS - len(part)), (0, 0)])


def _pipeline(c: Choices, p: Program) -> None:
    specialised = c.chance(0.5)
    steps, depth = c.between(1, 5), c.between(1, 3)
    low, rows = c.one([0, 0, 8, 3]), c.between(1, steps * ROWS)
    runs = c.between(1, 2)
    stays = c.chance(0.2)  # the same block at every step: loaded once where one warpgroup does all
    changes = [c.one(CHANGES) for _ in range(c.weighted(((0, 2), (1, 5), (2, 2))))]
    out, manual = c.chance(0.5), specialised and c.chance(0.4)
    delay = 1 if depth > 1 and not manual and c.chance(0.3) else 0
    p.inputs["x"] = x = _array(c, (low + rows + c.between(0, 9), COLUMNS))
    kept = None
    total = np.zeros((ROWS, COLUMNS), np.int32)
    stored = np.zeros((steps * ROWS, COLUMNS), np.int32)
    for _ in range(runs):
        kept = None
        for step in range(steps):
            fresh = _block(x, low, low + rows, 0 if stays else step)
            b = kept if stays and not specialised and kept is not None else fresh
            for _, change in changes:
                b = change(b)
            kept = b
            total = total + b
            stored[step * ROWS : (step + 1) * ROWS] = b * 2
    p.outputs["total"] = total.astype(np.int32), 0
    p.scratch["acc"] = f"kd.SMEM(({ROWS}, {COLUMNS}), kd.int32)"
    specs = [f"kd.BlockSpec(({ROWS}, {COLUMNS}), lambda i: ({0 if stays else 'i'}, 0), delay_release={delay})"]
    outs = f"[kd.BlockSpec(({ROWS}, {COLUMNS}), lambda i: (i, 0))]" if out else "[]"
    args = f"x.at[{low}:{low + rows}]"
    if out:
        p.outputs["stored"] = stored, 0
        args += ", stored"
    body = [f"ROWS = {ROWS}", "def body(index, b, *rest):"]
    body += [f"    {text}" for text, _ in changes]
    body += ["    rest[0][...] = b[...] * 2"] * out
    body += ["    acc[...] = acc[...] + b[...]"] + ["    kd.barrier_arrive(rest[-1])"] * manual
    zero = f"acc[...] = kd.zeros(({ROWS}, {COLUMNS}), kd.int32)"
    common = f"body, grid=({steps},), in_specs=[{', '.join(specs)}], out_specs={outs}, max_concurrent_steps={depth}"
    if specialised:
        p.options = 'num_threads=2, thread_name="wg"'
        more = f', memory_registers=40, wg_axis="wg", num_compute_wgs=1, manual_consumed_barriers={manual}'
        call = f"kd.emit_pipeline_warp_specialized({common}{more})({args})"
        first = [f"kd.when(kd.axis_index('wg') == 0)(lambda: {_call(zero)})"]
        last = ["kd.when(kd.axis_index('wg') == 0)(lambda: total.__setitem__(..., acc[...]))"]
    else:
        call, first, last = f"kd.emit_pipeline({common})({args})", [zero], ["total[...] = acc[...]"]
    again = runs > 1 and c.chance(0.5)
    p.lines = [*first, *body, *(["@kd.loop(0, 2)", "def _(_):", f"    {call}"] if again else [call] * runs), *last]
    p.in_place = bool(changes) and not out


def _call(assignment: str) -> str:
    """`a[...] = x` as an expression."""
    target, value = assignment.split("[...] = ")
    return f"{target}.__setitem__(..., {value})"


# Phases: lines that use the buffer `t` of (ROWS, COLUMNS) int32 for phase number `n`
PHASES = {
    "lanes": ["t[...] = x[{n}] + 1", "out[{n}] = t.T[...].T"],
    "load": ["kd.copy_gmem_to_smem(x.at[{n}], t, full)", "kd.barrier_wait(full)", "out[{n}] = t[...] + 1"],
    "store": ["t[...] = x[{n}] + 1", "kd.commit_smem()", "kd.copy_smem_to_gmem(t, out.at[{n}])"],
    "both": [
        "kd.copy_gmem_to_smem(x.at[{n}], t, full)", "kd.barrier_wait(full)", "t[...] = t[...] + 1", "kd.commit_smem()",
        "kd.copy_smem_to_gmem(t, out.at[{n}])",
    ],
}  # fmt: skip


def _scratch(c: Choices, p: Program) -> None:
    """Phases one after another in scopes, or in members of a union; none waits for its stores."""
    union, turns = c.chance(0.5), c.between(1, 3)
    phases = [c.one(list(PHASES)) for _ in range(c.between(2, 4))]
    count = len(phases) * turns
    p.inputs["x"] = _array(c, (count, ROWS, COLUMNS))
    p.outputs["out"] = p.inputs["x"] + 1, 0
    p.scratch["full"] = "kd.Barrier()"
    spec = f"kd.SMEM(({ROWS}, {COLUMNS}), kd.int32)"
    odd = f"(kd.SMEM((64,), kd.int32), {spec})"
    lines: list[str] = []
    if union:
        kinds = [c.chance(0.4) for _ in phases]
        p.scratch["members"] = f"kd.RefUnion({', '.join(odd if k else spec for k in kinds)})"
    for number, phase in enumerate(phases):
        text = [line.format(n=f"i * {len(phases)} + {number}") for line in PHASES[phase]]
        if union:
            lines += [f"t = members[{number}]{'[1]' if kinds[number] else ''}", *text]
        else:
            lines += ["def scoped(t):", *(f"    {line}" for line in text), f"kd.run_scoped(scoped, {spec})"]
    p.lines = [f"@kd.loop(0, {turns})", "def _(i):", *(f"    {line}" for line in lines)]


__all__ = ["Program", "generate", "kd"]
