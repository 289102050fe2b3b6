"""Matrix products of values and Refs: mma.sync by hand, and `dot`, which picks the instruction and the layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import dtypes as dt
from ..accumulator import AccSpec
from ..diagnostics import shown
from ..dtypes import DType
from ..errors import BadArgument, ProductShapes, ShapeMismatch, UnsupportedDType
from ..errors_hopper import WgmmaType
from ..indices import ds
from ..ir import MemorySpace, Op, RefType, Value, array_type, operand
from ..layout import blocked
from ..layouts import mma_acc, mma_lhs, mma_rhs
from ..promote import promote
from ..refs import Ref
from ..target import Feature
from ..trace import current, resolve, traced
from ..values import Array
from .access import view_of
from .broadcast import broadcast_shapes, broadcast_value, convert
from .cast import as_value, astype
from .join import stack
from .ref import AllocSmem, is_peer
from .scaled_dot import check_scales, scaled, thrice
from .scope import scope

__all__ = ["dot", "matmul", "mma"]

_MMA = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")
_FP8 = ("float8_e4m3fn", "float8_e5m2")
_I8 = ("int8", "uint8")
_TF32 = ("tf32", "tf32x3")  # precisions of products that are float32


def _mixes(a: DType, b: DType) -> bool:
    """Whether tensor cores multiply these two dtypes without a conversion."""
    return a == b or (a.name in _FP8 and b.name in _FP8) or (a.name in _I8 and b.name in _I8)


class Mma(Op, name="mma"):
    """acc + a @ b on values in the fragments' layouts. PTX `mma.sync`. Float32 operands are rounded to tf32."""

    acc: Value = operand()
    a: Value = operand()
    b: Value = operand()

    def infer(self) -> tuple[Any, ...]:
        return (array_type(self.acc),)

    def needs(self) -> Feature:
        return Feature.MMA_FP8 if array_type(self.a).dtype.name in _FP8 else Feature.MMA_SYNC


def accumulator_dtype(dtype: DType) -> DType:
    """The dtype of sums and results of products of operands of this dtype."""
    if dtype.is_integer or dtype.is_bool:
        return dt.int64 if dtype.bits == 64 else dt.int32
    return dt.float64 if dtype == dt.float64 else dt.float32


def mma(acc: Any, a: Any, b: Any) -> Array:
    """acc + a @ b by mma.sync: a (M, K) and b (K, N) values of any shape, acc (M, N) float32, int32 or float64.

    Dtypes are one of 16 bits, fp8 of either kind, 8-bit integers of either kind, float64, or float32 (as tf32). Raises
    `WgmmaType`, `ShapeMismatch`.
    """
    x, y = as_value(a, "mma"), as_value(b, "mma")
    total = as_value(acc, "mma")
    _check_shapes(x.shape, y.shape, "mma")
    if not _mixes(x.dtype, y.dtype) or (x.dtype.name not in _MMA and x.dtype not in (dt.float32, dt.float64)):
        why = "operands are both float16, bfloat16, fp8 of either kind, 8-bit integers, float64, or float32 as tf32"
        raise WgmmaType(op="mma", what=f"operands of {x.dtype} and {y.dtype}", why=why, hint="convert one of them")
    want = accumulator_dtype(x.dtype)
    if total.dtype != want:
        hint = f"start from `kd.zeros(shape, kd.{want})`"
        raise WgmmaType(op="mma", what=f"an accumulator of {total.dtype}", why=f"it must be {want}", hint=hint)
    shape = (x.shape[0], y.shape[1], x.shape[1])
    layout = mma_acc(shape[:2])
    total = broadcast_value(total, shape[:2], layout)
    item = x.dtype.itemsize
    result = traced(Mma(total, convert(x, mma_lhs(shape, item)), convert(y, mma_rhs(shape, item))))
    # a fragment spreads even an axis of extent 1 over lanes; later broadcasts along it must not see that
    return convert(result, blocked(shape[:2])) if 1 in shape[:2] else result


def _check_shapes(a: tuple[int, ...], b: tuple[int, ...], op: str) -> None:
    if len(a) != 2 or len(b) != 2:
        hint = "give (M, K) and (K, N)"
        raise ProductShapes(op=op, shapes=f"{a} and {b}", why=f"the operands of `{op}` here are matrices", hint=hint)
    _check_depths(a, b, op)


def _check_depths(a: tuple[int, ...], b: tuple[int, ...], op: str) -> None:
    if a[-1] != b[-2]:
        why = f"K is {a[-1]}, the last extent of the first operand, and {b[-2]}, the last but one of the second"
        hint = "transpose or reshape one operand, so that they are (..., M, K) and (..., K, N)"
        raise ProductShapes(op=op, shapes=f"{a} and {b}", why=why, hint=hint)


def _check_total(acc: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if acc != shape:
        why = f"the product is {shape}, and acc is added to it"
        raise ProductShapes(op="dot", shapes=f"into an acc of shape {acc}", why=why, hint="give an acc of that shape")


def _batch_axes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The axes before the last two, broadcast as NumPy does. Raises `ShapeMismatch`, `ProductShapes`."""
    pairs = zip(reversed(a[:-2]), reversed(b[:-2]), strict=False)
    _check_depths(a, b, "dot")
    if any(n != m and 1 not in (n, m) for n, m in pairs):
        raise ShapeMismatch(op="dot", shapes=f"{a} and {b}")
    return broadcast_shapes([a[:-2], b[:-2]], "dot")


def dot(
    a: Any,
    b: Any,
    *,
    acc: Any = None,
    precision: str | None = None,
    out_dtype: Any = None,
    a_scale: Any = None,
    b_scale: Any = None,
) -> Array:
    """a @ b, plus `acc`: a (..., M, K) and b (..., K, N) are values or Refs of any dtypes that promote. `a @ b` is the same.

    Axes before the last two are a batch: they broadcast, and each index along them is one product, as in `np.matmul`.
    Sums are float32 (int32 for integers, float64 for float64); so is the result, unless `out_dtype` names another
    dtype. float32 products are exact unless `precision="tf32"`, which rounds operands, or `"tf32x3"`, which multiplies
    high and low parts of them in tf32, about as accurate as float32; an infinite operand gives NaN. Both are
    for operands that promote to float32. `"highest"` multiplies float8 as float16, as tensor cores keep 14 bits of float8
    sums. Tensor cores multiply the dtypes that they know: by wgmma if b is a Ref in SMEM and the target has it, else by
    mma.sync. Lanes multiply other dtypes. Vectors are treated as in NumPy.

    Scales of matrices are float32 or float8_e8m0fnu values or Refs. `a_scale`: a factor for all, (M,) or (M, 1) for each row, or
    (M, ceil(K/n)), also for each n of K, where n is 128, 64, 32 (as in MX formats) or 16, the first that fits the shape;
    `b_scale`: for all, (N,) or (1, N) for each column, or (ceil(K/n), N) or (ceil(K/128), ceil(N/128)). The result is then
    float32, a sum of the scaled products of n of K each.

    Raises `ShapeMismatch`, `ProductShapes`, `BadArgument`, `NoCommonDType`.
    """
    if precision not in (None, "highest", *_TF32):
        raise BadArgument(op="dot", what=f"precision={shown(precision)}", hint='None, "highest", "tf32" or "tf32x3"')
    x, y = _operand(a), _operand(b)
    common = _common(x.dtype, y.dtype, precision)
    if a_scale is not None or b_scale is not None:
        result = _scaled(x, y, acc, a_scale, b_scale, precision)
        return result if out_dtype is None else astype(result, out_dtype)
    if not x.shape or not y.shape:
        why, hint = "a number has no rows and columns", "scale by it: `x * y`"
        raise ProductShapes(op="dot", shapes=f"{x.shape} and {y.shape}", why=why, hint=hint)
    squeeze: tuple[int, ...] = ()
    if len(x.shape) == 1:
        x, squeeze = _value(x)[None, :], (-2,)
    if len(y.shape) == 1:
        y, squeeze = _value(y)[:, None], (*squeeze, -1)
    batch = _batch_axes(x.shape, y.shape)
    result = _products(x, y, acc, common, precision, batch)
    if squeeze:
        from .shape import squeeze as drop

        result = drop(result, squeeze)
    return result if out_dtype is None else astype(result, out_dtype)


matmul = dot


def _common(a: DType, b: DType, precision: str | None) -> DType:
    """The dtype in which operands are multiplied. Raises `BadArgument` for a precision that it does not have."""
    common = a if _mixes(a, b) else promote([(a, False), (b, False)])[0]
    if common.is_packed or common == dt.complex64:
        raise UnsupportedDType(op="dot", dtype=common, hint=common.only_copied)
    if precision in _TF32 and common != dt.float32:
        given = a if a == b else f"{a} and {b}"
        hint = "it rounds float32 operands: leave it out, or convert them with `astype(kd.float32)`"
        raise BadArgument(op="dot", what=f"precision={shown(precision)} for operands of {given}", hint=hint)
    return common


def _operand(x: Any) -> Any:
    return x if isinstance(x, Ref) else as_value(x, "dot")


def _value(x: Any) -> Array:
    return x[...] if isinstance(x, Ref) else x


def _products(x: Any, y: Any, acc: Any, common: DType, precision: str | None, batch: tuple[int, ...]) -> Array:
    """The product for each index along the batch axes: on tensor cores one by one, by lanes all together."""
    shape = (*batch, x.shape[-2], y.shape[-1])
    want = accumulator_dtype(common)
    total = None if acc is None else astype(as_value(acc, "dot"), want)
    if total is not None:
        _check_total(total.shape, shape)
    if 0 in shape or not x.shape[-1]:
        return _zeros(shape, want) if total is None else total
    if len(x.shape) == len(y.shape) == 2:
        return _product(x, y, total, common, precision)
    if not _by_tensor_cores(common, precision):
        return _by_lanes(x, y, _zeros(shape, want) if total is None else total, want)
    with scope():
        sides = [_placed(v) for v in (x, y)]
        sums = None if total is None else _placed(total)

        def product(place: tuple[int, ...]) -> Array:
            left, right = (_part(v, place) for v in sides)
            return _product(left, right, None if sums is None else _value(_part(sums, place)), common, precision)

        return _each(batch, (), product)


def _by_tensor_cores(common: DType, precision: str | None) -> bool:
    return common.name in _MMA or precision in _TF32


def _each(batch: tuple[int, ...], place: tuple[int, ...], product: Callable[[tuple[int, ...]], Array]) -> Array:
    """The products of all batch indices that begin with `place`, stacked."""
    if not batch:
        return product(place)
    return stack([_each(batch[1:], (*place, i), product) for i in range(batch[0])])


def _placed(x: Any) -> Any:
    """An operand whose matrices can be sliced: a Ref, a value of which each lane holds the whole batch, or one in SMEM."""
    if isinstance(x, Ref) or x.ndim == 2:
        return x
    bits = resolve(x.type.layout).bits
    return x if all(b is None or b[0] >= x.ndim - 2 for b in bits) else _HeldOperands(_in_memory(x))


class _HeldOperands:
    """A value in SMEM, whose parts are loaded as values."""

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.shape = ref.shape


def _part(x: Any, place: tuple[int, ...]) -> Any:
    """The matrix at a batch index. x has the last of the batch axes; one of extent 1 has one matrix for all indices."""
    own = x.shape[:-2]
    index = tuple(0 if n == 1 else i for n, i in zip(own, place[len(place) - len(own) :], strict=True))
    if not index:
        return x
    if isinstance(x, _HeldOperands):
        return x.ref[index]
    return x.at[index] if isinstance(x, Ref) else x[index]


def _product(x: Any, y: Any, total: Array | None, common: DType, precision: str | None) -> Array:
    shape = (x.shape[0], y.shape[1])
    want = accumulator_dtype(common)
    if common.name in _FP8 and precision == "highest":
        common = dt.float16  # tensor cores keep 14 bits of fp8 sums
    if precision == "tf32x3":
        made = thrice(astype(_value(x), common), astype(_value(y), common), _tf32)
        return made if total is None else total + made
    if _takes_wgmma(x, y, common, precision == "tf32"):
        return _by_wgmma(x, y, total, want)
    tensor = _by_tensor_cores(common, precision)
    target = current().target
    if tensor and common.name in _FP8 and not (target is None or target.supports(Feature.MMA_FP8)):
        common = dt.float16  # exact: every fp8 number is a float16
    if tensor:
        start = _zeros(shape, want) if total is None else total
        same = _mixes(x.dtype, y.dtype) and common == x.dtype
        left, right = (_value(v) if same else astype(_value(v), common) for v in (x, y))
        return mma(start, left, right)
    return _by_lanes(x, y, _zeros(shape, want) if total is None else total, want)


def _tf32(total: Array | None, a: Array, b: Array) -> Array:
    return mma(_zeros((a.shape[0], b.shape[1]), dt.float32) if total is None else total, a, b)


def _scaled(x: Any, y: Any, acc: Any, a_scale: Any, b_scale: Any, precision: str | None) -> Array:
    """A product of matrices with scales; float32."""
    rows, columns = (None if s is None else _scale(_operand(s)) for s in (a_scale, b_scale))
    check_scales(x.shape, y.shape, rows, columns)
    _check_shapes(x.shape, y.shape, "dot")
    shape = (x.shape[0], y.shape[1])
    total = None if acc is None else astype(as_value(acc, "dot"), dt.float32)
    if total is not None:
        _check_total(total.shape, shape)
    if 0 in shape or not x.shape[1]:
        return _zeros(shape, dt.float32) if total is None else total
    with scope():
        left, right = (None if s is None else _in_memory(s) for s in (rows, columns))
        return scaled(x, y, total, left, right, lambda a, b: dot(a, b, precision=precision))


def _scale(x: Any) -> Any:
    """A scale as float32: one that is a power of two is stored as its exponent."""
    return astype(_value(x), dt.float32) if x.dtype == dt.float8_e8m0fnu else x


def _zeros(shape: tuple[int, ...], dtype: DType) -> Array:
    from .create import zeros

    return zeros(shape, dtype)


def _takes_wgmma(x: Any, y: Any, common: DType, tf32: bool) -> bool:
    target = current().target
    if target is None or not target.supports(Feature.WGMMA) or not isinstance(y, Ref):
        return False
    if y.memory_space is not MemorySpace.SMEM or y.ndim != 2 or x.dtype != y.dtype or common != x.dtype:
        return False
    if isinstance(x, Ref) and x.memory_space is not MemorySpace.SMEM:
        return False
    if common.name not in _MMA and not (common == dt.float32 and tf32):
        return False
    step = 32 // common.itemsize
    if x.shape[0] % 64 or x.shape[1] % step or y.shape[1] % (16 if common.is_integer else 8):
        return False
    return all(_is_tile(r, common) for r in (x, y) if isinstance(r, Ref))


def _is_tile(ref: Ref, dtype: DType) -> bool:
    """Whether a Ref is a whole 2-D block of a buffer that wgmma can read."""
    type: RefType = ref.type
    view, offsets = view_of(ref)
    last = len(type.shape) - 1
    if last < 1 or {d.axis for d in view.dims} != {last - 1, last} or any(d.step != 1 for d in view.dims):
        return False
    whole = all(d.size == type.shape[d.axis] for d in view.dims) and not any(a >= last - 1 for a in view.dynamic)
    rows, span = type.shape[-2], type.shape[-1] * dtype.itemsize
    fresh = not type.tiling and type.swizzle.value == 0
    good = type.swizzle.value != 0 or (fresh and isinstance(ref.root.op, AllocSmem))
    own = not is_peer(ref)  # the tensor core reads its own block's SMEM
    return own and whole and good and rows % 8 == 0 and span % 32 == 0 and len(offsets) <= last - 1


def _by_wgmma(x: Any, y: Ref, total: Array | None, want: DType) -> Array:
    from .copy_waits import commit_smem
    from .matrix import allocate_acc, wgmma, wgmma_accumulator_load

    shape = (x.shape[0], y.shape[1])
    acc = allocate_acc(AccSpec(shape, want, total))
    minor = (y.view()[0].dims[0].axis == len(y.type.shape) - 1, not isinstance(x, Ref) or _k_last(x))
    if x.dtype.itemsize != 2 and not all(minor):
        return mma(_zeros(shape, want) if total is None else total, _value(x), _value(y))
    commit_smem()  # the tensor core must see the lanes' stores to the operands
    wgmma(acc, x, y)
    return wgmma_accumulator_load(acc)


def _k_last(x: Ref) -> bool:
    return x.view()[0].dims[1].axis == len(x.type.shape) - 1


def _by_lanes(x: Any, y: Any, total: Array, want: DType) -> Array:
    """Multiply and add, one k at a time; values are read back from SMEM."""
    from .arith import fma
    from .control import loop

    with scope():
        left, right = (_in_memory(v) for v in (x, y))

        def step(k: Any, acc: Array) -> Array:
            u = astype(left[..., ds(k, 1)], want)
            v = astype(right[..., ds(k, 1), :], want)
            return fma(u, v, acc) if want.is_float else u * v + acc

        return loop(0, x.shape[-1], init_carry=total)(step)


def _in_memory(x: Any) -> Ref:
    if isinstance(x, Ref):
        return x
    from .scope import allocate_own

    ref = allocate_own(x.shape, x.dtype, "dot operand")
    ref[...] = x
    return ref
