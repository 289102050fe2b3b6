"""Blocks a multiprocessor, against figures of NVIDIA's occupancy calculator."""

from __future__ import annotations

import pytest

from kernel_dsl.target import TARGETS
from runtime.occupancy import blocks_per_multiprocessor, target_limits


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
