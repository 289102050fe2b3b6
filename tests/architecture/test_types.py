"""What type checkers and editors know of the public names. Most need pyright."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl.late import MODULES
from tests.architecture import measures, type_checker
from tests.architecture.type_checker import NoPyrightError, known_types, pyright
from tests.conftest import ROOT

# What a user writes, with one mistake, a Ref as a value
_USE = """
from dataclasses import dataclass
import kernel_dsl as kd

@kd.kernel(out_type=kd.ShapeDtypeStruct((8,), kd.float32), scratch_types=[kd.Barrier(1)])
def add(x: kd.Ref, y: kd.Ref, out: kd.Ref, barrier: kd.BarrierRef):
    reveal_type(x.at[2:4])
    reveal_type(x.shape)
    reveal_type(x.dtype)
    reveal_type(x[...])
    reveal_type(x[...] + y[...])
    reveal_type(x[...] == 0)
    reveal_type(x[...].sum())
    reveal_type(barrier.at[0])
    out[...] = x[...] + y[...]
    x + 1

def product(a: kd.Ref, b: kd.Ref, acc: kd.AccRef):
    reveal_type(acc.at[:, 0:8])
    reveal_type(acc[...])

@kd.kernel
def plain(x: kd.Ref) -> None: ...

def helper(x: kd.Array, k: kd.Kernel) -> kd.Array:
    reveal_type(k)
    return x.reshape(-1).T

def body(x: kd.Ref): ...

reveal_type(add)
reveal_type(add.lower)
reveal_type(plain)
reveal_type(kd.kernel(body))

@dataclass(frozen=True)
class Config:
    rows: int

@kd.tune([Config(4)], predict=lambda config, x: config.rows)
def tuned(config: Config) -> kd.Kernel:
    return kd.kernel(body)

reveal_type(tuned)
reveal_type(tuned.tune(1).best)
reveal_type(tuned.kernel(1))
"""
# of expressions of it, and of public names: the whole type, or what a function returns
_TYPES = {
    "add": "Kernel",
    "plain": "Kernel",
    "k": "Kernel",
    "kd.kernel(body)": "Kernel",
    "add.lower": "-> Stages",
    "tuned": "Tuned[Config]",
    "tuned.tune(1).best": "Config",
    "tuned.kernel(1)": "Kernel",
    "x.at[2:4]": "Ref",
    "x.shape": "tuple[int, ...]",
    "x.dtype": "DType",
    "x[...]": "Array",
    "x[...] + y[...]": "Array",
    "x[...] == 0": "Array",
    "x[...].sum()": "Array",
    "barrier.at[0]": "BarrierRef",
    "acc.at[:, 0:8]": "AccRef",
    "acc[...]": "Array",
    "kd.sum": "-> Array",
    "kd.copy_gmem_to_smem": "-> None",
    "kd.float32": "DType",
    "kd.Layout.WGMMA": "LayoutRule",
    "kd.Graph": "type[Graph]",
    "kd.library.matmul": "Matmul",
    "kd.library.attention": "Attention",
    "kd.library.attention_backward": "AttentionBackward",
}


def _pyright(*arguments: str) -> dict[str, Any]:
    try:
        return pyright(*arguments)
    except NoPyrightError as e:
        pytest.skip(str(e))


def test_an_editor_knows_every_public_name(tmp_path: Path) -> None:
    names = [f"kd.{name}" for name in (*kd.__all__, *MODULES)] + [f"kd.library.{name}" for name in kd.library.__all__]
    more = [name for name in _TYPES if name.startswith("kd.") and "(" not in name]
    file = tmp_path / "use.py"
    file.write_text(_USE + "".join(f"reveal_type({name})\n" for name in dict.fromkeys([*names, *more])))
    said = _pyright(str(file))["generalDiagnostics"]
    found = [re.match(r'Type of "(.*?)" is "(.*)"', d["message"], re.DOTALL) for d in said]
    types = {hit[1]: hit[2] for hit in found if hit}
    assert [n for n in names if types.get(n, "Any") == "Any" or "Unknown" in types[n]] == []
    for name, expected in _TYPES.items():
        type = types[name]
        assert type.endswith(expected) if expected.startswith("->") else type == expected, (name, type)
    mistakes = [d["message"] for d in said if d["severity"] == "error" and d["rule"] != "reportUnusedExpression"]
    assert mistakes == ['Operator "+" not supported for types "Ref" and "Literal[1]"']


@pytest.mark.slow
def test_symbols_have_known_types() -> None:
    """At least 98 % of the symbols, as `pyright --verifytypes kernel_dsl --ignoreexternal` counts them."""
    try:
        part, others = known_types()
    except NoPyrightError as e:
        pytest.skip(str(e))
    assert part >= 0.98, others[:50]


def test_pyright_reads_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in an environment with an editable install, whose modules pyright does not find; for the tests and the measures."""

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        assert env["PYTHONPATH"] == str(ROOT)
        report = {"completenessScore": 0.995, "symbols": []}
        return SimpleNamespace(stdout=json.dumps({"typeCompleteness": report}), stderr="")

    monkeypatch.setattr(type_checker, "is_here", lambda: True)
    monkeypatch.setattr(subprocess, "run", run)
    assert known_types() == (0.995, [])
    assert measures.known_types() == "99.50 %"


@pytest.mark.slow
def test_pyright() -> None:
    """The packages and their types as written: pyright finds no error."""
    errors = [d for d in _pyright()["generalDiagnostics"] if d["severity"] == "error"]
    text = "\n".join(f"{d['file']}:{d['range']['start']['line'] + 1}: {d['message']}" for d in errors[:40])
    assert not errors, f"{len(errors)} errors\n{text}"
