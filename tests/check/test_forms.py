"""A report as JSON, SARIF and HTML; the command line; the plugin of pytest; the raw form of `precompiled_cuda_kernel`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.__main__ import main
from tests.conftest import ROOT

from .images import FILL, RACE


@pytest.fixture(scope="module")
def report() -> Any:
    return kd.check(RACE, 0, np.zeros(4, np.int32), grid=2, block=64)


def test_json(report: Any, tmp_path: Path) -> None:
    found = json.loads(report.to_json(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text()) == found
    assert found["verdict"] == "found" and len(found["schedules"]) == 10
    (hazard,) = found["hazards"]
    assert hazard["kind"] == "race_blocks" and hazard["line"] == 7 and hazard["other"]["line"] == 7
    assert hazard["buffer"] == "out" and hazard["index"] == [0] and hazard["fix"] and hazard["why"] and hazard["who"]


def test_sarif(report: Any) -> None:
    found = json.loads(report.to_sarif())
    assert found["version"] == "2.1.0" and found["$schema"].endswith("sarif-2.1.0.json")
    (run,) = found["runs"]
    driver = run["tool"]["driver"]
    (result,) = run["results"]
    assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "race_blocks"
    assert result["message"]["text"] and result["level"] == "error"
    for place in (result["locations"][0], result["relatedLocations"][0]):
        physical = place["physicalLocation"]
        assert physical["region"]["startLine"] == 7 and re.fullmatch(r"[\w%./:-]+", physical["artifactLocation"]["uri"])


VOID = ("meta", "circle", "line")  # a browser closes the last two by tags of their own


class Page(HTMLParser):
    """Tags that are open, what is fetched, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.fetched += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_stands_alone(report: Any) -> None:
    text = report.to_html()
    page = Page(text)
    assert page.open == [] and page.fetched == [] and "<script" not in text and "url(" not in text
    for words in ("race_blocks", "st.global.u32 [%d1], %r1;", "out[0]", "time", "block (1, 0, 0)", "Fix", "found"):
        assert words in page.text
    assert text.count("<circle") == 2


def test_html_escapes_names() -> None:
    text = RACE.replace(" ret;", ' // <script>alert("&")</script>\n ret;').replace("[%d1], %r1;", "[%d1], %r1; // <b>")
    page = kd.check(text, 0, np.zeros(4, np.int32), grid=2, block=64, schedules="eager").to_html()
    assert "<script" not in page and "&lt;b&gt;" in page


def test_html_in_a_browser(report: Any, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine")
    report.to_html(tmp_path / "report.html")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
        "--dump-dom",
    ]
    done = subprocess.run(
        [*command, str(tmp_path / "report.html")], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        pytest.skip(f"the browser does not start here: {done.stderr[-200:]}")
    assert Page(done.stdout.partition("<!DOCTYPE html>")[2]).text.count("race_blocks") == 1


def test_a_path_that_can_not_be_written(report: Any, tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "such.json", 3, tmp_path):
        with pytest.raises(kd.Error):
            report.to_json(path)


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, text in (("good.ptx", FILL), ("race.ptx", RACE)):
        (tmp_path / name).write_text(text)
    return str(tmp_path / "good.ptx"), str(tmp_path / "race.ptx")


ARGS = ["--entry", "k", "--arg", "u32:128", "--arg", "i32[128,2]"]


def test_the_command_and_its_exit_status(files: tuple[str, str], capsys: Any) -> None:
    good, race = files
    assert main(["check", good, *ARGS, "--block", "8"]) == 0
    assert capsys.readouterr().out.strip() == "k: none"
    assert main(["check", race, *ARGS, "--grid", "2,2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["hazards"][0]["file"] == found["hazards"][0]["other_file"] == race
    assert main(["check", race, *ARGS, "--grid", "2", "--ignore", "race_blocks,race_global"]) == 0
    assert main(["check", race, *ARGS[:4]]) == 2
    assert "takes 2 parameters" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["check", good, *ARGS, "--block", "8,x"])
    assert ended.value.code == 2 and "'8,x' is neither" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [["--seed", "-1"], ["--seed", "x"], ["--step-budget", "0"], ["--arg", "u8[8589934592]"], ["--target", ""]],
)
def test_the_command_refuses(files: tuple[str, str], capsys: Any, options: list[str]) -> None:
    """With the exit status 2 and no traceback."""
    try:
        status = main(["check", files[0], *ARGS, *options])
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr().err
    assert status == 2 and "Traceback" not in said and options[1] in said


def test_the_commands_step_budget(files: tuple[str, str], capsys: Any) -> None:
    assert main(["check", files[0], *ARGS, "--step-budget", "2"]) == 1
    assert "step_budget" in capsys.readouterr().out


def test_reports_in_files(files: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    out = [tmp_path / name for name in ("r.json", "r.sarif", "r.html")]
    assert main(["check", files[1], *ARGS, "--json", str(out[0]), "--sarif", str(out[1]), "--html", str(out[2])]) == 1
    assert "race" in capsys.readouterr().out
    assert all(path.stat().st_size > 500 for path in out)


def test_arrays_are_seeded_normal_data() -> None:
    from kernel_dsl.runtime.check.command import argument

    for text in ("f16[64,64]", "bf16[64,64]", "f32[64,64]", "f64[64,64]", "e4m3[64,64]"):
        one, two = (np.asarray(argument(text, np.random.default_rng(0)), np.float64) for _ in range(2))
        assert one.shape == (64, 64) and abs(one.mean()) < 0.1 and abs(one.std() - 1) < 0.1 and (one == two).all()
    assert argument("u8[300]", np.random.default_rng(0)).dtype == np.uint8
    scalars = {
        "u32:128": np.uint32(128),
        "f32:0.5": np.float32(0.5),
        "0x10": 16,
        "2.5": 2.5,
        "null": None,
        "bytes:00ff": b"\0\xff",
    }
    for text, value in scalars.items():
        got = argument(text, np.random.default_rng(0))
        assert got == value and type(got) is type(value)
    for text in ("", "f33[2]", "u32:x", "u8:300", "f32[99999999,99999]", "bytes:0", "text"):
        with pytest.raises(kd.Error):
            argument(text, np.random.default_rng(0))


# --- the plugin -----------------------------------------------------------------------------------

TESTS = '''
import numpy as np, pytest, kernel_dsl as kd
X = np.arange(256, dtype=np.float32)
S = kd.ShapeDtypeStruct((256,), kd.float32)
@kd.kernel(out_type=S, grid=(2,))
def bad(x, out): out[...] = x[...] + kd.program_id(0)
@kd.kernel(out_type=S)
def good(x, out): out[...] = x[...] * 2
@pytest.fixture
def made(): return bad(X)
def test_good(): np.testing.assert_array_equal(good(X), X * 2)
def test_bad(): bad(X)
def test_raw(): kd.precompiled_cuda_kernel(RACE, 0, np.zeros(4, np.int32), grid=2, block=4)
def test_fixture(made): pass
def test_own_options():
    with pytest.raises(kd.HazardError): bad(X, interpret=kd.InterpretParams())
def test_without_a_launch(): pass
'''  # fmt: skip


def plugged(folder: Path, *options: str) -> str:
    (folder / "test_it.py").write_text(f"RACE = {RACE!r}\n{TESTS}")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]["kernel_dsl"]
    command = [sys.executable, "-m", "pytest", "-p", entry, "-p", "no:cacheprovider", "-q", *options]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_plugin_fails_tests_with_hazards(tmp_path: Path) -> None:
    said = plugged(tmp_path, "--kd-hazards=random:2", "--kd-step-budget=100000")
    assert "2 failed, 3 passed, 1 error" in said and said.count("race_blocks") >= 3
    assert "test_it.py::test_bad" in said and "found by: random seed 0, random seed 1" in said


def test_the_plugin_ignores_kinds() -> None:
    from kernel_dsl.runtime.check.plugin import plugin
    from kernel_dsl.runtime.devices.devices import watched_everywhere

    for ignore, words in (("", "race_blocks"), ("race_blocks,race_global", "")):
        watcher = plugin("eager", ignore).watcher
        with watched_everywhere(watcher):
            kd.precompiled_cuda_kernel(RACE, 0, np.zeros(4, np.int32), grid=2, block=4)
        found = watcher.take()
        assert words in found if words else found == ""


def test_the_plugin_says_what_it_does_not_know() -> None:
    from kernel_dsl.runtime.check.plugin import plugin

    for words in (("soon", ""), ("eager", "nothing")):
        with pytest.raises(pytest.UsageError, match="there is no"):
            plugin(*words)
    with pytest.raises(pytest.UsageError, match="--kd-step-budget: at least one instruction"):
        plugin("eager", "", 0)


def test_the_plugins_step_budget() -> None:
    from kernel_dsl.runtime.check.plugin import plugin
    from kernel_dsl.runtime.devices.devices import watched_everywhere

    for budget, words in ((2, "step_budget"), (2000, "")):
        watcher = plugin("eager", "", budget).watcher
        with watched_everywhere(watcher):
            kd.precompiled_cuda_kernel(FILL, 7, np.zeros(4, np.int32), grid=1, block=4)
        found = watcher.take()
        assert words in found if words else found == ""


def test_the_plugin_does_nothing_without_its_option(tmp_path: Path) -> None:
    """Nothing of the runtime is imported."""
    code = (
        "import sys, pytest; pytest.main(['-q', '-p', 'kernel_dsl.pytest_plugin', '--co', '-p', 'no:cacheprovider', '.']);"
        "print([m for m in sys.modules if m.startswith('kernel_dsl.runtime')])"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=empty, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- the raw form ---------------------------------------------------------------------------------


def test_pytest_leaves_the_assertions_of_this_package_as_they_are() -> None:
    """It would rewrite those of each package with a plugin: hundreds of modules, in the tests of every user."""
    names = ("kernel_dsl.stages", "kernel_dsl.runtime.timing", "kernel_dsl.library.products.matmul")
    for name in names:
        path = import_module(name.rpartition(".")[0]).__path__
        found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, found))
        assert type(spec.loader) is SourceFileLoader, name


def test_the_raw_form() -> None:
    out = np.zeros(4, np.int32)
    (same,) = kd.precompiled_cuda_kernel(FILL.encode(), 7, out, entry="k", grid=1, block=4, interpret=True)
    assert same is out and out.tolist() == [7] * 4
    with pytest.raises(kd.HazardError):
        kd.precompiled_cuda_kernel(RACE, 7, out, grid=2, block=4, interpret=True)


@pytest.mark.gpu
def test_the_raw_form_on_a_gpu() -> None:
    out = np.zeros(4, np.int32)
    kd.precompiled_cuda_kernel(FILL.encode(), 7, out, entry="k", grid=1, block=4, interpret=False)
    assert out.tolist() == [7] * 4
    wide = np.arange(8, dtype=np.int32)
    kd.precompiled_cuda_kernel(FILL.encode(), 7, wide[2:6], grid=1, block=4, interpret=False)
    assert wide.tolist() == [0, 1, 7, 7, 7, 7, 6, 7]


def test_the_raw_form_refuses() -> None:
    out = np.zeros(4, np.int32)
    for call in (
        lambda: kd.precompiled_cuda_kernel(FILL, 7, out),
        lambda: kd.precompiled_cuda_kernel(FILL, 7, grid=1, block=4, interpret=True),
        lambda: kd.precompiled_cuda_kernel(FILL, 7, out, grid=1, block=4, name="k", interpret=True),
        lambda: kd.precompiled_cuda_kernel(entry="k"),
        kd.precompiled_cuda_kernel,
    ):
        with pytest.raises(TypeError):
            call()
    assert not out.any()
