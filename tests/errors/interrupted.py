"""Compiles kernel after kernel until it is interrupted, then shows that nothing was left behind. See test_interrupts.py."""

from __future__ import annotations

import gc
import inspect
import linecache
import random
import sys
import time
import weakref
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np

X = np.arange(256, dtype=np.float32).reshape(2, 128)


def large(number: int) -> Any:
    """Stages whose machine code takes seconds, most of them in one call of LLVM's."""
    import kernel_dsl as kd

    struct = kd.ShapeDtypeStruct((2**15,), kd.float32)
    body = lambda x, o: o.__setitem__(..., kd.power(x[...], x[...] + float(number)))  # noqa: E731
    return kd.kernel(body, out_type=struct).lower(struct)


def kernel(number: int, ops: int) -> Any:
    """A kernel that no cache holds, of as many operations."""
    import kernel_dsl as kd

    def body(x: Any, out: Any) -> None:
        value = x[...] + float(number)
        for i in range(ops):
            value = kd.where(value > i, kd.exp(value * 0.001), value - value.sum(axis=1, keepdims=True))
        out[...] = kd.fori_loop(0, 3, lambda i, v: v + 1.0, value)

    return kd.kernel(body, out_type=X)


def work(number: int, ops: int) -> None:
    """All that a compile is: the trace, LLVM, the assembler, and a run in the interpreter."""
    made = kernel(number, ops)
    made.lower(X).compile()
    made(X, interpret=True)


class InterruptAt:
    """A trace function that raises KeyboardInterrupt at one line event of a thread, the `number`th of those in `places`.

    A place is a part of "folder/file.py:function".
    """

    def __init__(self, number: int, places: tuple[str, ...]) -> None:
        self.number, self.places, self.count = number, places, 0
        self.where: list[str] = []

    def meant(self, code: CodeType) -> bool:
        """Whether lines of this code count."""
        return any(place in f"{code.co_filename}:{code.co_name}" for place in self.places)

    def __call__(self, frame: FrameType, event: str, arg: object) -> InterruptAt | None:
        name = frame.f_code.co_filename
        if not self.meant(frame.f_code):
            return None
        # Python looks for signals at calls and loops: none arrives between the body of a `with` and its exit
        if event == "line" and not linecache.getline(name, frame.f_lineno).lstrip().startswith("with "):
            self.count += 1
            if self.count == self.number:
                sys.settrace(None)
                while len(self.where) < 4:
                    self.where.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                    frame = frame.f_back or frame
                raise KeyboardInterrupt
        return self

    def arrived(self, number: int) -> str:
        """Compile kernel `number`: what came in place of the interrupt, empty where it came.

        Python drops what is raised in a finalizer or a weak reference's callback, an interrupt too, and says so.
        """
        got: BaseException | None = None
        dropped: list[object] = []
        sys.unraisablehook = lambda unraisable: dropped.append(unraisable.exc_type)
        sys.settrace(self)
        try:
            work(number, 2)
        except BaseException as error:
            got = error
        finally:
            sys.settrace(None)
            sys.unraisablehook = sys.__unraisablehook__
        came = type(got) is KeyboardInterrupt or dropped == [KeyboardInterrupt]
        return "" if came or not self.where else f"{self.where}: {got!r}"


class InterruptImport(InterruptAt):
    """The same for lines of our modules and of the classes in them, which run while a module is imported."""

    def meant(self, code: CodeType) -> bool:
        return not code.co_flags & inspect.CO_OPTIMIZED and super().meant(code)


def callbacks() -> Counter[str]:
    """The functions in Python that run when an object goes."""
    refs = [r for r in gc.get_objects() if isinstance(r, weakref.ref)]
    return Counter(r.__callback__.__qualname__ for r in refs if isinstance(r.__callback__, FunctionType))


def at_lines(seed: int, count: int, places: tuple[str, ...]) -> None:
    """Interrupt compiles at `count` random lines of such places, and compile the same kernel after each."""
    from kernel_dsl.trace import _current  # pyright: ignore[reportPrivateUsage]

    first = 1_000_000 * (seed + 1)
    work(first, 2)
    whole = InterruptAt(-1, places)
    whole.arrived(first + 1)
    order = random.Random(seed)
    for i, number in enumerate(order.sample(range(1, whole.count), min(count, whole.count - 1))):
        at = InterruptAt(number, places)
        wrong = at.arrived(first + 2 + i)
        if wrong or _current.get() is not None:
            print(f"line {number} of {whole.count}: {wrong or at.where}", flush=True)
            _current.set(None)
        work(first + 2 + i, 2)
    print("done", flush=True)


def at_imports(seed: int, count: int) -> None:
    """Interrupt the imports of a first compile at `count` random lines, and compile after each."""
    order = random.Random(seed)
    work(0, 2)  # imports what others have
    lines = 0
    for number in range(1, count + 2):
        for name in [name for name in sys.modules if name.partition(".")[0] == "kernel_dsl"]:
            del sys.modules[name]
        at = InterruptImport(order.randint(1, lines) if lines else -1, ("/kernel_dsl/",))
        wrong = at.arrived(number)
        lines = lines or at.count
        try:
            work(number, 2)
        except Exception as error:
            wrong = f"{wrong} {error!r:.300}"
        if wrong:
            print(f"line {at.number} of {lines}: {at.where}: {wrong}", flush=True)
    print("done", flush=True)


def main() -> None:
    if sys.argv[1] == "imports":
        at_imports(int(sys.argv[2]), int(sys.argv[3]))
        return
    if sys.argv[1] == "count":
        work(0, 2)  # imports what it needs
        whole = InterruptAt(-1, tuple(sys.argv[2:]))
        whole.arrived(1)
        print(whole.count, flush=True)
        return
    if sys.argv[1] == "callbacks":
        work(0, 2)
        before = callbacks()
        made = kernel(1, 2)
        made.lower(X).compile()
        made(X, interpret=True)
        print(dict(callbacks() - before), flush=True)
        return
    if sys.argv[1] == "lines":
        at_lines(int(sys.argv[2]), int(sys.argv[3]), tuple(sys.argv[4:]))
        return
    folder, slow = Path(sys.argv[1]), sys.argv[2] == "slow"
    print("ready", flush=True)
    number = 0
    try:
        while True:
            if slow:
                large(number).ptx  # noqa: B018
            work(number, 1 + 12 * (number % 4))
            number += 1
    except KeyboardInterrupt:
        print(f"interrupted {time.time()}", flush=True)
    import kernel_dsl as kd
    from kernel_dsl.trace import _current  # pyright: ignore[reportPrivateUsage]

    assert _current.get() is None, "a trace is still open"
    for _ in range(2):
        work(number, 2)
        work(10**6, 1)
        number += 1
    out = kd.kernel(lambda x, o: o.__setitem__(..., x[...] * 2), out_type=X)(X, interpret=True)
    assert (out == X * 2).all()
    halves = [
        p for p in folder.rglob("*") if p.is_file() and ("tmp" in p.relative_to(folder).parts or p.suffix == ".tmp")
    ]
    assert halves == [], halves
    print("whole", flush=True)


if __name__ == "__main__":
    main()
