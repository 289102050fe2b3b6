"""`Array`: the traced values that a kernel body computes with. Methods and operators only; ops are in `ops/`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from .advice import instead, subscript
from .arguments import TRACED
from .boundary import public
from .dtypes import DType, as_dtype
from .errors import TracedBool, TracedConversion, TracedIteration, ValueAssigned
from .ir import Op, Value

WITHOUT_TRUTH = "use `kd.when(...)`, `kd.cond(...)` or `kd.where(...)`; combine conditions with `&`, `|` and `~`"


@cache
def _ops(family: str) -> Any:
    # ops import this module; their functions are found at first use
    return import_module(f"kernel_dsl.ops.{family}")


@public
class Array(Value):
    """A value spread over a warpgroup: an immutable array with NumPy's operators, made by loads and operations.

    `weak`: a Python scalar's dtype, which gives way to that of a stronger operand.
    """

    __slots__ = ("weak",)

    def __init__(self, type: Any, op: Op | None = None, name: str = "") -> None:
        super().__init__(type, op, name)
        self.weak: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def size(self) -> int:
        n = 1
        for extent in self.type.shape:
            n *= extent
        return n

    def __len__(self) -> int:
        if not self.type.shape:
            raise TracedIteration(type=self.type)
        return self.type.shape[0]

    def __repr__(self) -> str:
        return f"<{self.type}>"

    # --- what a traced value can't do -------------------------------------------------------------

    def __bool__(self) -> NoReturn:
        raise TracedBool(type=self.type, hint=instead(WITHOUT_TRUTH))

    def _no_conversion(self, to: str, hint: str) -> NoReturn:
        raise TracedConversion(type=self.type, to=to, hint=hint)

    def __int__(self) -> NoReturn:
        self._no_conversion("int", instead("use `.astype(kd.int32)`"))

    def __float__(self) -> NoReturn:
        self._no_conversion("float", instead("use `.astype(kd.float32)`"))

    def __bytes__(self) -> NoReturn:  # noqa: PLE0308 - it never returns
        self._no_conversion("bytes", "a Ref's memory is seen as bytes by `ref.bitcast(kd.uint8)`")

    def __complex__(self) -> NoReturn:
        self._no_conversion("complex", "complex values are only copied: keep real and imaginary parts apart")

    def __index__(self) -> NoReturn:  # noqa: PLE0305 - it never returns
        sizes = "sizes must be static; a dynamic start goes through `kd.ds(start, size)`"
        self._no_conversion("index", subscript(sizes))

    def __trunc__(self) -> NoReturn:
        self._no_conversion("int", "use `kd.trunc(x)`, and `.astype(kd.int32)`")

    def __floor__(self) -> NoReturn:
        self._no_conversion("int", "use `kd.floor(x)`, and `.astype(kd.int32)`")

    def __ceil__(self) -> NoReturn:
        self._no_conversion("int", "use `kd.ceil(x)`, and `.astype(kd.int32)`")

    def __format__(self, form: str) -> str:
        if form:
            self._no_conversion("string", 'print it when the kernel runs: `kd.debug_print("{}", x)`')
        return repr(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._no_conversion("pickle", "return results through an output Ref")

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: Any) -> Array:
        return self

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._no_conversion("array", instead("use the functions of `kernel_dsl`, or NumPy ufuncs without `out=`"))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _ops("ufuncs").apply_function(self, function, args, kwargs)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise ValueAssigned(type=self.type, what="an assignment")

    def __delitem__(self, index: Any) -> NoReturn:
        raise ValueAssigned(type=self.type, what="`del`")

    def __contains__(self, item: Any) -> NoReturn:
        raise TracedBool(type=self.type, hint="use `kd.any(x == value)`")

    def __enter__(self) -> NoReturn:
        raise ValueAssigned(type=self.type, what="`with`")

    def __exit__(self, *error: object) -> NoReturn:
        self.__enter__()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _ops("ufuncs").apply(ufunc, method, inputs, kwargs)

    def __iter__(self) -> Any:
        if not self.type.shape:
            raise TracedIteration(type=self.type)
        return (self[i] for i in range(self.type.shape[0]))

    __hash__: ClassVar[Callable[[object], int]] = object.__hash__

    # --- operators --------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Array:
        return _ops("arith").add(self, other)

    def __radd__(self, other: Any) -> Array:
        return _ops("arith").add(other, self)

    def __sub__(self, other: Any) -> Array:
        return _ops("arith").subtract(self, other)

    def __rsub__(self, other: Any) -> Array:
        return _ops("arith").subtract(other, self)

    def __mul__(self, other: Any) -> Array:
        return _ops("arith").multiply(self, other)

    def __rmul__(self, other: Any) -> Array:
        return _ops("arith").multiply(other, self)

    def __truediv__(self, other: Any) -> Array:
        return _ops("arith").true_divide(self, other)

    def __rtruediv__(self, other: Any) -> Array:
        return _ops("arith").true_divide(other, self)

    def __floordiv__(self, other: Any) -> Array:
        return _ops("arith").floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Array:
        return _ops("arith").floor_divide(other, self)

    def __mod__(self, other: Any) -> Array:
        return _ops("arith").mod(self, other)

    def __rmod__(self, other: Any) -> Array:
        return _ops("arith").mod(other, self)

    def __divmod__(self, other: Any) -> tuple[Array, Array]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Array, Array]:
        return other // self, other % self

    def __pow__(self, other: Any, modulus: Any = None) -> Array:
        if modulus is not None:
            self._no_conversion("int", "use `kd.power(x, y)`, and `kd.mod` for the third argument")
        return _ops("math").power(self, other)

    def __rpow__(self, other: Any) -> Array:
        return _ops("math").power(other, self)

    def __matmul__(self, other: Any) -> Array:
        return _ops("product").dot(self, other)

    def __rmatmul__(self, other: Any) -> Array:
        return _ops("product").dot(other, self)

    def __and__(self, other: Any) -> Array:
        return _ops("arith").bitwise_and(self, other)

    def __rand__(self, other: Any) -> Array:
        return _ops("arith").bitwise_and(other, self)

    def __or__(self, other: Any) -> Array:
        return _ops("arith").bitwise_or(self, other)

    def __ror__(self, other: Any) -> Array:
        return _ops("arith").bitwise_or(other, self)

    def __xor__(self, other: Any) -> Array:
        return _ops("arith").bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Array:
        return _ops("arith").bitwise_xor(other, self)

    def __lshift__(self, other: Any) -> Array:
        return _ops("arith").left_shift(self, other)

    def __rlshift__(self, other: Any) -> Array:
        return _ops("arith").left_shift(other, self)

    def __rshift__(self, other: Any) -> Array:
        return _ops("arith").right_shift(self, other)

    def __rrshift__(self, other: Any) -> Array:
        return _ops("arith").right_shift(other, self)

    def __neg__(self) -> Array:
        return _ops("arith").negative(self)

    def __pos__(self) -> Array:
        return self

    def __invert__(self) -> Array:
        return _ops("arith").invert(self)

    def __abs__(self) -> Array:
        return _ops("arith").absolute(self)

    @public
    def __eq__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride] - as NumPy
        return _ops("compare").equal(self, other)

    @public
    def __ne__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride] - as NumPy
        return _ops("compare").not_equal(self, other)

    def __lt__(self, other: Any) -> Array:
        return _ops("compare").less(self, other)

    def __le__(self, other: Any) -> Array:
        return _ops("compare").less_equal(self, other)

    def __gt__(self, other: Any) -> Array:
        return _ops("compare").greater(self, other)

    def __ge__(self, other: Any) -> Array:
        return _ops("compare").greater_equal(self, other)

    def __getitem__(self, index: Any) -> Array:
        return _ops("shape").getitem(self, index)

    # --- methods ----------------------------------------------------------------------------------

    def astype(self, dtype: Any, *, saturate: bool = True) -> Array:
        """The value converted to `dtype` (docs: dtypes). `saturate=False`: fp8 overflow as ml_dtypes does it."""
        return _ops("cast").astype(self, as_dtype(dtype), saturate=saturate)

    @property
    @public
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        """The value with its dimensions reversed."""
        return _ops("shape").transpose(self)

    def transpose(self, *axes: Any) -> Array:
        """Permuted dimensions, reversed by default."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        return _ops("shape").transpose(self, order or None)

    def reshape(self, *shape: Any) -> Array:
        """The elements in row-major order in another shape."""
        return _ops("shape").reshape(self, *shape)

    def sum(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array:
        return _ops("reduce").sum(self, axis, keepdims=keepdims, dtype=dtype)

    def prod(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array:
        return _ops("reduce").prod(self, axis, keepdims=keepdims, dtype=dtype)

    def mean(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array:
        return _ops("reduce").mean(self, axis, keepdims=keepdims, dtype=dtype)

    def var(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array:
        return _ops("reduce").var(self, axis, keepdims=keepdims, dtype=dtype)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return _ops("reduce").max(self, axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return _ops("reduce").min(self, axis, keepdims=keepdims)

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return _ops("reduce").any(self, axis, keepdims=keepdims)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return _ops("reduce").all(self, axis, keepdims=keepdims)

    def argmax(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return _ops("reduce").argmax(self, axis, keepdims=keepdims)

    def argmin(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return _ops("reduce").argmin(self, axis, keepdims=keepdims)

    def cumsum(self, axis: Any = None, *, dtype: Any = None, reverse: bool = False, exclusive: bool = False) -> Array:
        return _ops("scan").cumsum(self, axis, dtype=dtype, reverse=reverse, exclusive=exclusive)

    def cumprod(self, axis: Any = None, *, dtype: Any = None, reverse: bool = False, exclusive: bool = False) -> Array:
        return _ops("scan").cumprod(self, axis, dtype=dtype, reverse=reverse, exclusive=exclusive)

    def squeeze(self, axis: Any = None) -> Array:
        return _ops("shape").squeeze(self, axis)

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        return _ops("shape").swapaxes(self, axis1, axis2)

    def round(self, decimals: int = 0) -> Array:
        return _ops("numeric").round(self, decimals)

    def clip(self, min: Any = None, max: Any = None) -> Array:
        return _ops("logic").clip(self, min, max)

    def __round__(self, decimals: int = 0) -> Array:
        return self.round(decimals)


TRACED.append(Array)
