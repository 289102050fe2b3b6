"""Work that is counted: the same on a slow machine and on a busy one, and more when the code does more."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def calls(function: Callable[[], Any]) -> int:
    """The calls of Python's and of built-in functions that `function()` comes down to in this thread."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # finalizers of what was made earlier are not this function's
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count
