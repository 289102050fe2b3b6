"""Steps of random bodies: lines of elements, whole axes and memory, with what the model computes for them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tests.fuzz.choose import Choices
from tests.language.test_convert import random_layout

INTS = ("int32", "int32", "uint32", "int64", "uint64", "int16", "uint8", "int8", "uint16")
FLOATS = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
MOST = 300  # elements of a value: a sort in a loop in a branch is long to interpret


class Body:
    """Lines of a body, and what the model says of every name: so the generator knows shapes and dtypes."""

    def __init__(self, c: Choices, names: dict[str, Any], depth: int = 0) -> None:
        self.c, self.depth = c, depth
        self.names = names
        self.lines: list[str] = []
        self.live: list[str] = []  # values that later lines may use

    def nested(self) -> Body:
        inner = Body(self.c, dict(self.names), self.depth + 1)
        inner.live = list(self.live)
        return inner

    def fresh(self) -> str:
        self.names["count"][0] += 1
        return f"v{self.names['count'][0]}"

    def run(self, lines: list[str], *made: str) -> None:
        """Add lines, compute them, and keep the values that they make."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec("\n".join(lines), self.names)
        self.lines += lines
        self.live += [name for name in made if self.value(name).size <= MOST]

    def value(self, name: str) -> np.ndarray:
        return np.asarray(self.names[name])

    def make(self, text: str) -> str:
        name = self.fresh()
        self.run([f"{name} = {text}"], name)
        return name

    def pick(self, test: Any = lambda v: True) -> str | None:
        fitting = [name for name in self.live if test(self.value(name))]
        return self.c.one(fitting[-7:]) if fitting else None

    def an_int(self, least: int = 0, *dtypes: str) -> str | None:
        """A value of ints, of at least this rank and one element."""
        return self.pick(
            lambda v: v.dtype.kind in "iu" and v.ndim >= least and v.size and (not dtypes or v.dtype.name in dtypes)
        )

    def scalar(self) -> str:
        """A rank-0 int32 from 0 to 3 that the kernel knows when it runs."""
        x = self.an_int() or self.make("kd.arange(5)")
        return f"kd.astype(kd.max({x} & 3), kd.int32)"

    def pair(self) -> tuple[str, str] | None:
        """Two values of one shape, the first of ints."""
        x = self.an_int(1)
        if x is None:
            return None
        shape = self.value(x).shape
        return x, self.pick(lambda v: v.shape == shape) or x


def named(dtype: Any) -> str:
    name = np.dtype(dtype).name
    return f"kd.{'bool_' if name == 'bool' else name}"


STEPS: list[tuple[Any, int]] = []


def step(weight: int) -> Any:
    def enter(make: Any) -> Any:
        STEPS.append((make, weight))
        return make

    return enter


# --- elements ------------------------------------------------------------------------------------


@step(6)
def arithmetic(b: Body) -> None:
    x = b.an_int()
    if x is None:
        return
    v = b.value(x)
    y = b.pick(lambda w: w.dtype == v.dtype and (w.shape == v.shape or not w.ndim or w.shape == v.shape[-1:])) or x
    form = b.c.one(
        ["{x} + {y}", "{x} * 3 - {y}", "{x} ^ {y}", "kd.where({x} > {y}, {x}, {y} + 1)", "kd.mulhi({x}, {y})",
         "kd.maximum({x}, {y})", "({x} & 7) << 1", "kd.gcd({x} & 60, {y} & 60)"]
    )  # fmt: skip
    b.make(form.format(x=x, y=y))


@step(4)
def cast(b: Body) -> None:
    """Ints to ints, or the numbers 0 to 7 to floats, with a few special ones."""
    x = b.an_int()
    if x is None:
        return
    if b.c.chance(0.5):
        b.make(f"kd.astype({x}, kd.{b.c.one(INTS)})")
        return
    dtype = b.c.one(FLOATS)
    small = b.make(f"kd.astype({x} & 7, kd.{dtype})")
    if b.c.chance(0.5):
        special = b.c.one(["float('nan')", "-0.0", "-2.0"])
        b.make(f"kd.where({x} & 15 == 3, {special}, {small})")


@step(4)
def spread(b: Body) -> None:
    """A layout of its own for a value: results never depend on it."""
    x = b.pick(lambda v: v.ndim > 0 and v.size > 1)
    if x is None:
        return
    made = random_layout(b.value(x).shape, b.c.rng)
    b.make(f"kd.layout_cast({x}, kd.Layout({made.rank}, {made.regs}, {made.lanes}, {made.warps}))")


@step(5)
def move(b: Body) -> None:
    x = b.pick(lambda v: v.ndim > 0)
    if x is None:
        return
    v, c = b.value(x), b.c
    kind = c.one(["reshape", "transpose", "flip", "slice", "concatenate", "stack", "pad", "expand", "steps"])
    axis = c.below(v.ndim)
    if kind == "reshape":
        n = v.size
        parts = [f for f in (1, 2, 3, 4, 5, 7, 8, 16) if n % f == 0 and n]
        b.make(f"{x}.reshape({c.one(parts) if parts else 0}, {-1 if n else 3})")
    elif kind == "transpose":
        b.make(f"kd.transpose({x}, {tuple(c.rng.permutation(v.ndim).tolist())})")
    elif kind == "flip":
        b.make(f"kd.flip({x}, {axis - v.ndim})")
    elif kind in ("slice", "steps") and v.shape[axis]:
        low, high = sorted((c.below(v.shape[axis]), c.below(v.shape[axis])))
        inner = f"{low}:{high + 1}" if kind == "slice" else f"{low}::{c.between(1, 3)}"
        b.make(f"{x}[{':, ' * axis}{inner}]")
    elif kind in ("concatenate", "stack"):
        y = b.pick(lambda w: w.shape == v.shape and w.dtype == v.dtype)
        b.make(f"kd.{kind}([{x}, {y or x}], axis={axis})")
    elif kind == "pad":
        widths = [(c.between(0, 2), c.between(0, 2)) for _ in v.shape]
        b.make(f"kd.pad({x}, {widths})")
    elif kind == "expand" and v.ndim < 4:
        b.make(f"kd.expand_dims({x}, {axis})")


# --- whole axes ----------------------------------------------------------------------------------


@step(4)
def reduction(b: Body) -> None:
    x = b.an_int(1)
    if x is None:
        return
    v, name = b.value(x), b.c.one(["sum", "max", "argmax", "argmin", "sum"])
    axis = b.c.below(v.ndim) - b.c.one([0, v.ndim])
    keep = ", keepdims=True" if name in ("sum", "max") and b.c.chance(0.5) else ""
    b.make(f"kd.{name}({x}, axis={b.c.one([axis, axis, None])}{keep})")


@step(5)
def running(b: Body) -> None:
    x = b.an_int(1)
    if x is None:
        return
    axis = b.c.one([*range(-b.value(x).ndim, b.value(x).ndim), None])
    ends = f"reverse={b.c.chance(0.5)}, exclusive={b.c.chance(0.5)}"
    b.make(f"kd.{b.c.one(['cumsum', 'cumprod', 'cummax', 'cummin'])}({x}, {axis}, {ends})")


SCANS = {
    "affine": ("(a[0] * b[0], a[1] * b[0] + b[1])", "({x}, {x} * 5 + 1)"),
    "heads": ("(a[0] | b[0], kd.where(b[0], b[1], a[1] + b[1]))", "({x} & 3 == 1, {x})"),
    "nest": (
        "{{'best': kd.maximum(a['best'], b['best']), 'at': [kd.where(b['best'] > a['best'], b['at'][0], a['at'][0])]}}",
        "{{'best': {x}, 'at': [{y}]}}",
    ),
    "later": ("[kd.where(b[0], b[1], a[1]) if j else a[0] | b[0] for j in (0, 1)]", "[{x} & 1 == 0, {y}]"),
    "captured": ("a + b + {s}", "{x}"),
    "branches": ("kd.where(a > b, a, b)", "{x}"),
}


@step(7)
def associative(b: Body) -> None:
    """Trees of values by functions that do not commute, one of which closes over a number of the body."""
    both = b.pair()
    if both is None:
        return
    x, y = both
    v = b.value(x)
    kind = b.c.one(list(SCANS))
    s = b.make(f"kd.astype({b.scalar()}, {named(v.dtype)})") if kind == "captured" else ""
    function, tree = (text.format(x=x, y=y, s=s) for text in SCANS[kind])
    axis = b.c.below(v.ndim) - b.c.one([0, v.ndim])
    name = b.fresh()
    text = f"kd.associative_scan(lambda a, b: {function}, {tree}, axis={axis}, reverse={b.c.chance(0.5)})"
    parts = {"nest": ["['best']", "['at'][0]"], "captured": [""], "branches": [""]}.get(kind, ["[0]", "[1]"])
    b.run([f"{name} = {text}"])
    for part in parts:
        b.make(f"{name}{part}")


@step(7)
def sorting(b: Body) -> None:
    x = b.pick(lambda v: v.ndim > 0 and v.size > 0)
    if x is None:
        return
    v, c = b.value(x), b.c
    axis = c.below(v.ndim) - c.one([0, v.ndim])
    y = b.pick(lambda w: w.shape == v.shape) or x
    kind = c.one(["sort", "values", "argsort", "top_k", "along", "gather"])
    if kind == "sort":
        b.make(f"kd.sort({x}, axis={c.one([axis, None])}, descending={c.chance(0.5)})")
    elif kind == "values":
        names = [b.fresh() for _ in range(3)]
        b.run([f"{', '.join(names)} = kd.sort({x}, {y}, {x}, axis={axis}, descending={c.chance(0.5)})"], *names)
    elif kind == "argsort":
        b.make(f"kd.argsort({x}, {axis}, descending={c.chance(0.5)})")
    elif kind == "top_k":
        names = [b.fresh(), b.fresh()]
        b.run([f"{', '.join(names)} = kd.top_k({x}, {c.between(1, v.shape[axis])}, {axis})"], *names)
    elif kind == "along":
        b.make(f"kd.take_along_axis({y}, kd.argsort({x}, {axis}), {axis})")
    else:
        index = b.pick(lambda w: w.ndim == v.ndim and w.dtype.kind in "iu")
        if index is not None and _along(v.shape, b.value(index).shape, axis % v.ndim):
            count = min(v.shape[axis] + 1, 100)
            b.make(f"kd.take_along_axis({x}, {index} % {count}, {axis})")


def _along(shape: Any, other: Any, axis: int) -> bool:
    return all(n == m or i == axis for i, (n, m) in enumerate(zip(shape, other, strict=True)))


@step(2)
def search(b: Body) -> None:
    table = b.pick(lambda v: v.ndim == 1 and v.dtype.kind in "iu" and v.size > 0)
    if table is None:
        return
    dtype = b.value(table).dtype
    x = b.pick(lambda w: w.dtype == dtype) or table
    b.make(f"kd.searchsorted(kd.sort({table}), {x}, side={b.c.one(['left', 'right'])!r})")


@step(5)
def random(b: Body) -> None:
    """Seeds and offsets that the kernel knows when it runs, some beyond 32 bits."""
    x = b.an_int(0, "int32", "int64", "uint64", "uint8")
    c, shape = b.c, b.c.shape(200)
    seed = c.one(["0", "2**63 + 5", "-7", b.scalar()] + [f"{x}.reshape(-1)[0]"] * bool(x and b.value(x).size))
    offset = c.one(["0", "3", "2**32 - 2", f"{b.scalar()} * 7"])
    kind = c.one(["bits", "bits", "uniform", "bernoulli"])
    arguments = f"{seed}, {c.one(['0.25, ', '0.0, ', '1.0, ']) if kind == 'bernoulli' else ''}{shape}, offset={offset}"
    made = b.make(f"kd.random.{kind}({arguments})")
    if kind == "uniform":
        b.make(f"kd.astype({made} * 16777216.0, kd.uint32)")


@step(5)
def product(b: Body) -> None:
    """np.matmul's shapes, of int8 and of small numbers in floats; an operand may have a layout of its own."""
    x = b.pick(lambda v: v.dtype.kind in "iu" and 2 <= v.ndim <= 3 and v.size and max(v.shape[-2:]) <= 48)
    if x is None:
        return
    c, v = b.c, b.value(x)
    dtype = c.one(["int8", "int8", "uint8", "int32", "bfloat16", "float16", "float32", "float64", "float8_e4m3fn"])
    left = b.make(f"kd.astype({x} & 7, kd.{dtype})")
    order = (*range(v.ndim - 2), v.ndim - 1, v.ndim - 2)
    right = b.make(f"kd.transpose({left}, {order})")
    if v.ndim == 3 and c.chance(0.4):
        right = b.make(f"{right}[0]")
    acc = ""
    if c.chance(0.4):
        shape = np.matmul(b.value(left).astype(np.float32), b.value(right).astype(np.float32)).shape
        kind = {"int8": "int32", "uint8": "int32", "int32": "int32", "float64": "float64"}.get(dtype, "float32")
        acc = f", acc=kd.full({shape}, 3, kd.{kind})"
    operator = not acc and dtype in ("int32", "float64") and c.chance(0.5)  # of others NumPy's has another dtype
    made = b.make(f"{left} @ {right}" if operator else f"kd.{c.one(['dot', 'matmul'])}({left}, {right}{acc})")
    if b.value(made).dtype.kind == "f":
        b.make(f"kd.astype({made}, kd.int32)")


# --- memory --------------------------------------------------------------------------------------


@step(5)
def loading(b: Body) -> None:
    ref = b.c.one(b.names["refs"])
    shape, c = b.names[ref].array.shape, b.c
    i = c.one(["0", b.scalar()])
    index = [
        c.one([f"kd.ds({i} + {c.between(-2, n)}, {c.between(1, n + 2)})", f"kd.ds({c.below(n)}, {c.between(1, n)}, {c.between(1, 2)})"])
        if c.chance(0.5) or b.names["dims"]
        else "slice(None)"
        for n in shape
    ]  # fmt: skip
    made = b.make(f"kd.load({ref}, ({', '.join(index)},))" if c.chance(0.5) else f"{ref}[{', '.join(index)}]")
    if b.value(made).dtype.kind not in "iuf":
        b.live.remove(made)


SCRATCH = [
    ["s[...] = {x}"],
    ["s[...] = {x}", "s[...] = s[...] + {x}"],
    ["s[...] = {x}", "kd.atomic_add(s, {x})"],
    ["s[...] = {x}", "kd.atomic_max(s, {x} ^ 3, mask={x} & 1 == 0)"],
    ["s.T[...] = kd.transpose({x})", "@kd.when({p})", "def _():", "    s[...] = s[...] + 1"],
    ["s[...] = {x}", "@kd.loop(0, {t})", "def _(i):", "    s[...] = s[...] * 3 + kd.astype(i, s.dtype)"],
    ["s[...] = {x}", "@kd.loop(0, {t})", "def _(i):", "    s[0] = s[0] + s[kd.astype(i % {n}, kd.int32)]"],
]


@step(5)
def scratch(b: Body) -> None:
    """A value through SMEM, changed there, and back in another view."""
    x = b.an_int(1, "int32", "uint32", "int64", "uint64") if not b.names["warpgroups"] else None
    if x is None:
        return
    v, name, c = b.value(x), b.fresh(), b.c
    p, t = b.make(f"{b.scalar()} == 1"), b.scalar()
    inner = [line.format(x=x, p=p, t=t, n=v.shape[0]) for line in c.one(SCRATCH)]
    back = c.one(
        ["s[...]", "s.T[...]", f"s.reshape({v.size})[...]", "s.at[0][...]", f"kd.load(s, kd.ds(0, {v.shape[0]}))"]
    )
    text = f"{name} = kd.run_scoped({name}_in, kd.SMEM({v.shape}, {named(v.dtype)}))"
    b.run([f"def {name}_in(s):", *(f"    {line}" for line in inner), f"    return {back}", text], name)
