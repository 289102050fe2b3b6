"""The fast path of a C function's calls: it compares all that is checked at once, asks the driver for the context, and launches.

Each thread keeps the context of its last call and the kernel's function there. A call in the same context with arrays that fit
is launched. Any other takes the slow path, which finds the error. A context is identified by `cuCtxGetId`: the driver may reuse
the address of a destroyed context, but never its id.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .host import ROW, Host
from .host_tensors import CUDA, DL_CODES, gapless
from .host_writer import MESSAGE, HostFunction, Word
from .value import V

KNOWN = 24  # bytes behind the message of a thread: the context's id, the function in it or NULL, the GPU as a DLDevice
_ID, _FUNCTION, _DEVICE = MESSAGE, MESSAGE + 8, MESSAGE + 16


def remember(host: Host, f: HostFunction, device: str) -> None:
    """After a successful call, keep what the thread's next call may use."""
    if host.plan.launch is None:
        return
    made = f.room(16)
    asks = f.driver_address("cuCtxGetId").differs("null")
    with f.when(asks):
        first = f.driver("cuCtxGetId", "ptr null", f"ptr {made}")
        kernel = f.v("load atomic ptr, ptr @kd.kernel acquire, align 8", "ptr")
        second = f.driver("cuKernelGetFunction", f"ptr {f.after(made, 8)}", f"ptr {kernel}")
        with f.when((first | second).equal(0)):
            f.write("i64", f.word(made, 0), "%message", _ID)
            f.write("ptr", f.pointer(made, 8), "%message", _FUNCTION)
            f.write("i32", CUDA, "%message", _DEVICE)
            f.write("i32", device, "%message", _DEVICE + 4)


class Repeated:
    """The checks of the fast path. `arrays`: names of DLTensors, by the arrays' numbers.

    LLVM does not optimise this code, and each branch sends all values to memory, so the checks are few branches. They
    compare a DLDevice, and a rank with its dtype, as one word.
    """

    def __init__(self, host: Host, f: HostFunction, arrays: dict[int, str]) -> None:
        self.host: Host = host
        self.f: HostFunction = f
        self.arrays: dict[int, str] = arrays
        self.other: str = f.new_label("other")  # where calls go that do not fit
        self.addresses: dict[int, V] = {}
        self.strides: dict[int, V] = {}  # addresses of strides, of arrays that may have any

    def check(self) -> V:
        """Go to `other` unless the call fits. Returns the kernel's function."""
        f = self.f
        known = f.pointer("%message", _FUNCTION)
        f.leave_to(self.other, f.any([partial(f.given(x).equal, "null") for x in (known, *self.arrays.values())]))
        self.fits(f.word("%message", _DEVICE))
        context = f.room(8)
        code = f.driver("cuCtxGetId", "ptr null", f"ptr {context}")
        other = partial(f.word(context, 0).differs, f.word("%message", _ID))
        f.leave_to(self.other, f.any([partial(code.differs, 0), other]))
        return known

    def fits(self, device: Word) -> None:
        """Go to `other` unless the arrays are on this GPU, a DLDevice, and of the compiled signature."""
        tests = [test for number, tensor in self.arrays.items() for test in self._array(number, tensor, device)]
        self.f.leave_to(self.other, self.f.any([*tests, *self._overlaps()]))

    def rows(self) -> V:
        """The rows of a launch's arrays, those of `addresses` filled."""
        f, plan = self.f, self.host.plan
        rows = f.room(ROW * (len(plan.arrays) + len(plan.scratch)))
        for number, address in self.addresses.items():
            f.write("i64", address, rows, ROW * number)
        for number, strides in self.strides.items():
            f.write("ptr", strides, rows, ROW * number + 8)
        return rows

    def _array(self, number: int, tensor: str, device: Word) -> list[Callable[[], V]]:
        """Tests of an array: it fits if none holds."""
        f, given = self.f, self.host.plan.arrays[number]
        plain, words = gapless(given.shape), self.host.module.words
        dtype = DL_CODES[given.dtype.name] | given.dtype.bits << 8 | 1 << 16
        wrong = self._differ(None, f.word(tensor, 8), device)
        wrong = self._differ(wrong, f.word(tensor, 16), len(given.shape) | dtype << 32)
        if given.shape:
            shape = self._or_else(f.pointer(tensor, 24), words([-1] * len(given.shape)))
            for axis, extent in enumerate(given.shape):
                wrong = self._differ(wrong, f.word(shape, 8 * axis), extent)
        strides = self._or_else(f.pointer(tensor, 32), words(plain or [0]))
        if not given.contiguous:
            self.strides[number] = strides
        elif 0 not in given.shape:
            for axis, (extent, stride) in enumerate(zip(given.shape, plain, strict=True)):
                if extent > 1:  # else no index is multiplied by it
                    wrong = self._differ(wrong, f.word(strides, 8 * axis), stride)
        data = f.word(tensor, 0)
        address = self.addresses[number] = data + f.word(tensor, 40)
        if 0 in given.shape:
            return [partial(wrong.differs, 0)]
        if given.alignment > 1:
            wrong = wrong | (address & (given.alignment - 1))
        return [partial(wrong.differs, 0), partial(data.equal, 0)]

    def _differ(self, before: V | None, has: V, wanted: Word) -> V:
        """`before`, with bits set where `has` is not what is wanted."""
        bits = has.written("xor", wanted)
        return bits if before is None else before | bits

    def _or_else(self, pointer: V, other: str) -> V:
        """`pointer`, or `other` where that is NULL."""
        return pointer.equal("null").where(other, pointer, "ptr")

    def _overlaps(self) -> list[Callable[[], V]]:
        """Tests of pairs of arrays of which one is written."""
        f, host, found = self.f, self.host, list[Callable[[], V]]()
        for i, j in host.plan.pairs:
            if i not in self.arrays or j not in self.arrays:
                continue  # memory of its own
            a, b = host.plan.arrays[i], host.plan.arrays[j]
            if not (a.contiguous and b.contiguous) or 0 in a.shape or 0 in b.shape:
                continue
            p, q = self.addresses[i], self.addresses[j]
            # -size(i) < p - q < size(j), as one comparison of what wraps around
            span: Word = f.add(host.size(f, i), host.size(f, j))
            shifted = p - q + f.add(host.size(f, i), -1)
            near = shifted.below(f.add(span, -1))
            if (i, j) in host.plan.shared:
                near = near & p.differs(q)
            found.append(partial(near.equal, "true"))
        return found
