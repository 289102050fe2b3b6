"""The errors of a function of the library for what it is called with."""

from __future__ import annotations

from kernel_dsl.errors import BadCallArgument, BadCallValue


class Refusals:
    """Makes the errors of the function named `kernel`; each is told at the caller's line."""

    kernel: str

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def argument(self, what: str, hint: str) -> BadCallArgument:
        """For what is of another kind."""
        return BadCallArgument(kernel=self.kernel, what=what, hint=hint)

    def value(self, what: str, hint: str) -> BadCallValue:
        """For a value that does not fit."""
        return BadCallValue(kernel=self.kernel, what=what, hint=hint)
