"""The trial of `kd.tune`: one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .kernel import Kernel
from .stages import Stages


class KernelTrial:
    """A configuration's kernel. `given`: a call's arguments, with descriptions in place of arrays."""

    def __init__(self, kernel: Kernel, given: Sequence[Any]) -> None:
        self.kernel = kernel
        self._given = tuple(given)

    def stages(self, target: str | None) -> Stages:
        own = self.kernel._definition.params.target  # pyright: ignore[reportPrivateUsage]
        return self.kernel.lower(*self._given, target=own or target)

    def __call__(self, *args: Any, out: Any = None) -> Any:
        return self.kernel(*args, out=out)
