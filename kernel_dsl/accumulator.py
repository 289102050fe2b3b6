"""Accumulators of wgmma: specifications, and the Refs that a kernel body sees. They live in named PTX registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

from . import dtypes as dt
from .boundary import public
from .dataclass import dataclass
from .diagnostics import of_kind, shown
from .dtypes import DType
from .errors import BadArgument, BadIndex, SliceOutOfRange, TracedIteration
from .errors_hopper import UnreadAccumulator
from .indices import Slice
from .ir import Value
from .memory import as_dtype_of, as_shape
from .no_arithmetic import NoArithmetic
from .values import Array

__all__ = ["ACC", "AccRef"]


@dataclass(frozen=True)
class AccSpec:
    """An accumulator to allocate: made by `kd.ACC(shape, dtype)` or `kd.ACC.init(value)`."""

    shape: tuple[int, ...]
    dtype: DType
    value: Any = None


@public
class _Acc:
    """`kd.ACC(shape, dtype=float32)`: a wgmma accumulator, zero at allocation; `kd.ACC.init(x)`: one that starts as x.

    (M, N), M a multiple of 64 and N of 8; float32, float16 or int32. Raises `UnreadAccumulator` for others.
    """

    __name__ = "ACC"

    def __call__(self, shape: Any, dtype: Any = dt.float32) -> AccSpec:
        extents, kind = as_shape(shape, "ACC"), as_dtype_of(dtype, "ACC")
        check_accumulator(extents, kind)
        return AccSpec(extents, kind)

    def init(self, value: Any) -> AccSpec:
        """An accumulator that starts as a traced value."""
        if not isinstance(value, Array):
            raise BadArgument(op="ACC.init", what=of_kind(value), hint="pass a traced value")
        check_accumulator(value.shape, value.dtype)
        return AccSpec(value.shape, value.dtype, value)

    def __repr__(self) -> str:
        return "kd.ACC"


ACC = _Acc()


def check_accumulator(shape: tuple[int, ...], dtype: DType) -> None:
    """Raise `UnreadAccumulator` for a shape or dtype that wgmma has no accumulator of."""
    if dtype not in (dt.float32, dt.float16, dt.int32):
        why = "wgmma accumulates in float32, float16 or int32"
        raise UnreadAccumulator(what=f"an accumulator of {dtype}", why=why, hint="convert the result with `.astype`")
    if len(shape) != 2 or shape[0] % 64 or shape[1] % 8 or 0 in shape:
        why = "a warpgroup accumulates 64 rows at a time, and 8 columns"
        hint = "round the rows up to a multiple of 64 and the columns to one of 8"
        raise UnreadAccumulator(what=f"an accumulator of shape {shape}", why=why, hint=hint)


@dataclass(frozen=True)
class AccType:
    """An accumulator's type: shape and dtype. Messages show `name`."""

    shape: tuple[int, ...]
    dtype: DType
    name: str = ""

    def __str__(self) -> str:
        return f"acc<{self.dtype.name}[{','.join(map(str, self.shape))}]>"


# Methods that are operations. ops/handles.py attaches them; type checkers read them here.
if TYPE_CHECKING:

    class AccMethods:
        def __getitem__(self, index: Any) -> Array: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...

        def scale_rows(self, factors: Any) -> None:
            """Multiply each row by its factor, a float32 value of shape (M,); warps whose factors are all 1 skip it.

            For a whole float32 accumulator (M, N). Raises `UnreadAccumulator` while wgmma on it is in flight, `WgmmaShape`.
            """
            ...

else:
    AccMethods = object


@public
class AccRef(NoArithmetic, AccMethods):
    """An accumulator, or a block of one: `acc[...]` waits for all wgmma and reads, `acc.at[:, a:b]` is a block."""

    __slots__ = ("_root", "_shape", "_start")

    def __init__(self, root: Value, start: tuple[int, int] = (0, 0), shape: tuple[int, int] | None = None) -> None:
        self._root = root
        self._start = start
        self._shape: tuple[int, int] = root.type.shape if shape is None else shape

    @property
    def root(self) -> Value:
        return self._root

    @property
    def start(self) -> tuple[int, int]:
        return self._start

    @property
    def place(self) -> tuple[Value, tuple[int, int], tuple[int, int]]:
        """The identity of this block: its accumulator, start and shape."""
        return self._root, self._start, self._shape

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def dtype(self) -> DType:
        return self._root.type.dtype

    @property
    def ndim(self) -> int:
        return 2

    def __repr__(self) -> str:
        return f"<{self._root.type} block {self._shape} at {self._start}>"

    @property
    def at(self) -> _AccAt:
        return _AccAt(self)

    def block(self, index: Any) -> AccRef:
        """The block that static slices pick. Raises `BadIndex`, `SliceOutOfRange`."""
        items: list[Any] = list(cast("tuple[Any, ...]", index)) if isinstance(index, tuple) else [index]
        if items and items[-1] is Ellipsis:
            items.pop()
        if items and items[0] is Ellipsis:
            items = [slice(None)] * (3 - len(items)) + items[1:]
        items += [slice(None)] * (2 - len(items))
        start, shape = list(self._start), list(self._shape)
        for dim, (part, unit) in enumerate(zip(items, (64, 8), strict=False)):
            item: Any = part
            if isinstance(item, Slice) and isinstance(item.start, int):
                item = slice(item.start, item.start + item.size, item.stride)
            given: Any = item
            sliced = isinstance(item, slice)
            parts: tuple[Any, ...] = (given.start, given.stop, given.step) if sliced else (given,)
            if len(parts) == 1 or any(isinstance(x, Array) for x in parts):
                raise BadIndex(what=of_kind(item), hint="accumulators are sliced statically: `acc.at[:, a:b]`")
            try:
                begin, stop, step = slice(*parts).indices(self._shape[dim])
            except (TypeError, ValueError) as error:
                raise BadIndex(what=shown(item), hint=f"{error}") from None
            if step != 1 or begin % unit or (stop - begin) % unit or stop <= begin:
                what = f"rows come in 64s and columns in 8s; this is {begin}:{stop}:{step} of axis {dim}"
                raise SliceOutOfRange(start=begin, stop=stop, dim=dim, extent=self._shape[dim], what=what)
            start[dim] += begin
            shape[dim] = stop - begin
        return AccRef(self._root, (start[0], start[1]), (shape[0], shape[1]))

    def __iter__(self) -> NoReturn:
        raise TracedIteration(type=repr(self))


@public
class _AccAt:
    def __init__(self, acc: AccRef) -> None:
        self._acc = acc

    def __getitem__(self, index: Any) -> AccRef:
        return self._acc.block(index)
