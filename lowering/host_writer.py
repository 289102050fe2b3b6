"""A writer of LLVM text for the host: functions of plain integers and addresses, constants, and calls of the CUDA driver."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

Word = int | str  # an integer that is known, or the name of an i64

# The driver's functions that host code calls, by the name of the library's symbol, in the order of the table.
DRIVER = (
    "cuGetErrorString",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxGetDevice",
    "cuCtxGetId",
    "cuStreamGetCtx",
    "cuDevicePrimaryCtxRetain",
    "cuThreadExchangeStreamCaptureMode",
    "cuLibraryLoadData",
    "cuLibraryUnload",
    "cuLibraryGetKernel",
    "cuKernelGetFunction",
    "cuKernelSetAttribute",
    "cuLaunchKernelEx",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuMemsetD16Async",
    "cuMemsetD32Async",
    "cuMemsetD2D32Async",
    "cuTensorMapEncodeTiled",
)
C_FUNCTIONS = ("dlopen", "dlsym", "snprintf")  # the C functions that host code calls
MESSAGE = 512  # bytes of an error's text, its end included


def quoted(data: bytes) -> str:
    """A constant of LLVM's text that holds these bytes."""
    return 'c"' + "".join(map(_ESCAPED.__getitem__, data)) + '"'


_ESCAPED = [chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02x}" for b in range(256)]


class HostModule:
    """Constants and functions of one module. Constants of equal bytes are one."""

    def __init__(self) -> None:
        self.constants: dict[bytes, str] = {}
        self.parts: list[str] = []

    def bytes(self, data: bytes) -> str:
        """A constant's address."""
        name = self.constants.get(data)
        if name is None:
            name = self.constants[data] = f"@data.{len(self.constants)}"
        return name

    def text(self, words: str) -> str:
        """The address of a text that ends in NUL."""
        return self.bytes(words.encode() + b"\0")

    def words(self, numbers: Sequence[int], bits: int = 64) -> str:
        """The address of an array of integers."""
        return self.bytes(b"".join(n.to_bytes(bits // 8, "little", signed=n < 0) for n in numbers))

    def function(
        self, signature: str, body: Callable[[HostFunction], None], attributes: str = "", throws: bool = False
    ) -> None:
        """Define a function.

        `signature`: the text between `define` and the brace. `throws`: exceptions pass through it.
        """
        f = HostFunction(self)
        body(f)
        unwind = "uwtable" if throws else "nounwind"
        self.parts.append(f"define {signature} {unwind} {attributes}{{\nentry:\n" + "\n".join(f.all()) + "\n}\n")

    def __str__(self) -> str:
        constants = (
            f"{name} = private unnamed_addr constant [{len(data)} x i8] {quoted(data)}, align 16"
            for data, name in self.constants.items()
        )
        return "\n".join((*constants, *self.parts))


class HostFunction:
    """The body of one function. All memory of the frame is allocated at its entry."""

    def __init__(self, module: HostModule) -> None:
        self.module = module
        self.frame: list[str] = []
        self.lines: list[str] = []
        self.count: int = 0
        self.addresses: dict[int, str] = {}  # of arrays, by their numbers, where the function has them as values

    def all(self) -> list[str]:
        return [*self.frame, *self.lines]

    def put(self, line: str) -> None:
        self.lines.append("  " + line)

    def name(self, prefix: str = "%v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def v(self, text: str) -> str:
        """An instruction with a result."""
        name = self.name()
        self.put(f"{name} = {text}")
        return name

    def room(self, nbytes: int, alignment: int = 8) -> str:
        """The address of memory in the frame."""
        name = self.name()
        self.frame.append(f"  {name} = alloca [{max(nbytes, 1)} x i8], align {alignment}")
        return name

    def at(self, base: str, offset: Word) -> str:
        """The address `offset` bytes after `base`."""
        return base if offset == 0 else self.v(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load(self, type: str, base: str, offset: Word = 0, how: str = "") -> str:
        return self.v(f"load {type}, ptr {self.at(base, offset)}, align 1{how}")

    def store(self, type: str, value: Word, base: str, offset: Word = 0) -> None:
        self.put(f"store {type} {value}, ptr {self.at(base, offset)}, align 1")

    def word(self, base: str, offset: int) -> str:
        return self.load("i64", base, offset)

    def pointer(self, base: str, offset: int) -> str:
        return self.load("ptr", base, offset)

    def add(self, a: Word, b: Word) -> Word:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return b if a == 0 else a if b == 0 else self.v(f"add i64 {a}, {b}")

    def mul(self, a: Word, b: Word) -> Word:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        return b if a == 1 else a if b == 1 else self.v(f"mul i64 {a}, {b}")

    def div(self, a: Word, b: int) -> Word:
        return a // b if isinstance(a, int) else self.v(f"udiv i64 {a}, {b}")

    def product(self, factors: Iterator[Word]) -> Word:
        made: Word = 1
        for factor in factors:
            made = self.mul(made, factor)
        return made

    def goto(self, label: str) -> None:
        self.put(f"br label %{label}")

    def label(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def new_label(self, word: str) -> str:
        return self.name(f"{word}.")

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Code written inside runs only if the i1 `condition` holds."""
        yes, on = self.new_label("yes"), self.new_label("on")
        self.put(f"br i1 {condition}, label %{yes}, label %{on}")
        self.label(yes)
        yield
        self.goto(on)
        self.label(on)

    def leave_when(self, condition: str, then: Callable[[], None]) -> None:
        """If `condition` holds, run the code that `then` writes, which ends in a return."""
        yes, on = self.new_label("yes"), self.new_label("on")
        self.put(f"br i1 {condition}, label %{yes}, label %{on}")
        self.label(yes)
        then()
        self.label(on)

    def leave_to(self, label: str, condition: str) -> None:
        """Go to a label where `condition` holds."""
        on = self.new_label("on")
        self.put(f"br i1 {condition}, label %{label}, label %{on}")
        self.label(on)

    def any(self, tests: Sequence[str]) -> str:
        """Whether one of these comparisons holds."""
        made = "false"
        for number, test in enumerate(tests):
            one = self.v(test)
            made = self.v(f"or i1 {made}, {one}") if number else one
        return made

    def say(self, message: str, words: str, *values: str) -> None:
        """Write an error's text; `values` are typed, as in `i64 %v3`."""
        shown = self.module.text(words)
        rest = "".join(f", {value}" for value in values)
        self.put(f"call i32 (ptr, i64, ptr, ...) @snprintf(ptr {message}, i64 {MESSAGE}, ptr {shown}{rest})")

    def driver_address(self, name: str) -> str:
        """The address of a function of the driver; NULL before it is loaded, and where it has none of that name."""
        return self.load("ptr", "@kd.driver", 8 * DRIVER.index(name))

    def driver(self, name: str, *arguments: str) -> str:
        """Call a function of the driver. Returns its result, an i32."""
        return self.v(f"call i32 {self.driver_address(name)}({', '.join(arguments)})")
