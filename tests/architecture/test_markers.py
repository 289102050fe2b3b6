"""Tests that need a GPU say what of it they need, and are skipped with a reason where that is not there."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_dsl.target import SM_80, SM_90, SM_90A
from tests.conftest import FEATURES, why_not


class Item:
    """A test with markers."""

    def __init__(self, *markers: str) -> None:
        self.markers = markers

    def get_closest_marker(self, name: str) -> Any:
        return name if name in self.markers else None


@pytest.mark.parametrize(
    ("item", "gpus", "target", "expected"),
    [
        (Item("gpu"), 0, None, "no NVIDIA GPU"),
        (Item("gpu"), 1, SM_80, ""),
        (Item("gpu", "several_gpus"), 1, SM_90A, "needs two"),
        (Item("gpu", "tma", "wgmma"), 1, SM_90A, ""),
        (Item("gpu", "tma", "wgmma"), 1, SM_90, "(sm_90) has no wgmma"),
        (Item("gpu", "tma"), 2, SM_80, "(sm_80) has no tma"),
    ],
)
def test_reasons(item: Item, gpus: int, target: Any, expected: str) -> None:
    reason = why_not(item, gpus, target)
    assert expected in reason and bool(reason) == bool(expected)


def test_the_kernels_of_hopper_are_marked(request: pytest.FixtureRequest) -> None:
    """Every test of tests/hopper that would run on a GPU names a feature."""
    for item in request.session.items:
        if "tests/hopper" in item.nodeid and item.get_closest_marker("gpu"):
            assert any(item.get_closest_marker(name) for name in FEATURES), item.nodeid
