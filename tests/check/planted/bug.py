"""A planted bug in CUDA C++: a kernel with it and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .probe import zeros

_words = zeros(256)


@dataclass(frozen=True)
class Bug:
    """`kinds`: what it may be reported as. `body`: of a kernel, with `<<bad||good>>`; `params`: of the kernel, and what is
    written `before` its name. `early`: it may start before the launch before it ends."""

    name: str
    kinds: str
    body: str
    params: str = "int *a"
    args: Callable[[], list[Any]] = _words
    grid: int = 1
    block: Any = 64
    before: str = ""
    early: bool = False
    ignore: tuple[str, ...] = ()
