"""Every kernel of this folder runs in the interpreter, and on a GPU where there is one."""

from __future__ import annotations

import pytest

from runtime import driver, nvrtc


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def interpret(request: pytest.FixtureRequest) -> bool:
    """`interpret=` for a call."""
    if request.param == "cuda":
        state = driver.available()
        if not state:
            pytest.skip(f"no GPU: {state.reason}")
        return False
    return True


@pytest.fixture(scope="session")
def compiler() -> None:
    """For tests that compile CUDA C++."""
    reason = nvrtc.unavailable()
    if reason:
        pytest.skip(reason)
