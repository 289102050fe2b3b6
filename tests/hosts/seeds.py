"""Which random programs of transformations run when."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(*some: int) -> list[Any]:
    """Seeds for `parametrize`: the given ones, and in the long form all others below 100."""
    return [*some, *(pytest.param(n, marks=pytest.mark.slow) for n in range(100) if n not in some)]
