"""Scripts of `benchmarks` on machines that lack what they measure with."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT

LACKING = {
    "attention": "torch",
    "collectives": "torch",
    "collectives_ranks": "torch",
    "grid_sample": "torch",
    "pallas_matmul": "jax",
}


@pytest.mark.parametrize("script", LACKING)
def test_a_package_that_is_not_installed(script: str, tmp_path: Path) -> None:
    name = LACKING[script]
    (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", f"benchmarks.{script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
    words = f"this script needs the package {name}, which is not installed here\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


def test_a_row_that_fails_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scripts that are run on a lent GPU: rows by name, one that raises, and a file after each row."""
    pytest.importorskip("torch")
    from benchmarks import attention, attention_decode, attention_options, harness, products

    path, seen = tmp_path / "rows.json", list[int]()
    state = {"rows": 0}

    def kept() -> int:
        return len(json.loads(path.read_text())["rows"]) if path.exists() else 0

    def timed(work: Any, *_: Any) -> Any:
        seen.append(kept())
        state["rows"] += 1
        if state["rows"] == 2:
            raise RuntimeError("out of memory\nand more")
        yield {"work": work.name, "of torch": 1.0}

    def row(make: Any, rounds: int, routes: int, wanted: str) -> Any:
        return next(timed(make())) if wanted in make().name else None

    def made(name: str) -> Any:
        return lambda: SimpleNamespace(name=name)

    for module in (attention, products, harness):
        monkeypatch.setattr(module, "machine", lambda: "a GPU")
    for module in (attention, attention_decode, attention_options):
        monkeypatch.setattr(module, "timed", timed)
    monkeypatch.setattr(products, "measured", row)
    monkeypatch.setattr(products, "GROUPS", {"odd": lambda: map(made, ("one", "two", "one more", "one less"))})
    calls = {
        "attention forward --rows S16384": (attention, 3),
        "attention decode": (attention, 3),
        "attention options forward": (attention, 3),
        "products odd --rows one": (products, 3),
    }
    for call, (module, least) in calls.items():
        path.unlink(missing_ok=True)
        seen.clear()
        state["rows"] = 0
        monkeypatch.setattr(sys, "argv", [*call.split(), "--json", str(path)])
        with contextlib.suppress(SystemExit):
            module.main()
        assert seen == list(range(len(seen))) and len(seen) >= least, call
        rows = json.loads(path.read_text())["rows"]
        assert [n for n, x in enumerate(rows) if "failed" in x] == [1] and len(rows) == len(seen)
        assert "out of memory" in rows[1]["failed"] and "more" not in rows[1]["failed"]


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["2", "4"])
def test_a_rehearsal_of_the_collectives(devices: str) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "benchmarks.collectives", "--dry", "--devices", devices]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len(rows) == 36, done.stderr
    assert [row for row in rows if not row.get("right")] == []


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["2", "4"])
def test_a_rehearsal_of_collectives_with_one_process_a_device(devices: str) -> None:
    """Torch checks the names, arguments and shapes of its functions of symmetric memory, which need GPUs to run."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "benchmarks.collectives_ranks", "--dry", "--devices", devices]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len(rows) == 21, done.stderr
    assert [row for row in rows if not row.get("right")] == []
    assert {"one_shot", "two_shot", "fused", "all_to_all_single"} <= {who for row in rows for who in row["calls"]}
