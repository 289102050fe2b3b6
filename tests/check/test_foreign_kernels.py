"""Kernels in the ways of CUDA's samples, CUB, libcu++, cooperative groups, wmma, CuTe, Triton and Gluon: right, and no false alarm.

CUDA C++ is compiled by NVRTC and Triton's kernels by Triton, where those are installed; CuTe's headers come with `nvidia-cutlass`.
"""

from __future__ import annotations

import importlib.util
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.custom import nvrtc

from .foreign.case import IGNORED, SCHEDULES, headers, ptx_of, run

pytestmark = pytest.mark.slow
FILES = (
    "samples",
    "unusual",
    "cub",
    "groups",
    "libcu",
    "matrix",
    "cute",
    "patterns",
    "roles",
    "workloads",
    "in_place",
    "serving",
    "device",
)
TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("file", FILES)
def test_cuda(file: str, target: str) -> None:
    reason = nvrtc.unavailable()
    if reason or (file == "cute" and not headers()):
        pytest.skip(reason or "CuTe's headers are not installed")
    cases: Any = import_module(f"tests.check.foreign.cases_{file}")
    ptx = ptx_of(f"{file}.cu", target)
    wrong: list[str] = []
    for case in cases.CASES:
        if f".entry {case.entry}(" not in ptx:  # of Hopper alone
            assert target == "sm_80" or file == "cute", case.entry
            continue
        report = run(case, ptx)
        assert case.entry != "printing" or report.printed == cases.printed()
        wrong += [f"{case.entry}: {h.message}" for h in report.hazards]
    assert wrong == []


def test_cute_for_blackwell() -> None:
    reason = nvrtc.unavailable()
    if reason or not headers():
        pytest.skip(reason or "CuTe's headers are not installed")
    cases: Any = import_module("tests.check.foreign.cases_cute_blackwell")
    ptx = ptx_of("cute_blackwell.cu", "sm_100a")
    for case in cases.CASES:
        assert run(case, ptx).hazards == [], case.entry


def test_gluon_for_blackwell() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if importlib.util.find_spec("triton.experimental.gluon.language.nvidia.blackwell.clc") is None:
        pytest.skip("this Triton has no cluster launch control")
    kernels: Any = import_module("tests.check.foreign.gluon_blackwell")
    for launch in kernels.BLACKWELL:
        agrees(launch, "sm_100a")
    for launch in kernels.ULTRA:
        agrees(launch, "sm_103a")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "file",
    [
        "triton_kernels",
        "triton_patterns",
        "triton_in_place",
        "triton_serving",
        "gluon_kernels",
        "gluon_roles",
        "gluon_convolution",
    ],
)
def test_triton(file: str, target: str) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if tuple(map(int, version("triton").split(".")[:2])) < (3, 9):
        pytest.skip("the kernels are written for Triton 3.9")
    kernels: Any = import_module(f"tests.check.foreign.{file}")
    for launch in kernels.EVERYWHERE + (kernels.HOPPER if target == "sm_90a" else ()):
        agrees(launch, target)


def test_cute_dsl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuTe DSL compiles without a GPU. It writes each kernel's PTX to a file in the current folder."""
    monkeypatch.chdir(tmp_path)
    if importlib.util.find_spec("cutlass.cute" if importlib.util.find_spec("cutlass") else "cutlass") is None:
        pytest.skip("CuTe DSL is not installed")
    kernels: Any = import_module("tests.check.foreign.cute_dsl")
    for name, ptx, args, grid, want in kernels.cases():
        report = kd.check(ptx, *args, grid=grid, block=128, smem=kernels.SMEM, schedules=SCHEDULES, ignore=IGNORED)
        assert report.hazards == [], (name, str(report.hazards[0]))
        np.testing.assert_allclose(args[1], want, rtol=1e-5, atol=1e-5)


def agrees(launch: Any, target: str) -> None:
    """A launch is right and silent under the schedules."""
    with kd.check.triton(target, schedules=SCHEDULES, ignore=IGNORED) as found:
        results = launch()
    assert found.hazards == [], (launch.__name__, str(found.hazards[0]))
    for got, want, tolerance in results:
        np.testing.assert_allclose(np.asarray(got).astype(float), want, rtol=tolerance, atol=tolerance)
