"""Blocks a multiprocessor, against figures of NVIDIA's occupancy calculator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel_dsl.compiled import LaunchAttributes
from kernel_dsl.runtime.assemble import assemble
from kernel_dsl.runtime.build.occupancy import blocks_per_multiprocessor, target_limits
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.target import TARGETS

from .kernels import axpy


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared", "blocks"),
    [
        ("sm_90a", 128, 32, 0, 16),  # 64 warps
        ("sm_90a", 128, 33, 0, 12),  # 40 registers a lane: 12 warps a sub-core
        ("sm_90a", 384, 168, 0, 1),
        ("sm_90a", 128, 168, 0, 3),
        ("sm_90a", 128, 255, 0, 2),
        ("sm_90a", 32, 16, 0, 32),
        ("sm_90a", 128, 32, 227 * 1024, 1),
        ("sm_90a", 128, 32, 113 * 1024, 2),
        ("sm_90a", 128, 32, 113 * 1024 + 1, 1),
        ("sm_90a", 128, 32, 228 * 1024, 0),
        ("sm_90a", 1024, 64, 0, 1),
        ("sm_90a", 1024, 65, 0, 0),
        ("sm_80", 256, 64, 0, 4),
        ("sm_80", 256, 32, 48 * 1024, 3),
        ("sm_89", 256, 32, 0, 6),
        ("sm_120a", 128, 40, 0, 12),
        ("sm_90a", 2048, 1, 0, 0),
    ],
)
def test_blocks(target: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    got = blocks_per_multiprocessor(TARGETS[target].limits, threads=threads, registers=registers, shared_bytes=shared)
    assert got == blocks


def test_an_unlisted_target_takes_the_nearest_older_limits() -> None:
    assert target_limits("sm_103a") == TARGETS["sm_100a"].limits
    assert target_limits("sm_86") == TARGETS["sm_80"].limits
    assert target_limits("sm_75") == TARGETS["sm_80"].limits


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="no GPU")
@pytest.mark.parametrize("threads", [32, 96, 128, 384, 1024])
@pytest.mark.parametrize("shared", [0, 1000, 20_000, 113 * 1024, 200 * 1024])
def test_the_driver_says_the_same(threads: int, shared: int) -> None:
    device = cuda_device()
    ptx = axpy(target=device.target.name).ptx.replace(".reqntid 128", ".maxntid 1024")
    launch = LaunchAttributes((1, 1, 1), (threads, 1, 1), dynamic_smem=shared)
    kernel = replace(axpy(target=device.target.name), ptx=ptx, launch=launch)
    if shared > device.target.limits.smem_per_block:
        pytest.skip("more SMEM than this GPU has")
    made = assemble(kernel)
    loaded = device.load(made)
    with driver.current(device.context):
        said = driver.check(driver.api().cuOccupancyMaxActiveBlocksPerMultiprocessor(loaded.function, threads, shared))
    assert made.resources.blocks_per_multiprocessor == said
