"""`kd.bench`, on functions whose times are known: the order of runs, medians, ratios, floors, and the words for peers that fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime import timing
from kernel_dsl.runtime.measure.bench import BenchResult, BenchRow
from kernel_dsl.runtime.timing import Timing


def _result(**more: Any) -> BenchResult:
    rows = (
        BenchRow("ours", Timing((1e-6, 2e-6, 3e-6)), 1.0),
        BenchRow("<b>", Timing((4e-6,) * 3), 2.0),
        BenchRow("broken", None, None, "ValueError: <no>"),
    )
    return BenchResult(rows, "GPU time", ("H, 1980 MHz", "H, 1755 MHz"), 3, **more)


def test_functions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    now = 0.0
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now))

    def slow(x: Any) -> Any:
        nonlocal now
        calls.append("slow")
        now += 0.004
        return x

    def quick(x: Any) -> Any:
        nonlocal now
        calls.append("quick")
        now += 0.001
        return x

    result = kd.bench(slow, 7, peers={"q": quick}, rounds=4, warmup=1, wall=True)
    assert calls == ["slow", "quick", "slow", "quick", *["slow", "quick"] * 4]
    assert result.clock == "wall time" and [r.name for r in result.rows] == ["slow", "q"]
    assert len(result["slow"].samples) == 4 and (result["slow"].median, result["q"].median) == pytest.approx(
        (0.004, 0.001)
    )
    assert result.rows[0].ratio == 1 and result.rows[1].ratio == result["q"].median / result["slow"].median
    assert "no GPU" in str(result) and result.floors == {}


def test_a_kernel_beside_plain_python() -> None:
    k = kd.kernel(
        lambda x, out: out.__setitem__(..., x[...] + 1),
        out_type=kd.ShapeDtypeStruct((64,), kd.float32),
        name="add",
        interpret=True,
    )
    x = np.arange(64, dtype=np.float32)

    def check(y: Any) -> None:
        assert (np.asarray(y) == x + 1).all()

    def wrong(x: Any) -> Any:
        return x

    def broken(x: Any) -> Any:
        raise ValueError("no such thing\nmore")

    result = kd.bench(k, x, peers=[lambda x: x + 1, wrong, broken], rounds=2, warmup=0, check=check, wall=True)
    assert [(r.name, r.timing is None) for r in result.rows] == [
        ("add", False),
        ("<lambda>", False),
        ("wrong", True),
        ("broken", True),
    ]
    assert result.rows[2].failed.startswith("AssertionError") and result.rows[3].failed == "ValueError: no such thing"
    with pytest.raises(KeyError):
        result["wrong"]
    with pytest.raises(AssertionError):
        kd.bench(wrong, x, check=check, wall=True)


def test_floors_tables_and_files(tmp_path: Path) -> None:
    result = _result(flops=4e6, bytes=1e6, peak_flops=4e12, bandwidth=2e12)
    assert result.floors == {"bytes": 0.5e-6, "flops": 1e-6}
    text = str(result)
    assert "ours 2.00 1.00 to 3.00 1.000 50.0%" in re.sub(" +", " ", text) and "ValueError: <no>" in text
    assert "floor by flops: 1.00 us" in text and "1755 MHz" in text
    html = result._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html and "<no>" not in html
    kept = json.loads(result.to_json(tmp_path / "a.json"))
    assert json.loads((tmp_path / "a.json").read_text()) == kept and kept["rows"][0]["samples"] == [1e-6, 2e-6, 3e-6]
    assert kept["floors"] == result.floors and kept["machine"][1] == "H, 1755 MHz"


def test_pictures() -> None:
    pytest.importorskip("matplotlib")
    result = _result(flops=4e6, bytes=1e6, peak_flops=4e12, bandwidth=2e12)
    bars = result.plot()
    assert [p.get_height() for p in bars.patches] == pytest.approx([2, 4])
    assert [t.get_text() for t in bars.get_legend().get_texts()] == ["floor by bytes", "floor by flops"]
    roof = result.roofline()
    line, *points = roof.get_lines()
    assert [p.get_ydata()[0] for p in points] == pytest.approx([2e12, 1e12]) and max(line.get_ydata()) == 4e12


def test_pictures_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(kd.Error, match="no flops, bytes, peak_flops, bandwidth"):
        _result().roofline()
    for picture in (_result().plot, _result(flops=4e6, bytes=1e6, peak_flops=4e12, bandwidth=2e12).roofline):
        with pytest.raises(kd.Error, match=r"ax='a\.png'"):
            picture("a.png")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(kd.Error, match="matplotlib is not installed"):
        _result().plot()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2**63}, "from 1 to 1,000,000"),
        ({"wall": np.zeros(3)}, "wall"),
        ({"warmup": -1}, "warmup"),
        ({"flops": -1.0}, "flops"),
        ({"bandwidth": "fast"}, "bandwidth"),
        ({"check": 3}, "check"),
        ({"peers": 3}, "peers"),
        ({"peers": {"x": 3}}, "no function"),
        ({"peers": {"abs": abs}}, "two functions"),
    ],
    ids=str,
)
def test_arguments(given: dict[str, Any], word: str) -> None:
    with pytest.raises(kd.Error, match=word):
        kd.bench(abs, -1, **given)


def test_functions_of_c_that_refuse_their_arguments() -> None:
    """They may have no signature, so only the call tells."""
    with pytest.raises(kd.errors.BadArgument, match=r"`type` can't be called so: type\(\) takes 1 or 3 arguments"):
        kd.bench(type)
    with pytest.raises(kd.errors.BadArgument, match="`check` can't be called so"):
        kd.bench(abs, -1, check=dict.fromkeys)
    assert "TypeError" in kd.bench(abs, -1, peers={"len": len}, rounds=1).rows[1].failed


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(1 << 24, device="cuda")
    result = kd.bench(torch.clone, x, peers={"twice": lambda x: x.clone().clone()}, bytes=2 * 4 * x.numel(), flops=1.0)
    assert result.clock == "GPU time" and len(result.machine) == 2 and "MHz" in result.machine[0]
    assert 1.5 < (result.rows[1].ratio or 0) < 2.5
    assert 0.5 < result.floors["bytes"] / result["clone"].median < 1.05
