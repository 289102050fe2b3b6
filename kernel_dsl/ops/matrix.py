"""wgmma: asynchronous products of a warpgroup (PTX ISA 9.7.15), their waits, and layout changes by hand."""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from ..accumulator import AccRef, AccSpec, AccType
from ..compiled import Swizzle
from ..diagnostics import of_kind, shown
from ..dtypes import DType
from ..errors import BadArgument, BadArgumentType
from ..errors_hopper import TransformConflict, UnreadAccumulator, WgmmaShape, WgmmaType
from ..ir import ArrayType, Effect, MemorySpace, Op, Value, attr, operand, operands
from ..layout import Layout
from ..layouts import WGMMA, WGMMA_8BIT, WGMMA_TF32, LayoutRule, meta_layout, meta_step, resolve_rule
from ..refs import Ref, View
from ..storage import transformed
from ..target import Feature
from ..trace import current, emit, traced
from ..transforms import check_fields, find_swizzle
from ..values import Array
from .access import view_of
from .broadcast import broadcast_value, convert
from .cast import as_value
from .ref import AllocSmem, check_own_block
from .threads import AliasSmem

__all__ = [
    "layout_cast",
    "set_max_registers",
    "wgmma",
    "wgmma_accumulator_load",
    "wgmma_wait",
]


class AllocAcc(Op, name="alloc_acc", effect=Effect.SYNC, requires=Feature.WGMMA):
    """Registers of an accumulator, zero. PTX `.reg`."""

    type: AccType = attr()

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)

    def spoken(self) -> str:
        return "ACC"


class Wgmma(Op, name="wgmma", effect=Effect.SYNC, requires=Feature.WGMMA):
    """acc += a @ b, asynchronously; one group. PTX `wgmma.mma_async`.

    `a` is a Ref (with `a_view`, (M, K)) or a value in the fragment layout; `b` is a Ref (with `b_view`, (K, N)).
    """

    together = True

    acc: Value = operand()
    a: Value = operand()
    a_offsets: tuple[Value, ...] = operands()
    b: Value = operand()
    b_offsets: tuple[Value, ...] = operands()
    start: tuple[int, int] = attr()
    shape: tuple[int, int] = attr()
    a_view: View | None = attr()
    b_view: View = attr()
    accumulate: bool = attr(True)


class SparseWgmma(Wgmma, name="wgmma_sparse", effect=Effect.SYNC, requires=Feature.WGMMA):
    """`Wgmma` with a sparse `a`: half of it is stored, and `meta` has the positions. PTX `wgmma.mma_async.sp`."""

    together = True

    meta: Value = operand()


class WgmmaWait(Op, name="wgmma_wait", effect=Effect.SYNC, requires=Feature.WGMMA):
    """Wait until at most `pending` groups are in flight. PTX `wgmma.wait_group`.

    `fragments`: register operands of groups in flight, kept in their registers until here.
    """

    together = True

    fragments: tuple[Value, ...] = operands()
    pending: int = attr()


class AccRead(Op, name="acc_read", effect=Effect.SYNC, requires=Feature.WGMMA):
    """A block of an accumulator as a value. PTX `mov`: its registers, after the wait."""

    together = True

    acc: Value = operand()
    start: tuple[int, int] = attr()
    shape: tuple[int, int] = attr()
    layout: Layout = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.shape, self.acc.type.dtype, self.layout),)


class AccWrite(Op, name="acc_write", effect=Effect.SYNC, requires=Feature.WGMMA):
    """Make a block of an accumulator a value. PTX `mov`, to its registers."""

    together = True

    acc: Value = operand()
    x: Value = operand()
    start: tuple[int, int] = attr()


class AccScale(Op, name="acc_scale", effect=Effect.SYNC, requires=Feature.WGMMA):
    """Multiply the rows of an accumulator. PTX `mul`, on its registers, in warps that have a factor other than 1."""

    together = True

    acc: Value = operand()
    factors: Value = operand()


class SetMaxRegisters(Op, name="set_max_registers", effect=Effect.SYNC, requires=Feature.SETMAXNREG):
    """Change the number of registers of each lane of this warpgroup. PTX `setmaxnreg`."""

    together = True

    count: int = attr()
    increase: bool = attr()


# --- accumulators --------------------------------------------------------------------------------


def allocate_acc(spec: AccSpec, name: str = "") -> AccRef:
    """An accumulator for a specification."""
    ref = AccRef(emit(AllocAcc(AccType(spec.shape, spec.dtype, name))).result)
    if spec.value is not None:
        write_accumulator(ref, spec.value)
    return ref


def write_accumulator(acc: AccRef, value: Any) -> None:
    """Overwrite a block. Raises `UnreadAccumulator` if wgmma on it may be in flight."""
    _refuse_in_flight(acc, "a store to an accumulator")
    x = as_value(value, "store", acc.dtype if not isinstance(value, Array) or value.weak else None)
    if x.dtype != acc.dtype:
        raise WgmmaType(op="store", what=f"{x.dtype} into {acc.dtype}", why="", hint="convert with `.astype`")
    x = broadcast_value(x, acc.shape, WGMMA.of(acc.shape))
    emit(AccWrite(acc.root, x, acc.start))


def scale_rows(acc: AccRef, factors: Any) -> None:
    """Multiply each row of an accumulator (M, N) by its factor (M,), both float32, after a wait.

    Raises `UnreadAccumulator` while wgmma on it is in flight, `WgmmaShape` for a block, or factors that don't fit.
    """
    _refuse_in_flight(acc, "scaling an accumulator")
    x = as_value(factors, "scale_rows")
    whole = acc.shape == acc.root.type.shape
    if acc.dtype != dt.float32 or x.dtype != dt.float32 or x.shape != acc.shape[:1] or not whole:
        what = f"{x.dtype} factors of shape {x.shape} for {acc!r}"
        raise WgmmaShape(
            op="scale_rows", what=what, why="a whole float32 accumulator takes a float32 factor a row", hint=""
        )
    emit(AccScale(acc.root, convert(x, WGMMA.reduce(1).of(x.shape))))


def wgmma_accumulator_load(acc: Any, wait_n: int | None = 0) -> Array:
    """The accumulator's value in `Layout.WGMMA`, after waiting until `wait_n` groups are in flight (None: no wait).

    Raises `UnreadAccumulator` if a wgmma on it may still be in flight.
    """
    if not isinstance(acc, AccRef):
        what = f"{of_kind(acc)} is not an accumulator"
        raise BadArgumentType(op="wgmma_accumulator_load", what=what, hint="allocate one with `kd.ACC(...)`")
    if wait_n is not None:
        wgmma_wait(wait_n)
    _refuse_in_flight(acc, "an accumulator load")
    return traced(AccRead(acc.root, acc.start, acc.shape, WGMMA.of(acc.shape)))


def _refuse_in_flight(acc: AccRef, what: str) -> None:
    if any(root is acc.root for root, _, _ in current().in_flight):
        why = "a wgmma on it may still be in flight here"
        hint = "wait first: `kd.wgmma_wait(0)`, or read it with `acc[...]`"
        raise UnreadAccumulator(what=f"{what} before a wait", why=why, hint=hint)


# --- products ------------------------------------------------------------------------------------

# PTX ISA 9.7.15.2: (A, B) dtypes, accumulators
_F8 = ("float8_e4m3fn", "float8_e5m2")
_I8 = ("int8", "uint8")
_ACCUMULATORS = {
    "float16": ("float32", "float16"),
    "bfloat16": ("float32",),
    "float32": ("float32",),
    "float8_e4m3fn": ("float32", "float16"),
    "float8_e5m2": ("float32", "float16"),
    "int8": ("int32",),
    "uint8": ("int32",),
}


def _check_types(a: DType, b: DType, acc: DType, op: str) -> None:
    same = a == b or (a.name in _F8 and b.name in _F8) or (a.name in _I8 and b.name in _I8)
    if not same or a.name not in _ACCUMULATORS:
        why = "operands are both float16, bfloat16, float32 (as tf32), fp8 of either kind, or 8-bit integers"
        raise WgmmaType(op=op, what=f"operands of {a} and {b}", why=why, hint="convert one of them")
    if acc.name not in _ACCUMULATORS[a.name]:
        why = f"{a} operands accumulate in {' or '.join(_ACCUMULATORS[a.name])}"
        raise WgmmaType(
            op=op,
            what=f"an accumulator of {acc} for operands of {a}",
            why=why,
            hint="allocate the accumulator with that dtype",
        )


def k_step(dtype: DType) -> int:
    """Elements of K that one instruction takes: 32 bytes."""
    return 32 // dtype.itemsize


def wgmma(acc: Any, a: Any, b: Any, *, accumulate: bool = True, sparse_meta: Any = None) -> None:
    """acc += a @ b (acc = a @ b without `accumulate`), asynchronously.

    acc (M, N) is an accumulator, a (M, K) an SMEM Ref or a value, b (K, N) an SMEM Ref.

    Transposed operands are Refs' `.T`; 8-bit and float32 operands must be contiguous along K. Each call is one group
    for `wgmma_wait`. Until that wait, do not access operands and accumulator. Refs without transforms get the tiling
    and swizzle they need. Raises `WgmmaShape`, `WgmmaType`, `TransformConflict`, `ClusterUse` for another block's SMEM.

    With `sparse_meta`, a value, half of a is stored: two of each four neighbours along K, or of float32 one of two, in their
    order: a is (M, K / 2). `sparse_meta` is uint32 (K / 64, 2 M), of float32 (K / 32, 2 M): [j, 128 i + l] is what lane l
    gives for rows 64 i to 64 i + 63 (PTX ISA 9.7.15.6.1), 4 bits for each four (two) elements, from K 64 j (32 j) on. Let l be
    32 w + 4 g + t and r be 64 i + 16 w + g: the low half has 4 t to 4 t + 3 of these of row r, the high half those of row r + 8;
    of 8 bits the 32 bits have 8 (t / 2) to 8 (t / 2) + 7 of row r + 8 (t % 2). The bits are x + 4 y for elements x < y of
    four, 4 and 14 for the first and the second of two. K is a multiple of 64 (32). `kd.library.sparse_compress` makes both.
    """
    op = "wgmma"
    if not isinstance(acc, AccRef):
        raise BadArgumentType(op=op, what=f"{shown(acc)} is not an accumulator", hint="allocate one with `kd.ACC(...)`")
    if not isinstance(b, Ref) or b.memory_space is not MemorySpace.SMEM:
        raise BadArgumentType(op=op, what=f"b is {shown(b)}", hint="b is a Ref in SMEM")
    if not isinstance(a, (Ref, Array)) or (isinstance(a, Ref) and a.memory_space is not MemorySpace.SMEM):
        raise BadArgumentType(op=op, what=f"a is {shown(a)}", hint="a is a Ref in SMEM or a value")
    _check_types(a.dtype, b.dtype, acc.dtype, op)
    _check_shapes(acc, a, b, 1 if sparse_meta is None else 2)
    meta = None if sparse_meta is None else _metadata(sparse_meta, a)
    in_flight = current().in_flight
    a_view: View | None = None
    a_root: Value = acc.root
    a_offsets: tuple[Value, ...] = ()
    if isinstance(a, Ref):
        a_view, a_offsets = operand_view(a, 0, "a")
        a_root = a.root
        fragment: Value | None = None
    else:
        a_root = fragment = convert(a, fragment_rule(a.dtype).of(a.shape))
    b_view, b_offsets = operand_view(b, 1, "b")
    rest = (acc.root, a_root, a_offsets, b.root, b_offsets, acc.start, acc.shape, a_view, b_view, bool(accumulate))
    if meta is not None:
        _check_span(b)
    emit(Wgmma(*rest) if meta is None else SparseWgmma(*rest, meta))
    in_flight.append((acc.root, tuple([x for x in (fragment, meta) if x is not None]), current().region))


def _metadata(given: Any, a: Any) -> Value:
    """Metadata of a sparse A as an operand. Raises `BadArgumentType`, `WgmmaType`, `WgmmaShape`."""
    op = "wgmma"
    if not isinstance(given, Array):
        hint = "load it: a uint32 value (K / 64, 2 M)"
        raise BadArgumentType(op=op, what=f"sparse_meta is {shown(given)}", hint=hint)
    if given.dtype != dt.uint32:
        hint = "bitcast it to uint32, or make it by `kd.library.sparse_compress`"
        raise WgmmaType(
            op=op, what=f"sparse_meta of {given.dtype}", why="a lane gives a register of 32 bits", hint=hint
        )
    step = meta_step(a.dtype)
    M, K = a.shape[0], 2 * a.shape[1]
    if given.shape != (K // step, 2 * M) or K % step:
        what = f"sparse_meta {given.shape} for a {a.shape} of {a.dtype}"
        why = f"it is (K / {step}, 2 M) for an a of (M, K / 2), and K a multiple of {step}"
        raise WgmmaShape(op=op, what=what, why=why, hint="pad K with zeros")
    return convert(given, meta_layout(given.shape))


def _check_span(b: Ref) -> None:
    """Raise `TransformConflict` if a swizzle's row is shorter than the 64 bytes along K that one instruction takes."""
    type, view = b.type, b.view()[0]
    if view.dims[0].axis == len(type.shape) - 1 and type.swizzle is Swizzle.B32:
        why = "beside a sparse a one instruction takes 64 bytes along K: rows of 32 bytes in a swizzle are too short"
        raise TransformConflict(ref=repr(b), why=why)


def fragment_rule(dtype: DType) -> LayoutRule:
    """The layout of A in registers."""
    return {1: WGMMA_8BIT, 2: WGMMA, 4: WGMMA_TF32}[dtype.itemsize]


def _check_shapes(acc: AccRef, a: Any, b: Ref, times: int) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] * times != b.shape[0] or acc.shape != (a.shape[0], b.shape[1]):
        what = f"acc {acc.shape}, a {a.shape}, b {b.shape}"
        why = f"shapes are acc (M, N), a (M, K{' / 2' if times > 1 else ''}) and b (K, N)"
        raise WgmmaShape(op="wgmma", what=what, why=why, hint="transpose with `.T`, or slice with `.at[...]`")
    if a.shape[1] % k_step(a.dtype):
        why = f"one instruction takes {k_step(a.dtype)} elements of K"
        raise WgmmaShape(op="wgmma", what=f"K is {a.shape[1]}", why=why, hint="pad K with zeros")


def operand_view(ref: Ref, mn: int, word: str) -> tuple[View, tuple[Value, ...]]:
    """The view of an SMEM operand. Its root gets the transforms that it needs. `mn`: the dimension other than K."""
    check_own_block(ref, "wgmma")
    view, offsets = view_of(ref)
    last = len(ref.type.shape) - 1
    axes = [d.axis for d in view.dims]
    if last not in axes or any(d.step != 1 for d in view.dims) or len(set(axes)) != 2 or last - 1 not in axes:
        why = "an operand walks the last two axes of its buffer, in steps of 1"
        raise WgmmaShape(op="wgmma", what=f"{word} is {ref!r}", why=why, hint="index the leading axes with integers")
    k_major = axes[1 - mn] == last
    if not k_major and ref.dtype.itemsize != 2:
        why = "only 16-bit operands may be contiguous along the other dimension"
        hint = (
            "store the transpose in SMEM, with K as the last axis, and pass its `.T`" if mn else "make K the last axis"
        )
        raise WgmmaShape(op="wgmma", what=f"{word} is {ref.dtype} and not contiguous along K", why=why, hint=hint)
    infer_transforms(ref, k_major)
    return view, offsets


def infer_transforms(ref: Ref, k_major: bool) -> None:
    """Give a plain buffer the tiling and swizzle that matrix operands need. Raises `TransformConflict`.

    Rows of K need a swizzle. Rows of the other dimension that are no multiple of 32 bytes are tiled by 16 bytes.
    """
    type = ref.type
    if not k_major and type.tiling and type.tiling[-1] * type.dtype.itemsize == 16:
        return
    if type.swizzle is not Swizzle.NONE:
        row = type.tiling[-1] if type.tiling else type.shape[-1]
        if row * type.dtype.itemsize != type.swizzle.value:
            raise TransformConflict(ref=repr(ref), why="wgmma needs tiles as wide as the swizzle")
        return
    if type.tiling or not isinstance(ref.root.op, (AllocSmem, AliasSmem)):
        why = "wgmma needs a swizzle, and this buffer has a tiling without one, or is a bitcast"
        raise TransformConflict(ref=repr(ref), why=why)
    if ref.root in current().aliased:
        why = "a bitcast, reshape or cluster_ref of it was made while it had no transforms"
        raise TransformConflict(ref=repr(ref), why=why)
    span = find_swizzle(type.shape[-1] * type.dtype.bits, "an operand of wgmma")
    if span == 16 and k_major:
        why = "a row of an operand is a multiple of 32 bytes"
        raise WgmmaShape(op="wgmma", what=f"{ref!r} has short rows", why=why, hint="make the last axis longer")
    tiling, swizzle = (8, span // type.dtype.itemsize), Swizzle(span if span > 16 else 0)
    check_fields(type.shape, type.dtype, tiling, swizzle)
    made = transformed(type, tiling, swizzle)
    if isinstance(ref.root.op, AliasSmem) and ref.root.op.offset % made.alignment:
        raise TransformConflict(ref=repr(ref), why="in its RefUnion it does not start at a multiple of 1024 bytes")
    ref.root.type = made
    ref.root.op.type = made


def wgmma_wait(n: int) -> None:
    """Wait until at most `n` of this warpgroup's wgmma groups are in flight. Raises `BadArgument` unless 0 <= n <= 7."""
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= 7:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgument(op="wgmma_wait", what=f"n={shown(n)}", hint="a static int from 0 to 7")
    trace = current()
    fragments: list[Value] = []
    for _, held, region in trace.in_flight:
        # operands made in another region may not be visible here; then they are no longer in flight
        if region is trace.region:
            fragments += held
    emit(WgmmaWait(tuple(fragments), n))
    trace.in_flight[:] = trace.in_flight[-n:] if n else []


# --- layouts and registers -----------------------------------------------------------------------


def layout_cast(x: Any, layout: Any) -> Array:
    """`x` in a layout that later operations keep: a `kd.Layout`, or a rule such as `kd.Layout.WGMMA`.

    Shape and dtype stay. Raises `BadArgumentType` for an object that is no layout, `BadArgument` for one that does not cover `x`.
    """
    value = as_value(x, "layout_cast")
    return convert(value, resolve_rule(layout, value.shape, "layout_cast"))


def set_max_registers(n: int, *, action: str) -> None:
    """Give this warpgroup `n` registers a lane: `action` is "increase" (waits for free ones) or "decrease".

    PTX ISA 9.7.19.5 (setmaxnreg): a multiple of 8 from 24 to 256. Raises `BadArgument`.
    """
    if action not in ("increase", "decrease"):
        raise BadArgument(op="set_max_registers", what=f"action={shown(action)}", hint='"increase" or "decrease"')
    if isinstance(n, bool) or not isinstance(n, int) or n % 8 or not 24 <= n <= 256:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgument(op="set_max_registers", what=f"n={shown(n)}", hint="a multiple of 8 from 24 to 256")
    emit(SetMaxRegisters(n, action == "increase"))
