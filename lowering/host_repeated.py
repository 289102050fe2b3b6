"""The fast path of a C function's calls: it compares all that is checked at once, asks the driver for the context, and launches.

Each thread keeps the context of its last call and the kernel's function there. A call in the same context with arrays that fit
is launched. Any other takes the slow path, which finds the error. A context is identified by `cuCtxGetId`: the driver may reuse
the address of a destroyed context, but never its id.
"""

from __future__ import annotations

from .host import ROW, Host
from .host_tensors import CUDA, DL_CODES, gapless
from .host_writer import MESSAGE, HostFunction, Word

KNOWN = 24  # bytes behind the message of a thread: the context's id, the function in it or NULL, the GPU's number
_ID, _FUNCTION, _DEVICE = MESSAGE, MESSAGE + 8, MESSAGE + 16


def remember(host: Host, f: HostFunction, device: str) -> None:
    """After a successful call, keep what the thread's next call may use."""
    if host.plan.launch is None:
        return
    made = f.room(16)
    asks = f.v(f"icmp ne ptr {f.driver_address('cuCtxGetId')}, null")
    with f.when(asks):
        first = f.driver("cuCtxGetId", "ptr null", f"ptr {made}")
        kernel = f.v("load atomic ptr, ptr @kd.kernel acquire, align 8")
        second = f.driver("cuKernelGetFunction", f"ptr {f.at(made, 8)}", f"ptr {kernel}")
        with f.when(f.v(f"icmp eq i32 {f.v(f'or i32 {first}, {second}')}, 0")):
            f.store("i64", f.word(made, 0), "%message", _ID)
            f.store("ptr", f.pointer(made, 8), "%message", _FUNCTION)
            f.store("i32", device, "%message", _DEVICE)


class Repeated:
    """The checks of the fast path. `arrays`: names of DLTensors, by the arrays' numbers."""

    def __init__(self, host: Host, f: HostFunction, arrays: dict[int, str]) -> None:
        self.host, self.f, self.arrays = host, f, arrays
        self.other: str = f.new_label("other")  # where calls go that do not fit

    def check(self) -> tuple[str, str]:
        """Go to `other` unless the call fits. Returns the rows of addresses, and the kernel's function."""
        f = self.f
        known = f.pointer("%message", _FUNCTION)
        f.leave_to(self.other, f.any([f"icmp eq ptr {x}, null" for x in (known, *self.arrays.values())]))
        rows = self.fits(f.load("i32", "%message", _DEVICE))
        context = f.room(8)
        code = f.driver("cuCtxGetId", "ptr null", f"ptr {context}")
        same = f"icmp ne i64 {f.word(context, 0)}, {f.word('%message', _ID)}"
        f.leave_to(self.other, f.any([f"icmp ne i32 {code}, 0", same]))
        return rows, known

    def fits(self, device: str) -> str:
        """Go to `other` unless the arrays are on this GPU and of the compiled signature. Returns the rows of addresses."""
        f, plan = self.f, self.host.plan
        wrong: list[str] = []
        for number, tensor in self.arrays.items():
            given = plan.arrays[number]
            dtype = DL_CODES[given.dtype.name] | given.dtype.bits << 8 | 1 << 16
            for offset, wanted in ((8, CUDA), (12, device), (16, len(given.shape)), (20, dtype)):
                wrong.append(f.v(f"xor i32 {f.load('i32', tensor, offset)}, {wanted}"))
        shapes = [f"icmp eq ptr {f.pointer(x, 24)}, null" for n, x in self.arrays.items() if plan.arrays[n].shape]
        tests = [f"icmp ne i32 {self._any_bit('i32', wrong)}, 0"] if wrong else []
        f.leave_to(self.other, f.any([*tests, *shapes]))
        rows = f.room(ROW * (len(plan.arrays) + len(plan.scratch)))
        wrong, missing = [], list[str]()
        for number, tensor in self.arrays.items():
            self._memory(number, tensor, rows, wrong, missing)
        tests = [f"icmp ne i64 {self._any_bit('i64', wrong)}, 0"] if wrong else []
        f.leave_to(self.other, f.any([*tests, *missing, *self._overlaps(rows)]))
        return rows

    def _memory(self, number: int, tensor: str, rows: str, wrong: list[str], missing: list[str]) -> None:
        """Compare extents, strides and the address: the array fits if all of `wrong` are 0 and all of `missing` false."""
        f, given = self.f, self.host.plan.arrays[number]
        shape, strides = f.pointer(tensor, 24), f.pointer(tensor, 32)
        wrong += [f.v(f"xor i64 {f.word(shape, 8 * k)}, {n}") for k, n in enumerate(given.shape)]
        plain = gapless(given.shape)
        absent = f.v(f"icmp eq ptr {strides}, null")
        strides = f.v(f"select i1 {absent}, ptr {self.host.module.words(plain or [0])}, ptr {strides}")
        if given.contiguous and 0 not in given.shape:
            used = [(k, s) for k, (n, s) in enumerate(zip(given.shape, plain, strict=True)) if n > 1]
            wrong += [f.v(f"xor i64 {f.word(strides, 8 * k)}, {s}") for k, s in used]
        data = f.word(tensor, 0)
        address = f.v(f"add i64 {data}, {f.word(tensor, 40)}")
        for offset, (type, value) in enumerate((("i64", address), ("ptr", shape), ("ptr", strides))):
            f.store(type, value, rows, ROW * number + 8 * offset)
        if 0 not in given.shape:
            missing.append(f"icmp eq i64 {data}, 0")
            if given.alignment > 1:
                wrong.append(f.v(f"and i64 {address}, {given.alignment - 1}"))

    def _overlaps(self, rows: str) -> list[str]:
        """Tests of pairs of arrays of which one is written."""
        f, host, found = self.f, self.host, list[str]()
        for i, j in host.plan.pairs:
            if i not in self.arrays or j not in self.arrays:
                continue  # memory of its own
            a, b = host.plan.arrays[i], host.plan.arrays[j]
            if not (a.contiguous and b.contiguous) or 0 in a.shape or 0 in b.shape:
                continue
            p, q = host.address_in(f, rows, i), host.address_in(f, rows, j)
            # -size(i) < p - q < size(j), as one comparison of what wraps around
            span: Word = f.add(host.size(f, i), host.size(f, j))
            shifted = f.v(f"add i64 {f.v(f'sub i64 {p}, {q}')}, {f.add(host.size(f, i), -1)}")
            near = f.v(f"icmp ult i64 {shifted}, {f.add(span, -1)}")
            if (i, j) in host.plan.shared:
                near = f.v(f"and i1 {near}, {f.v(f'icmp ne i64 {p}, {q}')}")
            found.append(f"icmp eq i1 {near}, true")
        return found

    def _any_bit(self, type: str, values: list[str]) -> str:
        made = values[0]
        for value in values[1:]:
            made = self.f.v(f"or {type} {made}, {value}")
        return made
