"""What pipelines refuse, at the line that made them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

pytestmark = pytest.mark.tma

f32 = kd.float32


def rows(i: Any) -> Any:
    return (i, 0)


def spec(shape: Any = (16, 64), index_map: Any = rows, **options: Any) -> Any:
    return kd.BlockSpec(shape, index_map, **options)


def nothing(indices: Any, block: Any) -> None:
    """A body for one input."""


GRIDS = [4, "ab", (1.5,), (-1,), (True,), None, ("n",), [kd.float32]]
SPECS: list[Any] = [
    (lambda: spec(16), "block_shape=16"),
    (lambda: spec((16.0, 64)), "block_shape"),
    (lambda: spec((-16, 64)), "block_shape"),
    (lambda: spec("ab"), "block_shape"),
    (lambda: spec(index_map=3), "index_map=3"),
    (lambda: spec(index_map=lambda i, j: (i, j)), "index_map can't be called with 1"),
    (lambda: spec(index_map=lambda: (0, 0)), "index_map can't be called with 1"),
    (lambda: spec(delay_release="1"), "delay_release='1'"),
    (lambda: spec(delay_release=-1), "delay_release=-1"),
    (lambda: spec(delay_release=True), "delay_release=True"),
]
BODIES: list[Any] = [
    (lambda indices: None, "body can't be called with 2"),
    (lambda indices, block, more: None, "body can't be called with 2"),
    (lambda indices, block: 3, "must return None"),
]


def lower(body: Any, grid: Any, make: Any, specialised: bool) -> Any:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((), f32), num_threads=2, thread_name="wg")
    def kernel(x: Any, out: Any) -> None:
        if specialised:
            kd.emit_pipeline_warp_specialized(
                body, grid=grid, in_specs=[make()], wg_axis="wg", num_compute_wgs=1, memory_registers=40
            )(x)
        else:
            kd.when(kd.axis_index("wg") == 0)(lambda: kd.emit_pipeline(body, grid=grid, in_specs=[make()])(x))

    return kernel.lower(kd.ShapeDtypeStruct((64, 64), f32))


@pytest.mark.parametrize("specialised", [False, True])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_grids(grid: Any, specialised: bool) -> None:
    with pytest.raises(kd.Error, match="grid="):
        lower(nothing, grid, spec, specialised)


@pytest.mark.parametrize("specialised", [False, True])
@pytest.mark.parametrize("case", SPECS, ids=lambda c: c[1])
def test_specs(case: Any, specialised: bool) -> None:
    with pytest.raises(kd.Error, match=case[1]):
        lower(nothing, (4,), case[0], specialised)


@pytest.mark.parametrize("specialised", [False, True])
@pytest.mark.parametrize("case", BODIES, ids=lambda c: c[1])
def test_bodies(case: Any, specialised: bool) -> None:
    with pytest.raises(kd.Error, match=case[1]):
        lower(case[0], (4,), spec, specialised)


@pytest.mark.parametrize("specialised", [False, True])
@pytest.mark.parametrize("grid", [(4,), [4], (0,)], ids=str)
def test_what_is_right(grid: Any, specialised: bool) -> None:
    lower(nothing, grid, spec, specialised)


@pytest.mark.parametrize("specialised", [False, True])
def test_blocks_of_one_element(specialised: bool) -> None:
    """TMA moves 16 bytes or more; the error says so, wherever the element lies in its buffer."""
    stages = lower(nothing, (4,), lambda: spec((None, None), lambda i: (i, i)), specialised)
    with pytest.raises(kd.Error, match="a single element"):
        stages.ptx  # noqa: B018


def test_blocks_without_elements(interpret: Any) -> None:
    """They are copied as any: nothing is moved, and every step runs."""

    @kd.kernel(out_type=[kd.ShapeDtypeStruct((3, 0), f32), kd.ShapeDtypeStruct((3,), kd.int32)])
    def kernel(x: Any, out: Any, seen: Any) -> None:
        def body(indices: Any, block: Any, result: Any) -> None:
            result[...] = block[...]
            seen[indices[0]] = indices[0]

        blocks = spec((1, 0))
        kd.emit_pipeline(body, grid=(3,), in_specs=[blocks], out_specs=[blocks], max_concurrent_steps=2)(x, out)

    out, seen = kernel(np.zeros((3, 0), np.float32), interpret=interpret)
    assert out.shape == (3, 0) and list(seen) == [0, 1, 2]


@pytest.mark.parametrize("memory", ["a", 1.0, True, 7, -1])
def test_memory_warpgroups(memory: Any) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((), f32), num_threads=2, thread_name="wg")
    def kernel(x: Any, out: Any) -> None:
        kd.emit_pipeline_warp_specialized(
            nothing,
            grid=(4,),
            in_specs=[spec()],
            wg_axis="wg",
            num_compute_wgs=1,
            memory_registers=40,
            memory_thread_idx=memory,
        )(x)

    with pytest.raises(kd.Error, match="emit_pipeline_warp_specialized"):
        kernel.lower(kd.ShapeDtypeStruct((64, 64), f32))


def test_specifications_print_what_they_hold() -> None:
    spec = kd.BlockSpec((8, None), lambda i: (i, 0), transforms=[kd.SwizzleTransform(32)], delay_release=1)
    expected = (
        "BlockSpec(block_shape=(8, None), transforms=(SwizzleTransform(32),), delay_release=1, index_map=<lambda>)"
    )
    assert repr(spec) == expected
    assert repr(kd.BlockSpec(memory_space=kd.GMEM)) == f"BlockSpec(memory_space={kd.GMEM!r})"
    small = kd.SMEM((4,), kd.float32)
    assert repr(kd.RefUnion(small, (small, small))) == f"RefUnion({small!r}, ({small!r}, {small!r}))"
