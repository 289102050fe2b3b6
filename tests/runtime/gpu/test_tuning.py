"""`kd.tune` and the command on a GPU: real kernels, compiled in children, compared and timed."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from examples import __name__ as examples
from kernel_dsl.__main__ import main
from kernel_dsl.runtime.arrays.array_view import view
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.measure import samples as measuring
from kernel_dsl.tuning_file import NAME, tuned_results

from ...tuning.test_tune import SPACE, Rows, make
from .support import GPU, needs_hopper

pytestmark = GPU
X = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    monkeypatch.setenv("KERNEL_DSL_CACHE", str(tmp_path))
    tuned_results.cache_clear()
    yield tmp_path
    tuned_results.cache_clear()
    tuned_results().add({}, keep=False)


@pytest.mark.alone  # it times kernels
def test_a_kernel(folder: Path) -> None:
    """Few rows a block are many blocks: the most rows win, whatever is predicted."""
    double = kd.tune(SPACE, predict=lambda c, x: c.rows, seconds=0.2)(make)
    np.testing.assert_array_equal(double(X), X * 2)
    made = double.tune(X)
    assert made.how == "measured" and made.gpu == cuda_device().name and made.best in (Rows(32), Rows(64))
    times = {row.config.rows: row.seconds or 0.0 for row in made.rows}
    assert 1e-6 < times[64] < times[8] < 1e-2, "8,192 blocks take longer than 1,024"
    again = kd.tune(SPACE, seconds=0.2)(make)
    assert again.tune(X).how == "kept" and again.tune(X).best == made.best
    assert len((folder / NAME).read_text().splitlines()) == 1 + len(SPACE)
    assert kd.tune(SPACE)(make).tune(X, budget="none").how == "first"
    assert double.tune(X, interpret=True).how == "first" or double.tune(X, interpret=True).how == "predicted"


@pytest.mark.alone  # it times kernels
def test_a_wrong_one_is_dropped() -> None:
    space = [Rows(8), Rows(16, factor=3.0), Rows(64)]
    with pytest.warns(RuntimeWarning, match="factor=3.0.* is dropped"):
        made = kd.tune(space, seconds=0.1)(make).tune(X)
    assert made.best == Rows(64)


def test_arrays_of_torch_are_left_alone() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(4096, device="cuda", dtype=torch.float32)
    kept = x.clone()
    double = kd.tune(SPACE, seconds=0.1)(make)
    out = double(x)
    assert torch.equal(out, kept * 2) and torch.equal(x, kept)
    odd = torch.zeros(4097, device="cuda")[1:]
    assert torch.equal(double(odd), odd * 2), "another alignment"


def test_times_are_those_of_events() -> None:
    """A copy of 256 MB: at most what the memory does, at least a third of it, however long the host takes."""
    copy = kd.kernel(
        lambda x, out: out.__setitem__(kd.ds(kd.program_id(0) * 4096, 4096), x[kd.ds(kd.program_id(0) * 4096, 4096)]),
        out_type=kd.ShapeDtypeStruct((1 << 26,), kd.float32),
        grid=(1 << 14,),
    )
    bench: Any = measuring.bench_of(cuda_device())
    (x,) = bench.inputs([kd.ShapeDtypeStruct((1 << 26,), kd.float32)])
    out = copy(x)
    np.testing.assert_array_equal(bench.host(out), bench.host(x))
    assert view(out).address != view(x).address
    seconds = sorted(bench.sample(lambda: copy(x, out=out)) for _ in range(9))[4]
    assert 2**29 / 8e12 < seconds < 2**29 / 5e11


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    import importlib

    importlib.import_module(f"{examples}.36_tune_matmul").main()
    assert "measured now" in capsys.readouterr().out


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_the_command_and_the_library(layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the command found is what calls take, in the layout that was asked for."""
    needs_hopper()
    torch = pytest.importorskip("torch")
    a, b = (torch.randn(1024, 1024, device="cuda").bfloat16() for _ in range(2))
    a, b = (x.T if how == "T" else x for x, how in zip((a, b), layout, strict=True))
    before = kd.library.matmul(a, b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no configuration gives another result
        command = f"tune matmul 1024x1024x1024 bf16 --keep 4 --seconds 0.2 --layout {layout}"
        assert main(command.split()) == 0
        assert main(["tune", "attention", "1x4x1024x128", "bf16", "--causal", "--keep", "3", "--seconds", "0.2"]) == 0
    text = capsys.readouterr().out
    assert text.count("measured now") == 2 and " us " in text
    after = kd.library.matmul(a, b)
    assert (after.float() - before.float()).abs().max() <= 2**-7 * before.float().abs().max()
    q = torch.randn(1, 4, 1024, 128, device="cuda").bfloat16()
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert (kd.library.attention(q, q, q, causal=True) - expected).abs().max() < 0.05
