"""Ctrl-C at any moment of a compile: it arrives at once, and the next compile works."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

PROMPT = 1.5  # seconds, on a busy machine


def _begun(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A process of interrupted.py with these words, whose cache is in `folder`."""
    env = {**os.environ, "KERNEL_DSL_CACHE": str(folder), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.errors.interrupted", *words]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _interrupt(folder: Path, wait: float, what: str = "quick") -> str:
    """What is wrong after an interrupt that comes `wait` seconds into the work; empty where nothing is.

    After one that arrives late there are two more: work that does not let it through is late each time, and a busy
    machine is not.
    """
    for _ in range(3):
        wrong, arrived = _once(folder, wait, what)
        if wrong or arrived <= PROMPT:
            return wrong
    return f"{wait:.3f} s in: arrived after {arrived:.2f} s"


def _once(folder: Path, wait: float, what: str) -> tuple[str, float]:
    """What is wrong after one interrupt but its time, and the seconds after which it arrived."""
    with _begun(folder, str(folder), what) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(wait)
        child.send_signal(signal.SIGINT)
        sent = time.time()
        again = False
        try:
            said, errors = child.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            again, sent = True, time.time()
            child.send_signal(signal.SIGINT)
            try:
                said, errors = child.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                child.kill()
                return f"{wait:.3f} s in: still running a minute later", 60.0
    if again and not ("Exception ignored" in errors and "KeyboardInterrupt" in errors):
        # Python drops what is raised in a weak reference's callback, an interrupt too, and says so; nobody else may
        return f"{wait:.3f} s in: the first interrupt was lost: {errors[-2000:]}", 15.0
    arrived = float(said.split()[1]) - sent if said.startswith("interrupted") else -1.0
    if child.returncode or not said.endswith("whole\n"):
        return (
            f"{wait:.3f} s in: status {child.returncode}, arrived after {arrived:.2f} s: {said} {errors[-2000:]}",
            arrived,
        )
    return "", arrived


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_leaves_nothing_behind(seed: int, tmp_path: Path) -> None:
    order = random.Random(seed)
    assert _interrupt(tmp_path, order.uniform(0, 1.5)) == ""


def test_an_interrupt_does_not_wait_for_llvm(tmp_path: Path) -> None:
    assert _interrupt(tmp_path, 1.0, "slow") == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_interrupts(seed: int, tmp_path: Path) -> None:
    order = random.Random(seed)
    wrong = [_interrupt(tmp_path / str(i), order.uniform(0, 4)) for i in range(10)]
    assert [w for w in wrong if w] == []


def _traced(folder: Path, *words: str) -> str:
    with _begun(folder, *words) as child:
        said, errors = child.communicate(timeout=1800)
    assert child.returncode == 0, errors[-2000:]
    return said


def test_no_lock_in_python_is_taken(tmp_path: Path) -> None:
    """An interrupt in one, as `threading.Thread.start` waits at, can leave it locked for ever."""
    assert _traced(tmp_path, "count", "threading.py:__enter__", "threading.py:wait", "queue.py") == "0\n"


def test_no_python_runs_where_an_object_goes(tmp_path: Path) -> None:
    """Python drops what is raised there. An interrupt that came during a garbage collection arrived there first."""
    assert _traced(tmp_path, "callbacks") == "{}\n"


@pytest.mark.parametrize(
    "places, count",
    [
        ((".py",), 5),
        pytest.param(("lowering/llvm.py",), 5, marks=pytest.mark.slow),
        pytest.param(("threading.py", "subprocess.py", "forking.py", "llvm.py"), 200, marks=pytest.mark.slow),
        pytest.param((".py",), 200, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_arrives_at_any_line(places: tuple[str, ...], count: int, tmp_path: Path) -> None:
    assert _traced(tmp_path, "lines", "7", str(count), *places) == "done\n"


@pytest.mark.slow
def test_an_interrupt_in_an_import_leaves_the_module_importable(tmp_path: Path) -> None:
    """A module whose import was interrupted runs again at the next."""
    assert _traced(tmp_path, "imports", "1", "40") == "done\n"
