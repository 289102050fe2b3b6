"""Options of the whole suite, and the reasons for which tests are skipped."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Deadlines measure the machine, not the code; the same examples in every run make a failure one that stays.
hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=20,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the golden files from what is seen now")
    parser.addoption("--slow", action="store_true", help="run the long forms too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpus = _gpus() if any(i.get_closest_marker("gpu") for i in items) else 0
    for item in items:
        if item.get_closest_marker("gpu") and not gpus:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))
        elif item.get_closest_marker("several_gpus") and gpus < 2:
            item.add_marker(pytest.mark.skip(reason="one NVIDIA GPU on this machine, and the test needs two"))
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="a long form: run with --slow"))


def _gpus() -> int:
    """How many GPUs there are; 0 where the first cannot be used."""
    from runtime import driver
    from runtime.device import cuda_device

    try:
        cuda_device()
        return driver.device_count()
    except Exception:
        return 0


@pytest.fixture(autouse=True, scope="session")
def check_each_pass() -> None:
    """Every kernel that a test lowers is verified after tracing and after each pass."""
    from lowering import pipeline

    pipeline.check_each_pass = True


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update"))
