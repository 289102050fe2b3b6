"""What the tests of the Hopper parts share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

SCHEDULES = ("eager", "late", "random")


@pytest.fixture(params=[*SCHEDULES, pytest.param("cuda", marks=pytest.mark.gpu)])
def interpret(request: pytest.FixtureRequest) -> Any:
    """The interpreter under each schedule with hazards on, and the GPU where there is one."""
    return False if request.param == "cuda" else kd.InterpretParams(schedule=request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
