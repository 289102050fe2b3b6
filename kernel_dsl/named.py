"""Objects that a module holds by a name, such as `kd.library.matmul`."""

from __future__ import annotations

from typing import ClassVar


class Named:
    """An object of the module that defines its class. A copy is the object itself, and a pickle holds its name."""

    _called: ClassVar[str]  # as users write it after `kd.`; its last word is the name in the module

    def __repr__(self) -> str:
        return f"<kd.{self._called}>"

    def __reduce__(self) -> str:
        return self._called.rpartition(".")[2]
