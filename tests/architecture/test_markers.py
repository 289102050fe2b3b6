"""Tests that need a GPU say what of it they need, and are skipped with a reason where that is not there."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_dsl.target import SM_80, SM_90, SM_90A
from tests.conftest import FEATURES, in_turn, why_not


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


def test_a_sample_has_every_value_of_each_parameter() -> None:
    """The first cases of a test do, and all others follow; whatever the order in which they were collected."""
    places = list(itertools.product(range(7), range(3), range(4)))
    cases = [
        SimpleNamespace(nodeid=f"test[{place}]", callspec=SimpleNamespace(indices=dict(zip("abc", place, strict=True))))
        for place in places
    ]
    order = in_turn(cases)
    assert sorted(case.nodeid for case in order) == sorted(case.nodeid for case in cases)
    for count, name in ((7, "a"), (3, "b"), (4, "c")):
        assert {case.callspec.indices[name] for case in order[:7]} == set(range(count))
    assert in_turn(cases[::-1]) == order


def test_the_kernels_of_hopper_are_marked(request: pytest.FixtureRequest) -> None:
    """Every test of tests/hopper and tests/library that would run on a GPU names a feature."""
    for item in request.session.items:
        if item.nodeid.startswith(("tests/hopper", "tests/library")) and item.get_closest_marker("gpu"):
            assert any(item.get_closest_marker(name) for name in FEATURES), item.nodeid
