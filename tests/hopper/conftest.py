"""What the tests of the Hopper parts share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

SCHEDULES = ("eager", "late", "random")


@pytest.fixture(params=SCHEDULES)
def interpret(request: pytest.FixtureRequest) -> Any:
    """The interpreter under each schedule, hazards on."""
    return kd.InterpretParams(schedule=request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
