"""What torch.compile must not take apart: the frames of this package, and those that they call.

A kernel is no op of PyTorch, so a compiled function breaks its graph at a call of one. Without the marks below torch.compile
would then compile each Python frame of the call, which takes it minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Callable[..., Any])
_codes: set[CodeType] = set()  # of functions that users call
_left: set[CodeType] = set()  # those that torch.compile does not know yet


def unseen(function: _T, why: str) -> _T:
    """`function`, into which torch.compile does not look. Where it may not break its graph, its error says why."""
    marked: Any = function
    marked._torchdynamo_disable, marked._torchdynamo_disable_msg = True, why
    if function.__code__ not in _codes:
        _codes.add(function.__code__)
        _left.add(function.__code__)
    return function


def seen(*functions: Any) -> None:
    """Let torch.compile look into functions again: they find ops of PyTorch for tensors without memory."""
    for function in functions:
        marked: Any = function if hasattr(function, "__code__") else vars(type(function))["__call__"]
        marked._torchdynamo_disable = False


def tell_torch() -> None:
    """Have torch.compile skip the frames of these functions and all that they call, if PyTorch is imported."""
    if not _left or "torch" not in sys.modules:
        return
    codes = list(_left)
    _left.clear()
    inner = getattr(getattr(sys.modules["torch"], "_C", None), "_dynamo", None)
    try:
        frames: Any = inner.eval_frame  # type: ignore[union-attr]
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        for code in codes:
            frames.set_code_exec_strategy(code, skip)
    except AttributeError:  # no public interface: `unwatched` does it for each call
        return


def watcher(torch: Any) -> Callable[[], Any]:
    """A function whose result is None where torch.compile does not look at what runs."""
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    return getattr(frames, "get_eval_frame_callback", lambda: True)


def unwatched(dynamo: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, of whose frames torch.compile sees none, where it looks at what runs. `dynamo`: `torch._dynamo`."""
    return function if watcher(sys.modules["torch"])() is None else dynamo.disable(function)
