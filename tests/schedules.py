"""The schedules of the interpreter that tests of synchronised kernels run under."""

from __future__ import annotations

from typing import Any

import pytest

import kernel_dsl as kd

SCHEDULES = ("eager", "late", "random")


@pytest.fixture(params=[*SCHEDULES, pytest.param("cuda", marks=pytest.mark.gpu)])
def interpret(request: pytest.FixtureRequest) -> Any:
    """The interpreter under each schedule with hazards on, and the GPU where there is one."""
    return False if request.param == "cuda" else kd.InterpretParams(schedule=request.param)
