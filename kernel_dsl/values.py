"""`Array`: the traced values that a kernel body computes with. Methods and operators only; ops are in `ops/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from .advice import instead, subscript
from .argument_kinds import TRACED
from .arguments import of_dims
from .boundary import public
from .dtypes import DType
from .errors import TracedBool, TracedConversion, TracedIteration, ValueAssigned
from .ir import Op, Value

WITHOUT_TRUTH = "use `kd.when(...)`, `kd.cond(...)` or `kd.where(...)`; combine conditions with `&`, `|` and `~`"


# Operators and methods that are operations. ops/handles.py attaches them; type checkers read them here.
if TYPE_CHECKING:

    class ArrayMethods:  # noqa: PLW1641 - `Array` has a hash
        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any: ...
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any: ...
        def __add__(self, other: Any) -> Array: ...
        def __radd__(self, other: Any) -> Array: ...
        def __sub__(self, other: Any) -> Array: ...
        def __rsub__(self, other: Any) -> Array: ...
        def __mul__(self, other: Any) -> Array: ...
        def __rmul__(self, other: Any) -> Array: ...
        def __truediv__(self, other: Any) -> Array: ...
        def __rtruediv__(self, other: Any) -> Array: ...
        def __floordiv__(self, other: Any) -> Array: ...
        def __rfloordiv__(self, other: Any) -> Array: ...
        def __mod__(self, other: Any) -> Array: ...
        def __rmod__(self, other: Any) -> Array: ...
        def __pow__(self, other: Any, modulus: Any = None) -> Array: ...
        def __rpow__(self, other: Any) -> Array: ...
        def __matmul__(self, other: Any) -> Array: ...
        def __rmatmul__(self, other: Any) -> Array: ...
        def __and__(self, other: Any) -> Array: ...
        def __rand__(self, other: Any) -> Array: ...
        def __or__(self, other: Any) -> Array: ...
        def __ror__(self, other: Any) -> Array: ...
        def __xor__(self, other: Any) -> Array: ...
        def __rxor__(self, other: Any) -> Array: ...
        def __lshift__(self, other: Any) -> Array: ...
        def __rlshift__(self, other: Any) -> Array: ...
        def __rshift__(self, other: Any) -> Array: ...
        def __rrshift__(self, other: Any) -> Array: ...
        def __neg__(self) -> Array: ...
        def __invert__(self) -> Array: ...
        def __abs__(self) -> Array: ...
        def __eq__(self, other: object) -> Array: ...  # pyright: ignore[reportIncompatibleMethodOverride] - as NumPy
        def __ne__(self, other: object) -> Array: ...  # pyright: ignore[reportIncompatibleMethodOverride] - as NumPy
        def __lt__(self, other: Any) -> Array: ...
        def __le__(self, other: Any) -> Array: ...
        def __gt__(self, other: Any) -> Array: ...
        def __ge__(self, other: Any) -> Array: ...
        def __getitem__(self, index: Any) -> Array: ...
        def astype(self, dtype: Any, *, saturate: bool = True) -> Array:
            """The value converted to `dtype` (docs: dtypes). With `saturate=False` fp8 overflows as in ml_dtypes."""
            ...

        def transpose(self, *axes: Any) -> Array:
            """Permuted dimensions, reversed by default."""
            ...

        def reshape(self, *shape: Any) -> Array:
            """The elements in row-major order in another shape."""
            ...

        def sum(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array: ...
        def prod(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array: ...
        def mean(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array: ...
        def var(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array: ...
        def max(self, axis: Any = None, *, keepdims: bool = False) -> Array: ...
        def min(self, axis: Any = None, *, keepdims: bool = False) -> Array: ...
        def any(self, axis: Any = None, *, keepdims: bool = False) -> Array: ...
        def all(self, axis: Any = None, *, keepdims: bool = False) -> Array: ...
        def argmax(self, axis: Any = None, *, keepdims: bool = False) -> Array: ...
        def argmin(self, axis: Any = None, *, keepdims: bool = False) -> Array: ...
        def cumsum(
            self, axis: Any = None, *, dtype: Any = None, reverse: bool = False, exclusive: bool = False
        ) -> Array: ...
        def cumprod(
            self, axis: Any = None, *, dtype: Any = None, reverse: bool = False, exclusive: bool = False
        ) -> Array: ...
        def squeeze(self, axis: Any = None) -> Array: ...
        def swapaxes(self, axis1: int, axis2: int) -> Array: ...
        def round(self, decimals: int = 0) -> Array: ...
        def clip(self, min: Any = None, max: Any = None) -> Array: ...

else:
    ArrayMethods = object


@public
class Array(Value, ArrayMethods):
    """A value spread over a warpgroup: an immutable array with NumPy's operators, made by loads and operations.

    `weak`: it has a Python scalar's dtype, and an operand that is not weak decides the result's dtype.
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
        raise TracedBool(type=self.type, hint=of_dims(self, instead(WITHOUT_TRUTH)))

    def _no_conversion(self, to: str, hint: str) -> NoReturn:
        raise TracedConversion(type=self.type, to=to, hint=of_dims(self, hint))

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

    def __iter__(self) -> Any:
        if not self.type.shape:
            raise TracedIteration(type=self.type)
        return (self[i] for i in range(self.type.shape[0]))

    __hash__: ClassVar[Callable[[object], int]] = object.__hash__

    # --- operators --------------------------------------------------------------------------------

    def __divmod__(self, other: Any) -> tuple[Array, Array]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Array, Array]:
        return other // self, other % self

    def __pos__(self) -> Array:
        return self

    # --- methods ----------------------------------------------------------------------------------

    @property
    @public
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        """The value with its dimensions reversed."""
        return self.transpose()

    def __round__(self, decimals: int = 0) -> Array:
        return self.round(decimals)


TRACED.append(Array)
