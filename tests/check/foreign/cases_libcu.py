"""libcu++: barriers, pipelines, semaphores, latches, atomics, copies, and what std:: has."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .cases_samples import F, f32, i32, u32, zeros

V = i32(512)


def phases(v: Any, out: Any, n: int) -> Any:
    for _ in range(n):
        v = v * 3 + np.roll(v, -1)
    return v


def complexes(a: Any, b: Any) -> Any:
    z = a.astype(np.float64).view(np.complex128)
    return (z * z / (z + (3 + 1j)) + z.conj()).view(np.float64)


def vocabulary(x: Any, out: Any) -> Any:
    found = []
    for v in x.tolist():
        word = v >> 3 if v & 1 else 7
        word += v.bit_count() + (32 - (v | 1).bit_length()) * ((v & 3) + 1) + (5 if v & 2 else 6)
        found.append((word + ((v << 5 | v >> 27) & 0xFFFFFFFF) + -(-(v & 255) // 7)) & 0xFFFFFFFF)
    return found


def tickets(*_: Any) -> Any:
    x = 0
    for _ in range(6):
        x = 3 * x + 1
    return [x]


BASIC = [
    Case("barrier_phases", [V[:64], zeros(64), 4], phases, [1], 1, 64),
    Case("barrier_drop", [zeros(1)], lambda o: [128 + 96 + 64 + 32], [0], 1, 160),
    Case("barrier_completion", [zeros(64)], lambda o: np.full(64, 3), [0], 1, 64),
    Case("barrier_parity", [V[:128], zeros(128)], lambda v, o: v.reshape(4, 32)[:, ::-1], [1], 1, 64),
    Case("barrier_copy", [V, zeros(512)], lambda v, o: v.reshape(2, 256)[:, ::-1], [1], 2, 128),
    Case("barrier_copy_bytes", [i32(24).view(np.int8), zeros(96, dtype=np.int8)], lambda v, o: v[::-1], [1], 1, 32),
    Case("pipeline_shared", [i32(320, 4), zeros(320, 4), 5], lambda v, *_: v.reshape(5, 64, 4)[:, ::-1, ::-1], [1], 1, 64),
    Case("pipeline_roles", [V[:192], zeros(192), 6], lambda v, *_: v.reshape(6, 32)[:, ::-1] + 1, [1], 1, 64),
    Case("pipeline_thread", [f32(320), zeros(320, dtype=F), 5], lambda v, *_: v * 2, [1], 1, 64),
    Case("semaphores", [zeros(1), 3], lambda *_: [12], [0]),
    Case("counting_semaphore", [zeros(1), zeros(1)], None, [0], 1, 128),
    Case("latches", [V[:64], zeros(64)], lambda v, o: v[::-1], [1], 1, 64),
    Case("message", [zeros(1), zeros(1), zeros(3)], lambda *_: [0, 42, 42], [2], 3, 32),
    Case("message_fences", [zeros(1), zeros(1), zeros(3)], lambda *_: [0, 42, 42], [2], 3, 32),
    Case("spin_atomic", [zeros(1), zeros(1)], lambda *_: [6], [1], 6, 32),
    Case("ticket_lock", [zeros(1), zeros(1), zeros(1)], tickets, [2], 6, 32),
    Case("atomic_kinds", [zeros(3), zeros(1, dtype=np.uint64), zeros(1, dtype=F), zeros(1, dtype=float), zeros(2, dtype=np.int16), zeros(4, dtype=np.uint8)],
         lambda *_: ([256, 127, 0], [2**60 - 1], [64], [32], [0, 384], [0, 0, 128, 0]), [0, 1, 2, 3, 4, 5], 2, 64),
    Case("atomic_multiply", [np.ones(1, F), zeros(1, dtype=np.int64)], lambda *_: ([2.0**64], [-63 * 5]), [0, 1], 2, 32),
    Case("sequentially", [zeros(1), zeros(1), zeros(2)], None, [2], 2, 32),
    Case("mdspans", [f32(20, 7), zeros(7, 20, dtype=F), 20, 7], lambda a, *_: (a + np.arange(20, dtype=F)[:, None]).T, [1], 1, 32),
    Case("complexes", [f32(128), zeros(128, dtype=F)], complexes, [1], 1, 64, atol=1e-5, rtol=1e-4),
    Case("vocabulary", [u32(64), zeros(64, dtype=np.uint32)], vocabulary, [1], 1, 64),
    Case("annotated", [V, zeros(512), 512], lambda v, *_: v * 2, [1], 2),
    Case("grid_barrier", [zeros(64, dtype=np.uint8), zeros(96), zeros(96)], lambda *_: (np.arange(96) + 40) % 96, [2], 3, 32,
         before=[("grid_barrier_init", (0, -1), 1, 32)]),
    Case("barrier_try_for", [zeros(64)], lambda o: np.full(64, 2), [0], 1, 64),
    Case("atomic_wait", [zeros(4), zeros(1)], lambda *_: [5, 6, 7, 8], [0], 4, 32),
    Case("semaphore_for", [zeros(1), np.ones(2, np.int32)], lambda *_: [15], [0], 4, 32),
    Case("lock_with_sleeps", [zeros(1), zeros(1), 3], lambda *_: [12], [1], 4, 32),
    Case("time_out", [zeros(1), zeros(2)], lambda *_: [1, 1999], [1], 2, 32),
    Case("shuffled_pairs", [V[:128].view(np.int64), zeros(64, dtype=np.int64)], lambda x, o: x[np.arange(64) ^ 5], [1], 1, 64),
    Case("interleaved", [V, zeros(512), 512], lambda v, *_: v * 2, [1], 4),
]  # fmt: skip
HOPPER = [
    Case("bulk_copy", [V, zeros(512)], lambda v, o: v + 1, [1], 2, 64),
    Case("bulk_reduce", [V, zeros(64)], lambda v, o: v.reshape(8, 64).sum(0), [1], 8, 64),
    Case("remote_arrive", [V[:8], zeros(8)], lambda v, o: v.reshape(2, 2, 2)[:, ::-1], [1], 4, 32, 2),
    Case("multicast_reduce", [V, zeros(128)], lambda v, o: v.reshape(2, 4, 64).sum(1), [1], 8, 64, 4),
]  # fmt: skip
CASES = BASIC + HOPPER
