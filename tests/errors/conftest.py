"""Errors are the same on every machine: these tests see none of its GPUs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel_dsl.runtime.devices import driver

    monkeypatch.setattr(driver, "available", lambda: driver.Availability(0, "no CUDA driver (libcuda) is installed"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
