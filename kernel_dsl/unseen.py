"""What torch.compile must not take apart: the frames of this package, and those that they call.

A kernel is no op of PyTorch, so a compiled function breaks its graph at a call of one. Without the marks below torch.compile
would then compile each Python frame of the call, which takes it minutes. Functions of the library are ops where tensors have
no memory, and go into the graph whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import CodeType
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Callable[..., Any])
_codes: set[CodeType] = set()  # of functions that users call
_left: set[CodeType] = set()  # those that torch.compile does not know yet
_whole: list[Any] = []  # functions for graphs that torch.compile does not know yet


def unseen(function: _T, why: str) -> _T:
    """`function`, into which torch.compile does not look. Where it may not break its graph, its error says why."""
    marked: Any = function
    marked._torchdynamo_disable, marked._torchdynamo_disable_msg = True, why
    if function.__code__ not in _codes:
        _codes.add(function.__code__)
        _left.add(function.__code__)
    return function


def in_graphs(name: str, function: Any) -> None:
    """Let torch.compile take calls of a public function into its graph as they are.

    There the function gets tensors without memory, for which it calls ops of PyTorch. `torch._dynamo` takes more than a
    second to import, so it is not imported here: it learns of the function when it is imported.
    """
    marked: Any = function if hasattr(function, "__code__") else vars(type(function))["__call__"]
    marked._torchdynamo_disable = False
    vars(function)["__name__"] = name
    _whole.append(function)
    dynamo = sys.modules.get(_Import.name)
    if hasattr(dynamo, "allow_in_graph"):
        _allow(dynamo)
    elif not any(isinstance(finder, _Import) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Import())


def _allow(dynamo: Any) -> None:
    """Tell `torch._dynamo` the functions that it does not know yet."""
    while _whole:
        dynamo.allow_in_graph(_whole.pop())


class _Import:
    """A finder of modules that waits for the import of `torch._dynamo`, and then tells it the functions."""

    name = "torch._dynamo"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # so that the others find it
        spec = find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _allow(module)

            loader.exec_module = exec_module
        return spec


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
