"""A short run of the large pipelines; `python -m tests.fuzz.crowds` is the long one."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_dsl.lowering.passes.order_memory import MemoryOrder
from tests.fuzz.crowds import FORMS, READS, attempt, generate
from tests.schedules import SCHEDULES


@pytest.mark.parametrize("block", range(2))
@pytest.mark.sampled(2)
def test_interpreter(block: int) -> None:
    """A few steps in two blocks of the grid, hazards on, in turns under each schedule."""
    for n in range(6):
        seed = 1000 * block + n
        wrong = attempt(seed, schedule=SCHEDULES[n % 3])
        assert wrong is None, f"python -m tests.fuzz.crowds --count 1 --seed {seed}\n{wrong}"


@pytest.mark.slow
def test_many() -> None:
    for seed in range(5000, 5300):
        wrong = attempt(seed, schedule=SCHEDULES[seed % 3])
        assert wrong is None, f"python -m tests.fuzz.crowds --count 1 --seed {seed}\n{wrong}"


@pytest.mark.gpu
@pytest.mark.tma
@pytest.mark.parametrize("block", range(4))
def test_gpu(block: int) -> None:
    """All steps, in as many blocks of the grid as fill the GPU."""
    for seed in range(20 * block, 20 * block + 20):
        wrong = attempt(seed, gpu=True)
        assert wrong is None, f"python -m tests.fuzz.crowds --count 1 --seed {seed} --device gpu\n{wrong}"


@pytest.mark.usefixtures("kernels_apart")
def test_a_missing_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler's fence between the lanes' loads and the arrival that frees their block, the interpreter reports it."""
    monkeypatch.setattr(MemoryOrder, "tells", lambda *_: False)
    made = [generate(seed) for seed in range(9000, 9040)]
    found = [
        attempt(m.seed) for m in made if "dot" in m.read and m.form in ("specialised", "two compute") and not m.stored
    ]
    assert found and all(f is not None and "missing_proxy_fence" in f for f in found)


def test_it_reaches_what_it_is_for() -> None:
    made: list[Any] = [generate(seed) for seed in range(300)]
    assert {m.form for m in made} == {*FORMS} and {m.read for m in made} == {*READS}
    assert {m.depth for m in made} >= {1, 2, 3, 4} and {m.delay for m in made} == {0, 1} == {*(m.late for m in made)}
