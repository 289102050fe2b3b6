"""Options of the whole suite, and the reasons for which tests are skipped."""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from _pytest.runner import runtestprotocol

from kernel_dsl.target import Feature, Target
from tests.schedules import SCHEDULES

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = pytest.StashKey[dict[str, int]]()  # how many cases this run leaves out, by the reason
LONG_FORM, NO_GPU = "long forms, which --slow runs", "no NVIDIA GPU on this machine"

# JAX would take three quarters of a GPU's memory, in each process that uses it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Deadlines measure the machine, not the code; the same examples in every run make a failure one that stays.
for profile, examples in (("suite", 8), ("long", 100)):
    hypothesis.settings.register_profile(
        profile,
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=examples,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    )


def tracked() -> list[str]:
    """The paths that git tracks; the test is skipped where this is no checkout."""
    if shutil.which("git") is None:
        pytest.skip("no git")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        pytest.skip("no git checkout")
    return done.stdout.split("\n")[:-1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the golden files from what is seen now")
    parser.addoption("--slow", action="store_true", help="run the long forms too")


FEATURES = {str(feature.name).lower(): feature for feature in Feature}  # a marker for each


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(200_000, 20, 50)  # to look for garbage among 25,000 new cases takes a sixth of their collection
    if hasattr(config, "workerinput"):  # to take millions of objects apart at the end takes seconds
        atexit.register(_leave, os.getpid())
    hypothesis.settings.load_profile("long" if config.getoption("--slow") else "suite")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job ignores Ctrl-C, and so do its children; tests send it, and wait for what comes of it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.dont_write_bytecode:
        # Where the environment forbids bytecode, every process that a test starts would compile the sources anew, for half a
        # second. They share what the first one wrote, away from the sources; and so do the test modules of later runs.
        folder = ROOT / ".pytest_cache" / "bytecode"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(folder))
        sys.dont_write_bytecode = False
        if not hasattr(config, "workerinput"):  # what earlier runs wrote of modules in folders of tests is of no use
            shutil.rmtree(folder / Path(tempfile.gettempdir()).relative_to("/"), ignore_errors=True)
    for name in FEATURES:
        config.addinivalue_line("markers", f"{name}: on a GPU, needs one with {name}")


def _leave(worker: int) -> None:
    if os.getpid() == worker:  # and no child by a fork, whose status a test may ask for
        os._exit(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """A worker of pytest-xdist that will import all test modules begins with its share of them.

    In a fresh checkout each module is first rewritten for its assertions, which takes as long as many tests. All workers go through
    the modules in the same order, so each would rewrite all of them; now it finds what the others have written.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or [Path(name).absolute() for name in session.config.args] != [ROOT / "tests"]:
        return
    modules = sorted(ROOT.glob("tests/**/test_*.py"))
    for path in modules[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # the collection meets it again, and reports it
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Look for no garbage among the tests themselves.

    There are so many of them that each full collection took two seconds. What tests leave behind is still found.
    """
    _first_example()
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_note_collection)


@hypothesis.given(hypothesis.strategies.none())
def _first_example(_: None) -> None:
    """In a process's first test hypothesis collects garbage: three seconds, if that is among the tests."""


def pytest_sessionfinish() -> None:
    """pytest collects once more when all is done: what is old is left out there, too."""
    gc.collect(1)
    gc.freeze()


_old: list[str] = []  # whether an older generation was collected since it was last frozen


def _note_collection(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"]:
        _old[:] = ["collected"]


def pytest_runtest_logstart() -> None:
    """Freeze, between tests, what outlived a collection: kernels that are kept, with their texts and programs.

    They are tens of millions of objects at the end, so that `gc.collect()` in a test took five seconds.
    """
    if _old:
        gc.collect(1)
        gc.freeze()
        _old.clear()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker of pytest-xdist reports a test's result, and its set-up and end only where something is to be said of them.

    To send them, and to read them in the other process, takes longer than most tests. So does that it begins, and that it has
    ended; the other process knows what a worker is at, should this one die.
    """
    options = item.config.option
    if not hasattr(item.config, "workerinput") or options.durations is not None or options.xmlpath:
        return None
    pytest_runtest_logstart()
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.sections:
            if report.passed:
                report.keywords = {}  # nobody reads them
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if named := [i.nodeid for i in items if " at 0x" in i.nodeid]:  # another name in each process of pytest-xdist
        raise pytest.UsageError(f"addresses in names of tests, give ids=: {named[:3]}")
    gpus, target = _gpus() if any(i.get_closest_marker("gpu") for i in items) else (0, None)
    for item in items:
        if item.get_closest_marker("gpu"):
            reason = why_not(item, gpus, target)
            if reason and reason != NO_GPU:
                item.add_marker(pytest.mark.skip(reason=reason))
    left = {} if gpus else {item.nodeid: NO_GPU for item in items if item.get_closest_marker("gpu")}
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        left |= {item.nodeid: LONG_FORM for item in slow + _left_out(items) + other_schedules(items)}
    _leave_out(config, items, left)


def _leave_out(config: pytest.Config, items: list[pytest.Item], left: dict[str, str]) -> None:
    """Deselect cases, by their names, for these reasons: to report thousands of skipped ones takes longer than many tests.

    They are skipped where the run has nothing else, as a run without tests counts as failed.
    """
    kept = [item for item in items if item.nodeid not in left]
    if not kept:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=left[item.nodeid]))
        return
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
    items[:] = kept
    config.stash[LEFT_OUT] = dict(Counter(left.values()))
    if hasattr(config, "workerinput"):
        config.workeroutput["left_out"] = config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker of pytest-xdist leaves out the same cases."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, count in config.stash.get(LEFT_OUT, {}).items():
        terminalreporter.write_line(f"{count} cases are left out: {reason}")


def _left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """The cases that `sampled(n)` leaves out: all but one in `n` of a test's, the same ones in every run.

    With `sampled(n, group)` the cases of all tests of this group are one population. Cases for a GPU are a sample of their own.
    Long forms are in none: a sample of these alone would leave nothing.
    """
    tests: dict[tuple[str, bool], list[Any]] = {}
    for item in items:
        if (marker := item.get_closest_marker("sampled")) and not item.get_closest_marker("slow"):
            group = marker.args[1] if len(marker.args) > 1 else item.nodeid.partition("[")[0]
            tests.setdefault((group, item.get_closest_marker("gpu") is not None), []).append(item)
    left: list[pytest.Item] = []
    for cases in tests.values():
        marker = cases[0].get_closest_marker("sampled")
        assert marker is not None
        left += in_turn(cases)[-(-len(cases) // marker.args[0]) :]
    return left


def other_schedules(items: list[Any]) -> list[Any]:
    """The cases of tests under each schedule that are long forms: each case runs under one, and the next one under the next.

    Where `sampled(n)` chooses, it chooses schedules, too.
    """
    tests: dict[str, dict[Any, list[Any]]] = {}
    for item in items:
        given = item.callspec if hasattr(item, "callspec") else None
        if given and given.params.get("interpret") in SCHEDULES and not item.get_closest_marker("sampled"):
            others = tuple(value for value in _values(item) if value[0] != "interpret")
            tests.setdefault(item.nodeid.partition("[")[0], {}).setdefault(others, []).append(item)
    left: list[Any] = []
    for name, cases in tests.items():
        first = zlib.crc32(name.encode())
        for number, found in enumerate(cases.values(), first):
            kept = found[number % len(found)]
            left += [item for item in found if item is not kept]
    return left


def in_turn(cases: list[Any]) -> list[Any]:
    """The cases of one test, those first that bring most values of parameters that none before them had.

    So a sample has every value of each parameter, where it is large enough. Equals stand by a sum of their names.
    """
    rest = sorted(cases, key=lambda item: zlib.crc32(item.nodeid.encode()))
    values = [_values(item) for item in rest]
    having: dict[tuple[str, str], list[int]] = {}  # the cases with a value that none before them had
    for number, each in enumerate(values):
        for value in each:
            having.setdefault(value, []).append(number)
    news = [len(each) for each in values]
    found: list[Any] = []
    while having:
        at = news.index(max(news))
        found.append(rest[at])
        for value in values[at]:
            for number in having.pop(value, ()):
                news[number] -= 1
    taken = set(map(id, found))
    return found + [item for item in rest if id(item) not in taken]


def _values(item: Any) -> list[tuple[str, str]]:
    """The parameters of a case with their values' texts. pytest's own numbers of values differ from case to case."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return [(name, repr(value)) for name, value in sorted(params.items())]


def why_not(item: Any, gpus: int, target: Target | None) -> str:
    """Why a test that is marked `gpu` can't run here; empty where it can."""
    if not gpus or target is None:
        return NO_GPU
    if item.get_closest_marker("several_gpus") and gpus < 2:
        return "one NVIDIA GPU on this machine, and the test needs two"
    for name, feature in FEATURES.items():
        if item.get_closest_marker(name) and not target.supports(feature):
            return f"the GPU of this machine ({target}) has no {name}"
    return ""


def _gpus() -> tuple[int, Target | None]:
    """How many GPUs there are, and what the first one is; none where that can't be used."""
    from kernel_dsl.runtime.devices import driver
    from kernel_dsl.runtime.devices.devices import cuda_device

    try:
        device = cuda_device()
        return driver.device_count(), device.target
    except Exception:
        return 0, None


@pytest.fixture(autouse=True, scope="session")
def check_each_pass(request: pytest.FixtureRequest) -> None:
    """Every kernel that a test lowers is verified after tracing and after all passes; a sixteenth, by their names, after each.

    With --slow all are verified after each.
    """
    from kernel_dsl.lowering import pipeline

    shares = 1 if request.config.getoption("--slow") else 16
    pipeline.check_each_pass = lambda ir: zlib.crc32(ir.name.encode()) % shares == 0


@pytest.fixture(autouse=True)
def first_sizes() -> None:
    """The library chooses by the sizes that came before: for each test none did."""
    found = sys.modules.get("kernel_dsl.tuning_file")
    if found is not None:
        found.choose_anew()


@pytest.fixture(autouse=Path("/dev/nvidiactl").exists() and importlib.util.find_spec("jax") is not None)
def jax_on_the_host(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where JAX sees a GPU, tests without the mark `gpu` make its arrays on the CPU, as they do on other machines."""
    if request.node.get_closest_marker("gpu") or b"jax" not in request.path.read_bytes():
        yield
        return
    import jax

    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU looks like one without."""
    from kernel_dsl.runtime.devices import driver

    monkeypatch.setattr(driver, "_module", None)
    monkeypatch.setattr(driver, "available", lambda: driver.Availability(0, "no CUDA driver (libcuda) is installed"))


@pytest.fixture
def kernels_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that counts compiles, or changes how kernels are lowered. The process keeps them by their IR: the test gets none
    of an earlier test, and later tests get none of its own.
    """
    from kernel_dsl import loading
    from kernel_dsl.runtime.build.cache import KernelCache

    cache = KernelCache(None)
    monkeypatch.setattr(loading, "interpreted_cache", lambda: cache)


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update"))


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.gpu)], ids=["interpreter", "gpu"])
def interpret(request: pytest.FixtureRequest) -> Any:
    """`interpret=` for a call: the interpreter, and the GPU where there is one."""
    return request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
