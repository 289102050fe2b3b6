"""Blocks whose index counts elements: halos, padding, starts that the kernel computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument
from kernel_dsl.errors_hopper import PipelineLimit
from tests.ops.harness import random

Spec = kd.ShapeDtypeStruct


def smoothed(x: np.ndarray[Any, Any]) -> Any:
    """Sums of three neighbouring rows, zeros beyond the edges."""
    wide = np.pad(x, [(1, 1), (0, 0)])
    return wide[:-2] + wide[1:-1] + wide[2:]


def stencil(rows: int, columns: int, specialised: bool) -> Any:
    """Three rows added up, 8 rows a step from blocks of 10 that overlap by 2."""
    spec = kd.BlockSpec((kd.Element(10, (1, 1)), columns), lambda i: (i * 8, 0))

    def step(_: Any, halo: Any, block: Any) -> None:
        v = halo[...]
        block[...] = v[0:8] + v[1:9] + v[2:10]

    def body(x: Any, out: Any) -> None:
        make: Any = kd.emit_pipeline_warp_specialized if specialised else kd.emit_pipeline
        more: dict[str, Any] = {"num_compute_wgs": 1, "memory_registers": 40, "wg_axis": "wg"} if specialised else {}
        out_spec = kd.BlockSpec((8, columns), lambda i: (i, 0))
        made = make(step, grid=(-(-rows // 8),), in_specs=[spec], out_specs=[out_spec], max_concurrent_steps=2, **more)
        made(x, out)

    more: dict[str, Any] = {"num_threads": 2, "thread_name": "wg"} if specialised else {}
    return kd.kernel(body, out_type=Spec((rows, columns), kd.float32), **more)


@pytest.mark.tma
@pytest.mark.parametrize("specialised", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(40, 32), (37, 32), (21, 28)])
def test_halos(rows: int, columns: int, specialised: bool, interpret: Any) -> None:
    x = random((rows, columns), "float32")
    np.testing.assert_array_equal(stencil(rows, columns, specialised)(x, interpret=interpret), smoothed(x))


@pytest.mark.tma
def test_starts_that_the_kernel_computes(interpret: Any) -> None:
    """Blocks start where an array says, in elements; a start may lie past the edge."""

    def body(x: Any, starts: Any, out: Any) -> None:
        spec = kd.BlockSpec((None, kd.Element(16)), lambda i: (1, starts[i]))

        def step(_: Any, block: Any, to: Any) -> None:
            to[...] = block[...][None]

        kd.emit_pipeline(
            step,
            grid=(4,),
            in_specs=[spec],
            out_specs=[kd.BlockSpec((1, 16), lambda i: (i, 0))],
            max_concurrent_steps=2,
        )(x, out)

    x, starts = random((2, 64), "float32"), np.array([5, 0, 61, 33], np.int32)
    kernel = kd.kernel(body, out_type=Spec((4, 16), kd.float32), interpret=interpret)
    row = np.pad(x[1], (0, 16))
    np.testing.assert_array_equal(kernel(x, starts), [row[s : s + 16] for s in starts])


def test_what_is_no_extent_is_refused() -> None:
    with pytest.raises(BadArgument, match="1 element or more"):
        kd.Element(0)
    with pytest.raises(BadArgument, match="before and after"):
        kd.Element(4, (1, -1))


def test_outputs_do_not_overlap() -> None:
    with pytest.raises(PipelineLimit, match="nothing orders their stores"):
        kd.emit_pipeline(lambda *_: None, grid=(2,), out_specs=[kd.BlockSpec((kd.Element(8),), lambda i: (i,))])
