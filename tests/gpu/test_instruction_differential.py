"""Every instruction of the interpreter against the GPU.

Elementwise ones agree bit for bit, or to PTX's bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import differential, tensor_differential, warp_differential
from .launcher import Gpu, why_no_gpu

_REASON = why_no_gpu()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with Gpu() as gpu:
        yield gpu


def test_elementwise(gpu: Gpu) -> None:
    rows = differential.run(gpu)
    text = differential.report(rows)
    print(text)
    assert not any(row.wrong for row in rows.values()), text


def test_warp_wide(gpu: Gpu) -> None:
    found = warp_differential.run(gpu)
    text = warp_differential.report(found)
    print(text)
    assert not any(found.values()), text


def test_tensor_cores(gpu: Gpu) -> None:
    table = tensor_differential.run(gpu)
    text = tensor_differential.report(table)
    print(text)
    for (kind, a_type, d_type), entry in table.items():
        limit = tensor_differential.bound(kind, a_type, d_type)
        assert entry.hardware <= limit and entry.interpreter <= limit, text
