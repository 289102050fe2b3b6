"""Users' functions in the form in which torch.compile takes them as arguments of the library."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from typing import Any

_numbers = itertools.count()


class GraphFunction(enum.Enum):
    """A function as the one member of an enumeration: a constant of torch.compile's graphs, which take no functions."""

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function."""
        return self.value[0]

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __repr__(self) -> str:
        return f"<kd.torch.function of {self.function!r}>"


def graph_function(function: Callable[..., Any]) -> GraphFunction:
    """A function as a constant of graphs."""
    made: Any = GraphFunction(f"Function{next(_numbers)}", [("function_", (function,))])
    return made.function_
