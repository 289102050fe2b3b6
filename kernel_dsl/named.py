"""Objects that a module holds by a name, such as `kd.library.matmul`, and how a name finds its object."""

from __future__ import annotations

import sys
from typing import Any, ClassVar


class Named:
    """An object of the module that defines its class. A copy is the object itself, and a pickle holds its name."""

    _called: ClassVar[str]  # as users write it after `kd.`; its last word is the name in the module

    def __repr__(self) -> str:
        return f"<kd.{self._called}>"

    def __reduce__(self) -> str:
        return self._called.rpartition(".")[2]


def object_named(module: str, name: str) -> Any:
    """The object with this qualified name in a module that is imported; None if there is none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
