"""Intervals and divisors of integers hold of every result, whatever the operands were within theirs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_dsl import facts
from kernel_dsl.facts import Range


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Range, list[int]]:
    """What is known of an integer, and all that it can be."""
    divisor = draw(st.integers(1, 6))
    low, count = draw(st.integers(-5, 5)), draw(st.integers(1, 5))
    held = [(low + k) * divisor for k in range(count)]
    return Range(held[0], held[-1], divisor if any(held) else 0), held


def truncated(x: int, y: int) -> int:
    return math.trunc(x / y)


RULES: dict[str, tuple[Callable[[Range, Range], Range | None], Callable[[int, int], int]]] = {
    "add": (facts.add, lambda x, y: x + y),
    "sub": (facts.sub, lambda x, y: x - y),
    "mul": (facts.mul, lambda x, y: x * y),
    "div": (facts.div, truncated),
    "rem": (facts.rem, lambda x, y: x - truncated(x, y) * y),
    "floordiv": (facts.floordiv, lambda x, y: x // y),
    "mod": (facts.mod, lambda x, y: x % y),
    "masked": (facts.masked, lambda x, y: x & y),
    "minimum": (facts.minimum, min),
    "maximum": (facts.maximum, max),
}


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=100, deadline=None)
@given(a=ranges(), b=ranges())
def test_every_result_is_in_the_range(name: str, a: tuple[Range, list[int]], b: tuple[Range, list[int]]) -> None:
    rule, exact = RULES[name]
    found = rule(a[0], b[0])
    if found is None:
        return
    for x in a[1]:
        for y in b[1]:
            result = exact(x, y)
            assert found.lo <= result <= found.hi, (x, y, result, found)
            assert result == 0 if found.divisor == 0 else result % found.divisor == 0, (x, y, result, found)


@pytest.mark.parametrize(
    ("rule", "a", "b", "expected"),
    [
        (facts.div, Range(0, 2047), facts.of(16), Range(0, 127)),
        (facts.div, Range(-100, 64, 4), facts.of(4), Range(-25, 16, 1)),
        (facts.div, Range(0, 100), Range(2, 10), Range(0, 50)),
        (facts.rem, Range(0, 2047), facts.of(16), Range(0, 15)),
        (facts.rem, Range(-3, 12), facts.of(16), Range(-3, 12)),
        (facts.rem, Range(-99, 99, 3), facts.of(6), Range(-5, 5, 3)),
        (facts.rem, Range(0, 99), Range(2, 10), Range(0, 9)),
    ],
)
def test_how_much_is_known(rule: Callable[[Range, Range], Range | None], a: Range, b: Range, expected: Range) -> None:
    assert rule(a, b) == expected


@pytest.mark.parametrize("rule", [facts.div, facts.rem])
def test_a_divisor_that_may_be_zero_or_less_says_nothing(rule: Callable[[Range, Range], Range | None]) -> None:
    assert rule(Range(0, 9), Range(0, 4)) is None and rule(Range(0, 9), facts.of(-2)) is None
