"""What tests of extents share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .counting import traced


@pytest.fixture
def traces() -> Iterator[list[str]]:
    """The names of kernels that a process of its own would compile meanwhile."""
    with traced() as found:
        yield found
