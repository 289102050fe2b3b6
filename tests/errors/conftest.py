"""Errors are the same on every machine: these tests see none of its GPUs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_a_cpu(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
