"""Configurations are timed by a clock of the tests: they see no GPU of the machine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_a_cpu(no_gpu: None) -> None:
    pass
