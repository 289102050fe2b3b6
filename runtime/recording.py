"""Where launches meet a graph that is being recorded. Knows nothing of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kernel_dsl.compiled import LaunchAttributes, OutputSpec

    from .arrays import ArrayView
    from .calls import Launch, PendingCall
    from .device import LoadedImage


class Recorder(Protocol):
    """What takes calls in place of the device."""

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Make a user's call, whose arguments or grid may hold `Variable`s."""
        ...

    def launch(
        self,
        pending: PendingCall,
        outputs: Sequence[OutputSpec],
        launch: Launch,
        out: Sequence[Any] | None,
    ) -> list[Any]:
        """Keep one launch, checked and ready. Returns its outputs, which hold nothing yet."""
        ...


ImageSink = Callable[["LoadedImage", "Sequence[ArrayView | bytes]", "LaunchAttributes"], None]

_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
_sink: ContextVar[ImageSink | None] = ContextVar("sink", default=None)


def current() -> Recorder | None:
    """The graph that records this thread's calls; None if they are to run."""
    return _recorder.get()


@contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
    """Hand this thread's calls to `recorder` for a while; with None, run them."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, by the recorder if there is one.

    What a user calls goes through here, so that a graph can make the call again with other values
    of its variables.
    """
    recorder = _recorder.get()
    if recorder is None:
        return function(*args, **kwargs)
    return recorder.call(function, args, kwargs)


@contextmanager
def taking_images(sink: ImageSink) -> Iterator[None]:
    """Hand the launches of images to `sink` for a while, with their parameters."""
    token = _sink.set(sink)
    try:
        yield
    finally:
        _sink.reset(token)


def takes_image(
    image: LoadedImage, params: Sequence[ArrayView | bytes], attributes: LaunchAttributes
) -> bool:
    """Whether a launch of an image was handed to a recorder, and must not be issued."""
    sink = _sink.get()
    if sink is None:
        return False
    sink(image, params, attributes)
    return True
