"""`ArrayView`: any framework's array as an address, a shape and strides. Nothing is copied to make one."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from kernel_dsl.dtypes import DType

from ..errors import ArgumentTypeError

CPU: tuple[str, int] = ("cpu", 0)


@dataclass(slots=True, eq=False)
class ArrayView:
    """Memory that a kernel reads or writes.

    `address` is where element [0, ..., 0] lies, `strides` are in elements (negative and zero ones
    are legal). `device` is ("cpu", 0) or ("cuda", index). `owner` keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: tuple[str, int]
    framework: str
    readonly: bool = False
    owner: Any = None

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, gaps not counted."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Row-major and gapless; axes of extent 1 may have any stride, and arrays without elements any strides."""
        expected = 1
        if 0 in self.shape:
            return True
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    @property
    def overlaps_itself(self) -> bool:
        """Whether several of its elements share memory, as those of broadcast arrays and of sliding windows do."""
        if 0 in self.shape:
            return False
        last = 0  # the element where the axes so far end
        for step, extent in sorted([(abs(s), n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1]):
            if step == 0:
                return True
            if step <= last:  # this axis begins inside the ones before, and may go between their elements
                return np.unique(self._places()).size < self.size
            last += (extent - 1) * step
        return False

    def _places(self) -> np.ndarray[Any, Any]:
        """Where each element lies, counted in elements from [0, ..., 0]."""
        places = np.zeros((), np.int64)
        for extent, stride in zip(self.shape, self.strides, strict=True):
            places = places[..., None] + np.arange(extent) * stride
        return places

    def span(self) -> tuple[int, int]:
        """The addresses [first, last) that hold elements; empty, at `address`, without elements."""
        low = high = 0
        for extent, stride in zip(self.shape, self.strides, strict=True):
            if extent == 0:
                return self.address, self.address
            if stride < 0:
                low += (extent - 1) * stride
            else:
                high += (extent - 1) * stride
        item = self.dtype.itemsize
        return self.address + low * item, self.address + (high + 1) * item

    def same_memory(self, other: ArrayView) -> bool:
        """Whether both name exactly the same elements in the same order."""
        return (
            self.address == other.address
            and self.shape == other.shape
            and self.dtype == other.dtype
            and self.device == other.device
            and (self.strides == other.strides or (self.contiguous and other.contiguous))
        )


class _Memory:
    """The addresses of a view as a NumPy array. Nothing reads through it."""

    def __init__(self, view: ArrayView) -> None:
        item = view.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item}",
            "shape": view.shape,
            "strides": tuple(s * item for s in view.strides),
            "data": (view.address, True),
        }


# The most steps of NumPy's exact overlap test; beyond them the answer is "yes".
_OVERLAP_WORK = 100_000


def overlap(a: ArrayView, b: ArrayView) -> bool:
    """Whether the two share at least one byte.

    Interleaved views, such as x[::2] and x[1::2], do not.
    """
    if a.device != b.device:
        return False
    low_a, high_a = a.span()
    low_b, high_b = b.span()
    if high_a <= low_b or high_b <= low_a or low_a == high_a or low_b == high_b:
        return False
    if a.contiguous and b.contiguous:
        return True
    try:
        limit: Any = _OVERLAP_WORK
        return np.shares_memory(np.asarray(_Memory(a)), np.asarray(_Memory(b)), limit)
    except np.exceptions.TooHardError:
        return True


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a gapless row-major array."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def narrowed(array: Any, shape: tuple[int, ...]) -> Any:
    """A row-major array's first elements, as a row-major array of another shape in the same memory."""
    if tuple(array.shape) == tuple(shape):
        return array
    if not hasattr(array, "reshape"):
        generic: Any = frameworks("generic")
        return generic.narrowed(view(array), shape)
    return array.reshape(-1)[: math.prod(shape)].reshape(shape)


class Interop(Protocol):
    """The interface of a framework's file in `runtime/arrays/interop`."""

    name: str

    def view(self, array: Any, stream: int) -> ArrayView:
        """A view of `array`. If the framework has no current stream, `stream` waits for pending work on the array."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int], stream: int) -> Any:
        """An uninitialised row-major array that may be written on `stream`."""
        ...

    def allocator(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int]) -> Callable[[], Any]:
        """A function that makes such an array on the current stream, as `empty` does."""
        ...

    @property
    def current_stream(self) -> Callable[[int], int]:
        """The handle of the stream that the framework issues work to, by GPU index."""
        ...

    def finish(self, array: Any, view: ArrayView, stream: int) -> Any:
        """The array for the user, after work that writes `array` was issued to `stream`."""
        ...


class Streamless(ABC):
    """The parts of `Interop` that frameworks without a current stream share. Their work goes to the default stream."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int], stream: int) -> Any: ...

    def current_stream(self, index: int) -> int:
        return 0

    def allocator(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int]) -> Callable[[], Any]:
        return lambda: self.empty(shape, dtype, device, 0)

    def finish(self, array: Any, view: ArrayView, stream: int) -> Any:
        return array


def frameworks(name: str) -> Interop:
    """The interop module of a framework: "numpy", "torch", "cupy", "jax" or "generic"."""
    module = _loaded.get(name)
    if module is None:
        module = _loaded[name] = import_module(f"kernel_dsl.runtime.arrays.interop.{name}").INTEROP
    return module


def import_interops() -> None:
    """Import the interop modules of the frameworks that this program has imported."""
    for name in ("numpy", "torch", "cupy", "jax"):
        found = sys.modules.get(name)
        if found is not None and not getattr(found.__spec__, "_initializing", False):
            with suppress(ImportError, AttributeError):  # a module of this name that makes no arrays
                frameworks(name)


def common_framework(arrays: Iterable[ArrayView], kernel: str, where: str = "") -> Interop:
    """The interop module of the framework of all arrays; NumPy's without arrays. Raises ArgumentTypeError for several."""
    firsts = dict[str, int]()
    for number, a in enumerate(arrays):
        firsts.setdefault(a.framework, number)
    if len(firsts) > 1:
        listed = " and ".join(f"{name} (array {number})" for name, number in firsts.items())
        raise ArgumentTypeError(
            f"the arrays of a call of {kernel!r} belong to {listed}; convert them to one framework{where}"
        )
    return frameworks(next(iter(firsts), "numpy"))


def beside(interop: Any, arrays: Iterable[ArrayView], kernel: str) -> Interop:
    """The interop module, with results on the device of these arrays: JAX may have several devices in host memory.

    Raises ArgumentValueError for arrays on two of them.
    """
    return interop.beside(arrays, kernel) if interop.name == "jax" else interop


_loaded: dict[str, Interop] = {}
_by_type: dict[type, Interop] = {}

# The package that a type comes from -> the file that serves it.
_PACKAGES = {
    "numpy": "numpy",
    "ml_dtypes": "numpy",
    "torch": "torch",
    "cupy": "cupy",
    "jax": "jax",
    "jaxlib": "jax",
}


def interop_of(array: Any) -> Interop:
    """The interop module for an array, found by its type's module; no framework is imported to find out."""
    cls: Any = array.__class__
    found = _by_type.get(cls)
    if found is None:
        found = _by_type[cls] = _find(array, cls)
    return found


def _find(array: Any, cls: type) -> Interop:
    for base in cls.__mro__:  # a torch.nn.Parameter, or a subclass defined by the user
        package = base.__module__.partition(".")[0]
        if package in _PACKAGES and _is_array(base):
            return frameworks(_PACKAGES[package])
    if (
        hasattr(cls, "__dlpack__")
        or hasattr(array, "__cuda_array_interface__")
        or hasattr(array, "__array_interface__")
    ):
        return frameworks("generic")
    raise ArgumentTypeError(
        f"a {cls.__module__}.{cls.__qualname__} is not an array: kernels take NumPy, torch, CuPy "
        "and JAX arrays, and "
        "anything with __dlpack__ or __cuda_array_interface__"
    )


def _is_array(cls: type) -> bool:
    return hasattr(cls, "shape") and hasattr(cls, "dtype")


def view(array: Any, stream: int = 0) -> ArrayView:
    """The view of any framework's array. See `Interop.view`."""
    if type(array) is ArrayView:
        return array
    return interop_of(array).view(array, stream)


def is_array(value: Any) -> bool:
    """Whether `view` takes `value`. NumPy scalars count as scalars: they travel by value."""
    if isinstance(value, (np.generic, bool, int, float, complex, str, bytes, type(None), tuple, list, dict)):
        return False
    try:
        interop_of(value)
    except ArgumentTypeError:
        return False
    return True
