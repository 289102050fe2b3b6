"""The kernels that are timed keep everything in registers at the shapes they are timed at. Needs ptxas, and no GPU."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import kernel_dsl as kd

pytestmark = pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas, for the registers it gives")


def _array(*shape: int, dtype: Any = kd.bfloat16) -> Any:
    return kd.ShapeDtypeStruct(shape, dtype)


def _cases() -> Iterator[Any]:
    names = ("03_layer_norm", "04_transpose", "05_histogram", "06_prefix_sum", "09_quantize", "16_sum")
    norms, turn, counts, scans, fp8, sums = (importlib.import_module(f"examples.{name}") for name in names)
    for centred in (True, False):
        word = "layer" if centred else "rms"
        for shape in [(8192, 8192), (16384, 4096), (4096, 32768), (131072, 128)]:
            parameters = [_array(shape[1])] * (1 + centred)
            kernel = norms.forward_for(shape, centred)
            yield pytest.param(kernel, (_array(*shape), *parameters), id=f"{word}_norm_{shape[1]}")
        for shape in [(8192, 8192), (16384, 4096)]:
            rows = [_array(shape[0], dtype=kd.float32)] * (1 + centred)
            arguments = (_array(*shape), _array(*shape), _array(shape[1]), *rows)
            yield pytest.param(norms.backward_for(shape, centred), arguments, id=f"{word}_norm_backward_{shape[1]}")
    square = _array(16384, 16384)
    yield pytest.param(turn.transpose_kernel(2), (square,), id="transpose")
    yield pytest.param(counts.histogram_kernel(), (_array(2**28, dtype=kd.uint8),), id="histogram")
    yield pytest.param(scans.row_kernel_for(16384), (square,), id="row_cumsum")
    yield pytest.param(fp8.quantize_kernel(), (_array(8192, 8192),), id="quantize")
    yield pytest.param(sums.span_sums(), (_array(2**28, dtype=kd.float32),), id="sum")


@pytest.mark.parametrize(("kernel", "arguments"), list(_cases()))
@pytest.mark.sampled(2)
def test_nothing_spills(kernel: Any, arguments: tuple[Any, ...]) -> None:
    resources = kernel.lower(*arguments, target="sm_90a").compile().resources
    assert resources.spills == 0 and resources.local_bytes == 0
    assert resources.blocks_per_multiprocessor >= 1
