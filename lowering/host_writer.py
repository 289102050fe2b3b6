"""The writer of LLVM text for the host: functions of plain integers and addresses, constants, and calls of the CUDA driver."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from .debug_lines import DebugLines
from .value import V
from .writer import Writer

Word = int | V  # an integer that is known, or an i64

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
    if len(data) > _LONG:  # machine code, which nobody reads here: one call takes a tenth of the time
        return 'c"\\' + data.hex("\\") + '"'
    return 'c"' + "".join(map(_ESCAPED.__getitem__, data)) + '"'


_LONG = 1024  # bytes
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
        self.parts.append(f"define {signature} {unwind} {attributes}{{\nentry:\n" + f.text() + "\n}\n")

    def __str__(self) -> str:
        constants = (
            f"{name} = private unnamed_addr constant [{len(data)} x i8] {quoted(data)}, align 16"
            for data, name in self.constants.items()
        )
        return "\n".join((*constants, *self.parts))


class HostFunction(Writer):
    """The body of one function. All memory of the frame is allocated at its entry."""

    def __init__(self, module: HostModule) -> None:
        super().__init__(DebugLines(), block="entry")
        self.module = module
        self.addresses: dict[int, V] = {}  # of arrays, by their numbers, where the function has them as values

    def text(self) -> str:
        return "\n".join([*self.prelude, *self.lines])

    def given(self, name: str, type: str = "ptr") -> V:
        """A parameter, or a constant of the module, by its name."""
        return self.value(name, type)

    def room(self, nbytes: int, alignment: int = 8) -> V:
        """The address of memory in the frame."""
        place = self.given(self.name())
        self.pre_do(f"{place} = alloca [{max(nbytes, 1)} x i8], align {alignment}")
        return place

    def after(self, base: str, offset: Word) -> V:
        """The address `offset` bytes after `base`."""
        if offset == 0:
            return self.given(base)
        return self.v(f"getelementptr i8, ptr {base}, i64 {offset}", "ptr")

    def load(self, type: str, place: str, offset: Word = 0) -> V:
        return self.v(f"load {type}, ptr {self.after(place, offset)}, align 1", type)

    def write(self, type: str, value: Word | str, base: str, offset: Word = 0) -> None:
        self.do(f"store {type} {value}, ptr {self.after(base, offset)}, align 1")

    def word(self, base: str, offset: int) -> V:
        return self.load("i64", base, offset)

    def pointer(self, base: str, offset: int) -> V:
        return self.load("ptr", base, offset)

    def add(self, a: Word, b: Word) -> Word:
        """`a + b`, of which both may be known."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return b if a == 0 else self.value(a, "i64") + b

    def mul(self, a: Word, b: Word) -> Word:
        """`a * b`, of which both may be known."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        return b if a == 1 else self.value(a, "i64") * b

    def div(self, a: Word, b: int) -> Word:
        return a // b

    def product(self, factors: Iterator[Word]) -> Word:
        made: Word = 1
        for factor in factors:
            made = self.mul(made, factor)
        return made

    def new_label(self, word: str) -> str:
        self._names += 1
        return f"{word}.{self._names}"

    @contextmanager
    def when(self, condition: V) -> Generator[None]:
        """Code written inside runs only if the i1 `condition` holds."""
        yes, on = self.new_label("yes"), self.new_label("on")
        self.branch(condition, yes, on)
        self.begin(yes)
        yield
        self.jump(on)
        self.begin(on)

    def leave_when(self, condition: V, then: Callable[[], None]) -> None:
        """If `condition` holds, run the code that `then` writes, which ends in a return."""
        yes, on = self.new_label("yes"), self.new_label("on")
        self.branch(condition, yes, on)
        self.begin(yes)
        then()
        self.begin(on)

    def leave_to(self, label: str, condition: V) -> None:
        """Go to a label where `condition` holds."""
        on = self.new_label("on")
        self.branch(condition, label, on)
        self.begin(on)

    @contextmanager
    def each(self, count: Word) -> Generator[V]:
        """Code written inside runs for 0, 1 and so on below `count`, which it is given as an i64."""
        at = self.room(8)
        head, body, on = self.new_label("head"), self.new_label("body"), self.new_label("on")
        self.write("i64", 0, at)
        self.jump(head)
        self.begin(head)
        number = self.word(at, 0)
        self.branch(number.below(count), body, on)
        self.begin(body)
        yield number
        self.write("i64", number + 1, at)
        self.jump(head)
        self.begin(on)

    def any(self, tests: Sequence[Callable[[], V]]) -> V:
        """Whether one of these comparisons holds, which are written here."""
        made = self.given("false", "i1")
        for number, test in enumerate(tests):
            one = test()
            made = made | one if number else one
        return made

    def say(self, message: str, words: str, *values: str) -> None:
        """Write an error's text; `values` are typed, as in `i64 %v3`."""
        shown = self.module.text(words)
        rest = "".join(f", {value}" for value in values)
        self.do(f"call i32 (ptr, i64, ptr, ...) @snprintf(ptr {message}, i64 {MESSAGE}, ptr {shown}{rest})")

    def refuse(self, condition: V, code: int, words: str, *values: str) -> None:
        """If the i1 `condition` holds, write an error's text to `%message`, as `say` does, and return `code`."""

        def leave() -> None:
            self.say("%message", words, *values)
            self.do(f"ret i32 {code}")

        self.leave_when(condition, leave)

    def driver_address(self, name: str) -> V:
        """The address of a function of the driver; NULL before it is loaded, and where it has none of that name."""
        return self.load("ptr", "@kd.driver", 8 * DRIVER.index(name))

    def driver(self, name: str, *arguments: str) -> V:
        """Call a function of the driver. Returns its result, an i32."""
        return self.v(f"call i32 {self.driver_address(name)}({', '.join(arguments)})", "i32")
