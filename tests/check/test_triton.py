"""Triton's launches in the interpreter; skipped where Triton is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter.checks.kinds import HazardKind

if importlib.util.find_spec("triton") is None:

    def test_without_triton_it_says_so() -> None:
        with pytest.raises(kd.Error, match="pip install triton"), kd.check.triton():
            pass
else:
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, scale, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        mask = i < n
        tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask) * scale, mask=mask)

    @triton.jit
    def softmax(x, out, n, B: tl.constexpr):
        row, i = tl.program_id(0), tl.arange(0, B)
        v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(out + row * n + i, e / tl.sum(e, axis=0), mask=i < n)

    @triton.jit
    def matmul(a, b, c, N, K, M_: tl.constexpr, N_: tl.constexpr, K_: tl.constexpr):
        rows, columns = tl.program_id(0) * M_ + tl.arange(0, M_), tl.program_id(1) * N_ + tl.arange(0, N_)
        total = tl.zeros((M_, N_), tl.float32)
        for k in range(0, K, K_):
            inner = k + tl.arange(0, K_)
            left = tl.load(a + rows[:, None] * K + inner[None, :])
            total = tl.dot(left, tl.load(b + inner[:, None] * N + columns[None, :]), total)
        tl.store(c + rows[:, None] * N + columns[None, :], total)

    @triton.jit
    def race(x, out, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(out + i, tl.load(x + i) + tl.program_id(0))

    RNG = np.random.default_rng(0)
    VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
    SCHEDULES = ("eager", "late", "random:1")

    @pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_100a"])
    def test_numpy_arrays(target: str) -> None:
        x, y = RNG.standard_normal((2, 1000)).astype(np.float32)
        out = np.zeros_like(x)
        with kd.check.triton(target, schedules=SCHEDULES) as found:
            add[(4,)](x, y, out, 1000, 0.5, B=256)
            rows, result = x.reshape(10, 100), np.zeros((10, 100), np.float32)
            softmax[(10,)](rows, result, 100, B=128)
            a, b = (RNG.standard_normal(s).astype(np.float16) for s in ((128, 96), (96, 128)))
            c = np.zeros((128, 128), np.float32)
            matmul[(2, 2)](a, b, c, 128, 96, M_=64, N_=64, K_=32)
        np.testing.assert_allclose(out, x + y * 0.5, rtol=1e-6, atol=1e-6)
        e = np.exp(rows.astype(np.float64))
        np.testing.assert_allclose(result, e / e.sum(1, keepdims=True), rtol=1e-5)
        np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-3)
        assert len(found.reports) == 3
        # before 3.8, Triton put no proxy fence between cp.async and the products that read what it brought
        known = {HazardKind.MISSING_PROXY_FENCE} if VERSION < (3, 8) and target != "sm_80" else set[HazardKind]()
        assert {h.kind for h in found.hazards} == known
        if not known:
            found.raise_for_hazards()

    def test_a_race_is_at_tritons_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # what another checkout compiled names its own file
        x = np.zeros(256, np.float32)
        with kd.check.triton(schedules="eager") as found:
            race[(2,)](x, np.zeros_like(x), B=256)
        (hazard,) = found.hazards
        assert hazard.kind == "race_blocks" and hazard.buffer == "out" and hazard.index == (0,)
        assert hazard.file == __file__ and "tl.store" in hazard.source
        with pytest.raises(kd.HazardError):
            found.raise_for_hazards()

    def test_tritons_own_driver_comes_back() -> None:
        before = triton.runtime.driver._active, triton.runtime.JITFunction.run
        with kd.check.triton():
            assert triton.runtime.driver.active.get_current_target().arch == 90
        assert (triton.runtime.driver._active, triton.runtime.JITFunction.run) == before

    def test_cpu_tensors_and_host_descriptors() -> None:
        torch = pytest.importorskip("torch")
        from triton.tools.tensor_descriptor import TensorDescriptor

        @triton.jit
        def tiled(a, b, c, K, M_: tl.constexpr, N_: tl.constexpr, K_: tl.constexpr):
            row, column = tl.program_id(0) * M_, tl.program_id(1) * N_
            total = tl.zeros((M_, N_), tl.float32)
            for k in range(0, K, K_):
                total = tl.dot(a.load([row, k]), b.load([k, column]), total)
            c.store([row, column], total)

        a, b, c = torch.randn(128, 96).half(), torch.randn(96, 128).half(), torch.zeros(128, 128)
        boxes = ((a, [64, 32]), (b, [32, 64]), (c, [64, 64]))
        with kd.check.triton(schedules=SCHEDULES) as found:
            tiled[(2, 2)](*(TensorDescriptor.from_tensor(x, box) for x, box in boxes), 96, 64, 64, 32)
        assert found.hazards == []
        torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-3, rtol=1e-3)


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "options",
    [
        {"target": "sm_20"},
        {"schedules": ("soon",)},
        {"ignore": ("nothing",)},
        {"target": 90},
        {"step_budget": 0},
        {"ignore": (Unspeakable(),)},
    ],
)
def test_options(options: dict[str, Any]) -> None:
    """They are told before the context begins."""
    with pytest.raises(kd.Error):
        kd.check.triton(**options)
