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


@pytest.mark.tma
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_index_before_the_array_is_outside_in_every_step(depth: int, interpret: Any) -> None:
    """A dropped axis at -1: zeros, also in the first steps, whose index is static, and not the last row."""

    def body(x: Any, out: Any) -> None:
        rows = [kd.BlockSpec((None, 16), lambda i, d=d: (i + d, 0)) for d in (-1, 0)]

        def step(_: Any, before: Any, here: Any, to: Any) -> None:
            to[...] = here[...] - before[...]

        more = {"grid": (4,), "max_concurrent_steps": depth}
        kd.emit_pipeline(step, in_specs=rows, out_specs=[rows[1]], **more)(x, x, out)

    x = random((4, 16), "float32")
    got = kd.kernel(body, out_type=Spec((4, 16), kd.float32), interpret=interpret)(x)
    np.testing.assert_array_equal(got, np.diff(x, axis=0, prepend=np.float32(0)))


@pytest.mark.tma
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_tables_as_long_as_a_traced_grid(count: int, interpret: Any) -> None:
    """Loads of steps that do not exist look nothing up: the table may be shorter than the pipeline is deep, or empty."""

    def body(x: Any, table: Any, n: Any, out: Any) -> None:
        spec = kd.BlockSpec((None, 16), lambda i: (table[i], 0))
        first = kd.BlockSpec((None, 16), lambda i: (2, 0))

        def step(_: Any, block: Any, same: Any, to: Any) -> None:
            to[...] = block[...] + same[...]

        to = kd.BlockSpec((None, 16), lambda i: (i, 0))
        more = {"in_specs": [spec, first], "out_specs": [to], "max_concurrent_steps": 3}
        kd.emit_pipeline(step, grid=(n,), **more)(x, x, out)

    x, table = random((6, 16), "float32"), np.array([4, 0, 5, 1, 1], np.int32)[:count]
    kernel = kd.kernel(body, out_type=Spec((5, 16), kd.float32, init=7), interpret=interpret)
    want = np.full((5, 16), 7, np.float32)
    want[:count] = x[table] + x[2]
    np.testing.assert_array_equal(kernel(x, table, np.int32(count)), want)


@pytest.mark.tma
@pytest.mark.parametrize("specialised", [False, True])
@pytest.mark.parametrize("block", [(1, 32), (3, 32), (2, 5, 64)])
def test_buffers_of_4_bit_elements_start_where_tma_may_write(block: Any, specialised: bool, interpret: Any) -> None:
    def body(x: Any, out: Any) -> None:
        make: Any = kd.emit_pipeline_warp_specialized if specialised else kd.emit_pipeline
        more: dict[str, Any] = {"num_compute_wgs": 1, "memory_registers": 40, "wg_axis": "wg"} if specialised else {}
        spec = kd.BlockSpec(block, lambda i: (i, *(0 for _ in block[1:])))

        def step(_: Any, part: Any, to: Any) -> None:
            to[...] = part[...].astype(kd.int32)

        make(step, grid=(4,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=3, **more)(x, out)

    x = np.random.default_rng(0).integers(-8, 8, (4 * block[0], *block[1:])).astype(kd.int4.numpy)
    more: dict[str, Any] = {"num_threads": 2, "thread_name": "wg"} if specialised else {}
    kernel = kd.kernel(body, out_type=Spec(x.shape, kd.int32), interpret=interpret, **more)
    np.testing.assert_array_equal(kernel(x), x.astype(np.int32))


def test_what_is_no_extent_is_refused() -> None:
    with pytest.raises(BadArgument, match="1 element or more"):
        kd.Element(0)
    with pytest.raises(BadArgument, match="before and after"):
        kd.Element(4, (1, -1))


def test_outputs_do_not_overlap() -> None:
    with pytest.raises(PipelineLimit, match="nothing orders their stores"):
        kd.emit_pipeline(lambda *_: None, grid=(2,), out_specs=[kd.BlockSpec((kd.Element(8),), lambda i: (i,))])
