"""Kernels from the text of a generated program."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any


class FromText:
    """A program with a name and a source, which defines `kernel`."""

    name: str
    source: Callable[[], str]

    def kernel(self) -> Any:
        """The kernel. Errors and reports show its lines, as those of a file named `<name>`."""
        path, text = f"<{self.name}>", self.source()
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        names: dict[str, Any] = {}
        exec(compile(text, path, "exec"), names)
        return names["kernel"]
