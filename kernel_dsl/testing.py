"""`kd.testing`: helpers for tests of kernels. It imports pytest and hypothesis at their first use.

from kernel_dsl.testing import arrays, assert_close, both_devices, layouts, poisoned, shapes
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from importlib import import_module
from math import prod
from operator import index
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from .diagnostics import at_user_line, shown
from .dtypes import BY_NAME, DType, as_dtype, bfloat16, complex64, float8_e4m3fn, float8_e5m2, float16, float32, float64
from .errors import BadArgument
from .layout import LANE_BITS, WARP_BITS
from .layouts import Layout
from .lazy import once

__all__ = ["arrays", "assert_close", "assert_overwritten", "both_devices", "dtypes", "layouts", "poisoned", "shapes"]

if TYPE_CHECKING:
    both_devices: Any

_KINDS = ("bool", "int", "uint", "float", "complex")


# --- agreement ------------------------------------------------------------------------------------


def assert_close(
    actual: Any,
    expected: Any,
    *,
    dtype: Any = None,
    reduction_length: int = 1,
    magnitude: Any = None,
    accumulator: Any = None,
    factor: float = 2.0,
) -> None:
    """Raise AssertionError unless every element of `actual` is within its bound of `expected`.

    Both are arrays of one shape, of NumPy, PyTorch, CuPy or JAX, on any device; `expected` is best in float64.
    The bound of an element, with u(t) the unit roundoff of t (2**-24 of float32) and K the `reduction_length`, is

        factor * (u(dtype) * |expected| + sqrt(K) * u(accumulator) * magnitude) + the smallest number of dtype

    The first term is the result's own rounding, the second is the typical sum of K independent roundings. `magnitude`,
    a number or an array that broadcasts to the shape, is the sum of the absolute values of an element's terms: for `a @
    b` that is `abs(a) @ abs(b)`. Without it, the function assumes terms of random signs: sqrt(K) times the larger of
    |expected| and the root mean square of all expected values, so that the bound grows in proportion to K. For K = 1
    there is no sum, and no second term. `dtype` is by default that of `actual`; give it for results that were computed
    in a narrower dtype. `accumulator` is by default `dtype`, or float32 if that is wider.

    NaNs agree with each other, infinities with those of the same sign. An infinity of `actual` also agrees with an
    expected value within its bound of overflow. Integers and bools must be equal, and complex numbers are compared by
    the absolute value of the difference. The message names the element that is furthest off by its bound, both values,
    and the bound. Raises BadArgument for a `reduction_length` below 1, a `factor` that is negative or infinite, an
    `accumulator` of integers, and a dtype that kernels don't have.
    """
    got, own = _on_host(actual, "actual")
    want, _ = _on_host(expected, "expected")
    if got.shape != want.shape:
        raise AssertionError(f"the shapes differ: {got.shape} of actual, {want.shape} of expected")
    kind = own if dtype is None else _dtype(dtype, "dtype")
    length = _count(reduction_length, "reduction_length")
    if not (isinstance(factor, (int, float)) and 0 <= factor < np.inf):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise at_user_line(
            BadArgument(op="assert_close", what=f"factor={shown(factor)}", hint="a finite number of at least 0")
        )
    terms = None if magnitude is None else _magnitude(magnitude, got.shape)
    if not kind.is_float and kind is not complex64:
        same = np.asarray(got == want)
        _report(~same, np.where(same, 0.0, np.inf), got, want, np.zeros(got.shape), f"{kind}: elements must be equal")
        return
    adds = _dtype(accumulator, "accumulator") if accumulator is not None else (kind if kind.bits >= 32 else float32)
    if not adds.is_float and adds is not complex64:
        what, hint = f"accumulator={adds}", "a dtype of floats: sums of integers have no roundings"
        raise at_user_line(BadArgument(op="assert_close", what=what, hint=hint))
    wide = np.complex128 if np.iscomplexobj(got) or np.iscomplexobj(want) else np.float64
    got, want = got.astype(wide), want.astype(wide)
    with np.errstate(all="ignore"):
        bound = factor * _spread(np.abs(want), _unit(kind), _unit(adds), length, terms)
        bound = np.where(np.isfinite(bound), bound, 0.0) + _smallest(kind)
        off = np.abs(got - want)
        ratio = np.where(np.isnan(off), np.inf, off / bound)
        agree = (got == want) | (np.isnan(got) & np.isnan(want)) | (off <= bound)
        if kind.is_float:
            beyond = (np.abs(want) + bound > float(ml_dtypes.finfo(kind.numpy).max)) & np.isfinite(want)
            agree |= np.isinf(got) & beyond & (np.sign(got) == np.sign(want))
    rule = f"{kind}, factor {factor:g}, reduction_length {length}, accumulator {adds}"
    _report(~agree, np.where(agree, 0.0, ratio), got, want, bound, rule)


def _spread(size: Any, unit: float, adding: float, length: int, magnitude: Any) -> Any:
    """The bound of expected values of these sizes, without the factor."""
    if length == 1:
        return unit * size
    if magnitude is not None:
        terms = magnitude
    else:
        known = size[np.isfinite(size)]
        typical = float(np.sqrt(np.mean(known**2))) if known.size else 0.0
        terms = np.sqrt(length) * np.maximum(size, typical)
    return unit * size + np.sqrt(length) * adding * terms


def _magnitude(given: Any, shape: tuple[int, ...]) -> Any:
    """Sums of absolute values, float64, in a shape that fits the arrays."""
    terms = _on_host(given, "magnitude")[0].astype(np.float64)
    try:
        fits = np.broadcast_shapes(terms.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits or not (terms >= 0).all():
        what = f"magnitude={shown(given)}"
        hint = f"sums of absolute values: a number of at least 0, or an array of them that broadcasts to {shape}"
        raise at_user_line(BadArgument(op="assert_close", what=what, hint=hint))
    return terms


def _report(bad: Any, ratio: Any, got: Any, want: Any, bound: Any, rule: str) -> None:
    bad, ratio = np.asarray(bad), np.asarray(ratio)
    if not bad.any():
        return
    flat = int(np.argmax(np.where(bad, ratio, -1.0)))
    at = tuple(int(i) for i in np.unravel_index(flat, bad.shape))
    raise AssertionError(
        f"{int(bad.sum())} of {bad.size} elements differ; the worst is {list(at)}: "
        f"actual {got[at].item()!r}, expected {want[at].item()!r}, bound {float(bound[at]):.3g} ({rule})"
    )


def _unit(kind: DType) -> float:
    """Half the step above 1."""
    return 2.0 ** -(int(ml_dtypes.finfo((float32 if kind is complex64 else kind).numpy).nmant) + 1)


def _smallest(kind: DType) -> float:
    return float(ml_dtypes.finfo((float32 if kind is complex64 else kind).numpy).smallest_subnormal)


def _on_host(array: Any, name: str) -> tuple[Any, DType]:
    """The values as a NumPy array (float64 if NumPy lacks the dtype), and the dtype of the argument."""
    if hasattr(array, "detach"):  # PyTorch
        if array.is_meta:
            raise BadArgument(op="assert_close", what=f"{name} is a tensor on meta", hint="pass a tensor with values")
        array = array.detach().cpu().resolve_conj()
        if str(array.dtype) == "torch.complex128":
            return array.numpy(), complex64
        kind = _dtype(array.dtype, name)
        return (array.double() if kind.is_float else array).numpy(), kind
    host = np.asarray(array.get() if hasattr(array, "get") and hasattr(array, "__cuda_array_interface__") else array)
    if host.dtype == np.complex128:
        return host, complex64
    return host, _dtype(host.dtype, name)


def _dtype(value: Any, name: str) -> DType:
    try:
        return as_dtype(value)
    except Exception:
        raise at_user_line(
            BadArgument(op="testing", what=f"{name}={shown(value)}", hint="a dtype of kernels")
        ) from None


def _count(value: Any, name: str, least: int = 1) -> int:
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise at_user_line(BadArgument(op="testing", what=f"{name}={shown(value)}", hint=f"an int of at least {least}"))
    return number


# --- unwritten outputs ----------------------------------------------------------------------------

_NANS = {  # NaNs that no arithmetic makes; float8_e4m3fn has only this one
    float8_e4m3fn: 0x7F, float8_e5m2: 0x7F, float16: 0x7EA5, bfloat16: 0x7FE5, float32: 0x7FE5A5A5, float64: 0x7FFDA5A5A5A5A5A5,
}  # fmt: skip


def _sides(shape: Any, least: int = 0) -> tuple[int, ...]:
    """A shape's extents; an int stands for a shape of rank 1."""
    given: Any = cast("Iterable[Any]", shape) if isinstance(shape, Iterable) else (shape,)
    return tuple(_count(n, "shape", least) for n in given)


def _pattern(kind: DType) -> Any:
    """The bytes of one poisoned element."""
    bits = 32 if kind is complex64 else max(kind.bits, 8)
    number = _NANS.get(float32 if kind is complex64 else kind, int.from_bytes(b"\xa5" * (bits // 8), "little"))
    return np.frombuffer(number.to_bytes(bits // 8, "little") * (kind.itemsize * 8 // bits), np.uint8)


def poisoned(shape: Any, dtype: Any) -> Any:
    """A NumPy array of `shape` for a kernel to write, full of bytes that no kernel computes: see `assert_overwritten`.

    Floats and complex numbers hold a NaN with marked bits, integers and bools bytes of 0xA5. Raises BadArgument.
    """
    kind = _dtype(dtype, "dtype")
    sides = _sides(shape)
    return np.tile(_pattern(kind), prod(sides)).view(kind.numpy).reshape(sides)


def assert_overwritten(array: Any) -> None:
    """Raise AssertionError if an element of a NumPy array still holds all the bytes that `poisoned` gave it.

    A NaN that a kernel computes has other bytes, except in float8_e4m3fn, which has only one NaN. A kernel may also
    compute a one-byte integer 0xA5: avoid this value in its inputs. Raises BadArgument.
    """
    if not isinstance(array, np.ndarray):
        what, hint = f"array={shown(array)}", "a NumPy array, of `poisoned`"
        raise at_user_line(BadArgument(op="assert_overwritten", what=what, hint=hint))
    host: Any = np.ascontiguousarray(array)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    kind = _dtype(host.dtype, "array")
    left = (host.reshape(-1).view(np.uint8).reshape(-1, kind.itemsize) == _pattern(kind)).all(1)
    if left.any():
        at = [int(i) for i in np.unravel_index(int(np.argmax(left)), np.shape(array))]
        raise AssertionError(f"{int(left.sum())} of {left.size} elements were never written; the first is {at}")


# --- strategies of hypothesis ---------------------------------------------------------------------


@once
def _strategies() -> Any:
    return import_module("hypothesis.strategies")


def shapes(*, min_rank: int = 0, max_rank: int = 4, min_side: int = 1, max_side: int = 64, max_size: int = 4096) -> Any:
    """A strategy of shapes: tuples of `min_rank` to `max_rank` extents within `min_side` to `max_side`.

    They have at most `max_size` elements. Raises BadArgument if there is no such shape.
    """
    low, high, side = _count(min_rank, "min_rank", 0), _count(max_rank, "max_rank", 0), _count(min_side, "min_side", 0)
    max_side, max_size = _count(max_side, "max_side", 0), _count(max_size, "max_size", 0)
    if high < low or max_side < side or max_size < side**low:
        what = f"min_rank={low}, max_rank={high}, min_side={side}, max_side={max_side}, max_size={max_size}"
        raise at_user_line(BadArgument(op="shapes", what=what, hint="give bounds that allow at least one shape"))
    st = _strategies()

    def drawn(draw: Callable[[Any], Any]) -> tuple[int, ...]:
        rank = draw(st.integers(low, high))
        while side > 1 and side**rank > max_size:
            rank -= 1
        sides: list[int] = []
        room = max_size
        for later in reversed(range(rank)):
            most = max(side, min(max_side, room // max(side, 1) ** later))
            sides.append(draw(st.integers(side, most)))
            room //= max(sides[-1], 1)
        return tuple(draw(st.permutations(sides)))

    return st.composite(drawn)()


def dtypes(*kinds: str) -> Any:
    """A strategy of dtypes of these kinds: "bool", "int", "uint", "float" and "complex"; of all but complex by default.

    Raises BadArgument for another kind.
    """
    for kind in kinds:
        if kind not in _KINDS:
            raise at_user_line(BadArgument(op="dtypes", what=shown(kind), hint=f"one of {', '.join(_KINDS)}"))
    wanted = kinds or _KINDS[:-1]
    return _strategies().sampled_from([x for x in BY_NAME.values() if _kind(x) in wanted])


def _kind(dtype: DType) -> str:
    return "complex" if dtype is complex64 else dtype.kind.value


def layouts(shape: Any) -> Any:
    """A strategy of `kd.Layout`s of values of this shape: how registers, lanes and warps split its dimensions.

    The factors of two of the dimensions go to registers, lanes and warps in any order, odd factors to registers. Bits
    that no dimension takes hold copies. Raises BadArgument for an extent below 1.
    """
    sides = _sides(shape, 1)
    st = _strategies()

    def drawn(draw: Callable[[Any], Any]) -> Layout:
        halvings = {dim: (n & -n).bit_length() - 1 for dim, n in enumerate(sides)}
        left = [dim for dim, count in halvings.items() for _ in range(count)]
        left = draw(st.permutations(left))
        slots = draw(st.permutations(range(LANE_BITS + WARP_BITS)))
        taken = draw(st.integers(0, min(len(left), len(slots))))
        places: list[Any] = [*slots[:taken], *[None] * (len(left) - taken)]
        stride = [1] * len(sides)
        bits: list[tuple[int, int] | None] = [None] * len(slots)
        regs: list[tuple[int, int, int]] = []
        for dim, place in zip(left, draw(st.permutations(places)), strict=True):
            if place is None:
                regs.append((dim, 2, stride[dim]))
            else:
                bits[place] = (dim, stride[dim])
            stride[dim] *= 2
        regs += [(dim, n >> halvings[dim], stride[dim]) for dim, n in enumerate(sides) if n >> halvings[dim] > 1]
        return Layout(len(sides), tuple(regs), tuple(bits[:LANE_BITS]), tuple(bits[LANE_BITS:]))

    return st.composite(drawn)()


def arrays(dtype: Any, shape: Any, *, finite: bool = True) -> Any:
    """A strategy of NumPy arrays of a dtype (or a strategy of dtypes) and a shape (or a strategy of shapes).

    Random numbers of a normal distribution (integers: of all their range), a few of them replaced by zeros of both
    signs, the largest and the smallest numbers and, unless `finite`, infinities and not-a-number. Raises BadArgument.
    """
    st = _strategies()
    kinds = dtype if isinstance(dtype, st.SearchStrategy) else st.just(_dtype(dtype, "dtype"))
    places = shape if isinstance(shape, st.SearchStrategy) else st.just(_sides(shape))

    def drawn(draw: Callable[[Any], Any]) -> Any:
        kind, sides = _dtype(draw(kinds), "dtype"), _sides(draw(places))
        count = prod(sides)
        values = _random(kind, count, np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
        edges = _edges(kind, finite)
        for at in draw(st.lists(st.integers(0, count - 1), max_size=4)) if count else ():
            values[at] = edges[draw(st.integers(0, len(edges) - 1))]
        return values.reshape(sides)

    return st.composite(drawn)()


def _random(kind: DType, count: int, generator: np.random.Generator) -> Any:
    if kind.is_integer:
        return np.frombuffer(generator.bytes(count * kind.itemsize), kind.numpy).copy()
    if kind.is_bool:
        return generator.integers(0, 2, count).astype(np.bool_)
    if kind.bits <= 8 and not kind.is_float:
        return generator.choice(_stored(kind), count)
    values = generator.standard_normal((2, count))
    return (values[0] + 1j * values[1]).astype(np.complex64) if kind is complex64 else values[0].astype(kind.numpy)


def _stored(kind: DType) -> Any:
    """All numbers of a dtype that kernels only store: 4-bit ones and float8_e8m0fnu, without its not-a-number."""
    codes = np.arange(1 << kind.bits if kind.is_packed else 255, dtype=np.uint8)
    return codes.view(kind.numpy)


def _edges(kind: DType, finite: bool) -> Any:
    """Numbers at the ends of a dtype's range."""
    if kind.is_bool:
        return np.array([False, True])
    if kind.is_integer:
        info = np.iinfo(kind.numpy)
        return np.array([0, 1, info.max, info.min], kind.numpy)
    if kind.bits <= 8 and not kind.is_float:
        return _stored(kind)[[0, -1]]
    info = ml_dtypes.finfo((float32 if kind is complex64 else kind).numpy)
    numbers = [0.0, -0.0, float(info.max), float(info.min), float(info.smallest_subnormal)]
    if not finite:
        numbers += [float("nan")] if kind is float8_e4m3fn else [float("nan"), float("inf"), -float("inf")]
    return np.array(numbers).astype(kind.numpy)


# --- a fixture of pytest --------------------------------------------------------------------------


def _both_devices(request: Any) -> Generator[str]:
    """Run a test twice: launches on arrays in host memory go to the interpreter, then to the GPU, if there is one.

    The value is "interpreter" or "gpu". A module gets the fixture by `from kernel_dsl.testing import both_devices`.
    """
    devices = _devices()
    if request.param == "interpreter":
        with devices.watched_everywhere(devices.interpreter_device()):
            yield request.param
        return
    try:
        devices.cuda_device()
    except Exception as error:
        import_module("pytest").skip(f"no GPU: {error}")
    yield request.param


def _devices() -> ModuleType:
    return import_module("kernel_dsl.runtime.devices.devices")


def __getattr__(name: str) -> Any:
    if name != "both_devices":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    pytest = import_module("pytest")
    params = ["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)]
    fixture = pytest.fixture(name="both_devices", params=params)(_both_devices)
    globals()[name] = fixture
    return fixture
