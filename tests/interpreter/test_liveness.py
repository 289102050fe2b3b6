"""Sets of registers as bits."""

from __future__ import annotations

from kernel_dsl.runtime.interpreter.isa.liveness import numbers_of
from tests.speed import on_the_reference


def test_numbers_of_a_set() -> None:
    for numbers in ([], [0], [3, 4, 70], [5, 4000]):
        assert numbers_of(sum(1 << n for n in numbers)) == numbers


def test_few_registers_of_many_take_no_time() -> None:
    """Each instruction has a few of the thousands of a function's registers: together they would take the square of these."""
    few = 1 << 7 | 1 << 60_000
    assert on_the_reference(lambda: [numbers_of(few) for _ in range(10)], 0.01) <= 0.01
