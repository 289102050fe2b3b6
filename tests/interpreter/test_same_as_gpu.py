"""Compiled CUDA programs on the GPU and in the interpreter: the same bits, but for instructions that approximate."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.runtime.custom.image import precompiled_cuda_kernel

from .launching import PTX

BASICS, MORE, CORNERS, GROUPS = ("cuda_basics.ptx", "cuda_more.ptx", "cuda_corners.ptx", "cuda_libcu.ptx")
rng = np.random.default_rng(21)
F = rng.standard_normal(1024).astype(np.float32)
I = rng.integers(-1000, 1000, 1024).astype(np.int32)  # noqa: E741 - beside F, the floats
N = 256
Case = tuple[str, str, list[Any], list[tuple[Any, Any]], list[Any], tuple[int, int, int], float]

# file, entry, inputs, outputs (shape, dtype), scalars, block, tolerance (0: bitwise)
CASES: list[Case] = [
    (BASICS, "vecadd", [F, F[::-1].copy()], [(1024, np.float32)], [1024], (256, 1, 1), 0),
    (BASICS, "sw", [I], [(1024, np.int64)], [1024], (128, 1, 1), 0),
    (BASICS, "fk", [], [(64, np.int32)], [], (64, 1, 1), 0),
    (
        BASICS,
        "half_k",
        [F[:257].astype(np.float16), F[:257].astype(ml_dtypes.bfloat16)],
        [(N, np.float32)],
        [],
        (N, 1, 1),
        0,
    ),
    (MORE, "mathk", [F], [(1024, np.float32)], [1024], (256, 1, 1), 1e-5),
    (MORE, "localarr", [I], [(64, np.int32)], [1024], (64, 1, 1), 0),
    (MORE, "warpk", [I], [(32, np.int32)], [], (32, 1, 1), 0),
    (MORE, "fp8k", [F * 30], [(N, np.uint8), (N, np.float32)], [], (N, 1, 1), 0),
    (MORE, "indirect", [], [(64, np.int32)], [], (64, 1, 1), 0),
    (MORE, "fibk", [], [(64, np.int32)], [], (64, 1, 1), 0),
    (MORE, "cgreduce", [F], [(64, np.float32)], [], (64, 1, 1), 0),
    (
        MORE,
        "i64",
        [rng.integers(-(2**62), 2**62, 64), rng.integers(0, 2**63, 64)],
        [(64, np.int64)],
        [],
        (64, 1, 1),
        0,
    ),
    (MORE, "swt", [I[:64] % 15], [(64, np.int32)], [0], (64, 1, 1), 0),
    (CORNERS, "structcall", [], [(64, np.float32)], [], (64, 1, 1), 0),
    (CORNERS, "syncred", [abs(I[:128])], [(128, np.int32)], [], (128, 1, 1), 0),
    (CORNERS, "virt", [], [(64, np.int32)], [], (64, 1, 1), 0),
    (CORNERS, "deepk", [], [(32, np.int32)], [], (32, 1, 1), 0),
    (
        CORNERS,
        "mixed",
        [F[:64].astype(np.float16), F[64:128].astype(ml_dtypes.bfloat16), F[128:192].astype(np.float64)],
        [(64, np.float32)],
        [],
        (64, 1, 1),
        1e-4,
    ),
    (GROUPS, "scan", [abs(I[:32])], [(32, np.int32)], [], (32, 1, 1), 0),
    (GROUPS, "barr", [I[:256]], [(256, np.int32)], [], (256, 1, 1), 0),
    (GROUPS, "barr_al", [I[:256]], [(256, np.int32)], [], (256, 1, 1), 0),
]


def _run(case: Case, interpret: bool) -> list[Any]:
    file, entry, inputs, outputs, scalars, block, _ = case
    threads = outputs[0][0] if np.isscalar(outputs[0][0]) else block[0]
    return precompiled_cuda_kernel(
        name=entry,
        compiled_source=(PTX / file).read_bytes(),
        inputs=inputs,
        output_shapes=[(n,) for n, _ in outputs],
        output_dtypes=[dtype for _, dtype in outputs],
        scalars=scalars,
        grid=(threads, 1, 1),
        threadgroup=block,
        interpret=interpret,
    )


def _compare(case: Case, ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        if case[1] == "scan":  # the first lane's exclusive maximum is not defined
            a, b = a[1:], b[1:]
        if case[-1]:
            np.testing.assert_allclose(a, b, rtol=case[-1], atol=case[-1])
        else:
            np.testing.assert_array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[1])
def test_same_as_gpu(case: Case):
    _compare(case, _run(case, True), _run(case, False))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[1])
def test_same_every_time(case: Case):
    """Without a GPU: the programs run, and to the same bits."""
    _compare((*case[:-1], 0), _run(case, True), _run(case, True))
