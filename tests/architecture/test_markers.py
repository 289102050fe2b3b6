"""Tests that need a GPU say what of it they need, and are skipped with a reason where that is not there."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_dsl.target import SM_80, SM_90, SM_90A
from tests.conftest import FEATURES, _left_out, in_turn, other_schedules, why_not
from tests.schedules import SCHEDULES


class Item:
    """A test with markers."""

    nodeid = "test"

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
        SimpleNamespace(nodeid=f"test[{place}]", callspec=SimpleNamespace(params=dict(zip("abc", place, strict=True))))
        for place in places
    ]
    order = in_turn(cases)
    assert sorted(case.nodeid for case in order) == sorted(case.nodeid for case in cases)
    for count, name in ((7, "a"), (3, "b"), (4, "c")):
        assert {case.callspec.params[name] for case in order[:7]} == set(range(count))
    assert in_turn(cases[::-1]) == order


def test_a_sample_is_of_what_is_no_long_form() -> None:
    """The default run has one case in three of those that it may run, however many long forms stand beside them."""

    def case(at: int, *markers: str) -> Any:
        marks = {name: SimpleNamespace(args=(3,)) for name in ("sampled", *markers)}
        return SimpleNamespace(
            nodeid=f"test[{at}]", callspec=SimpleNamespace(params={"at": at}), get_closest_marker=marks.get
        )

    short, long = [case(at) for at in range(6)], [case(at, "slow") for at in range(6, 60)]
    left = _left_out([*long, *short])
    assert len(left) == 4 and all(any(item is one for one in short) for item in left)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", ["x", "y"])
def test_pytests_own_cases_have_values(a: int, b: str, request: pytest.FixtureRequest) -> None:
    """Of the cases of this test the first three bring every value, whatever pytest numbers them."""
    cases = [
        item for item in request.session.items if item.nodeid.partition("[")[0] == request.node.nodeid.partition("[")[0]
    ]
    if len(cases) < 3:
        pytest.skip("not all cases were asked for")
    order = in_turn(cases)[:3]
    assert {case.callspec.params["a"] for case in order} == {0, 1, 2}
    assert {case.callspec.params["b"] for case in order} == {"x", "y"}


def test_each_case_runs_under_one_schedule_and_all_schedules_run() -> None:
    def case(at: int, schedule: str, *markers: str) -> Any:
        item = Item(*markers)
        item.callspec = SimpleNamespace(params={"at": at, "interpret": schedule})
        return item

    items = [case(at, word) for at in range(4) for word in (*SCHEDULES, "cuda")]
    kept = [item for item in items if item not in other_schedules(items)]
    assert [item.callspec.params["at"] for item in kept if item.callspec.params["interpret"] != "cuda"] == [0, 1, 2, 3]
    assert {item.callspec.params["interpret"] for item in kept} == {*SCHEDULES, "cuda"}
    assert other_schedules([Item(), *(case(0, word, "sampled") for word in SCHEDULES)]) == []


def test_the_kernels_of_hopper_are_marked(request: pytest.FixtureRequest) -> None:
    """Every test of tests/hopper and tests/library that would run on a GPU names a feature."""
    for item in request.session.items:
        if item.nodeid.startswith(("tests/hopper", "tests/library")) and item.get_closest_marker("gpu"):
            assert any(item.get_closest_marker(name) for name in FEATURES), item.nodeid
