"""The latest calls of a library function: a look-up before arrays are examined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from kernel_dsl.call_inputs import struct_of
from kernel_dsl.definition import output_structs
from kernel_dsl.interpret_params import InterpretParams
from kernel_dsl.kernel import Kernel

UNSEEN: Any = object()
Launch = Callable[..., Any]  # `(kernel, args, out=None, partial=False) -> results`


class Unseen(Exception):
    """A call resembles an earlier one, but one of its launches is new, so the slow path takes the whole call."""


def seen_call(kernel: Kernel, args: Sequence[Any], out: Any, stream: Any) -> Any:
    """The result of a call like an earlier one on a GPU. `UNSEEN` for any other call, without a launch."""
    fast = kernel._fast  # pyright: ignore[reportPrivateUsage]
    if fast is None:
        return UNSEEN
    if stream is None and not fast.recording.active:
        result = fast.latest(args, out, None)
        if result is not fast.miss:
            return result
    result = fast(args, out, stream)
    return UNSEEN if result is fast.miss else result


def kernels_of(plan: Any) -> Iterator[Kernel]:
    """The kernels that a plan is or holds, in a plan of its own, too."""
    if isinstance(plan, Kernel):
        yield plan
    elif is_dataclass(plan):
        for field in fields(plan):
            yield from kernels_of(getattr(plan, field.name))


def compiled_for(plans: Iterable[Any]) -> list[Any]:
    """The compiled kernels of this process for the calls of these plans: see `Kernel.specialisations`."""
    kernels = {id(kernel): kernel for plan in plans for kernel in kernels_of(plan)}
    return [made for kernel in kernels.values() for made in kernel.specialisations()]


def results_of(kernel: Any, *arrays: Any) -> list[Any]:
    """Descriptions of the results of a kernel for such arrays, which may be descriptions."""
    given = [struct_of(x, kernel.name) for x in arrays]
    return [x for x in output_structs(kernel._definition, given)[0] if x is not None]


def launching(stream: Any, interpret: Any) -> Launch:
    """A function that calls kernels plainly. `partial`: the kernel leaves elements of its results unwritten, on purpose."""
    quiet = without_unwritten(interpret)
    return lambda kernel, args, out=None, partial=False: kernel(
        *args, out=out, stream=stream, interpret=quiet if partial else interpret
    )


def without_unwritten(interpret: Any) -> Any:
    """`interpret` for a kernel whose results another kernel reads in part: unwritten elements are no hazard."""
    if isinstance(interpret, InterpretParams) and interpret.report_unwritten:
        return replace(interpret, report_unwritten=False)
    return interpret


def seen_launching(stream: Any) -> Launch:
    """A function that calls kernels as `seen_call`, and raises `Unseen` for new calls."""

    def launch(kernel: Kernel, args: Sequence[Any], out: Any = None, partial: bool = False) -> Any:
        made = seen_call(kernel, args, out, stream)
        if made is UNSEEN:
            raise Unseen
        return made

    return launch


Seen = Callable[[list[Any], Any, Any], Any]


class Latest:
    """Earlier calls, by their options and shapes, with functions that launch their kernels again for arrays of the same
    kind.

    A model's step calls a function with many options in turn, so it pays to keep more than the latest call.
    """

    MANY = 1024  # options and shapes that are kept
    ALIKE = 4  # calls of one kind that differ in dtypes or strides

    def __init__(self) -> None:
        self.forget()

    def keep(self, key: tuple[Any, ...], inputs: Sequence[Any], seen: Seen) -> None:
        """`seen(inputs, out, stream)` gives the result, or `UNSEEN`. `key`: all options, and the types of numbers among them."""
        like = (key, getattr(inputs[0], "shape", None), getattr(inputs[1], "shape", None))
        self._newest = like, (seen,)
        try:
            before = self._known.get(like, ())
            self._newest = like, before if seen in before else (seen, *before)[: self.ALIKE]
            if len(self._known) >= self.MANY:
                self._known.clear()
            self._known[like] = self._newest[1]
        except TypeError:  # an option can't be hashed
            pass

    def forget(self) -> None:
        """Make the next calls take the slow path."""
        self._newest: tuple[Any, tuple[Seen, ...]] = (None, ())
        self._known: dict[Any, tuple[Seen, ...]] = {}

    def call(self, key: tuple[Any, ...], inputs: list[Any], out: Any, stream: Any) -> Any:
        """The result, if there was a call with these options and shapes whose kernels took arrays of this kind;
        otherwise `UNSEEN`.

        With `UNSEEN`, no array of the caller was written.
        """
        like = (key, getattr(inputs[0], "shape", None), getattr(inputs[1], "shape", None))
        newest, found = self._newest
        try:
            if newest != like:
                found = self._known.get(like, ())
                if found:  # an option of a wrong kind is not kept; comparing it with others may fail
                    self._newest = like, found
            for seen in found:
                try:
                    made = seen(inputs, out, stream)
                except Unseen:
                    continue
                if made is not UNSEEN:
                    return made
        except (TypeError, ValueError):  # an option is an array or no dtype: the slow path raises the error
            pass
        return UNSEEN
