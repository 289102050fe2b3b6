"""The number of a kernel's blocks that one multiprocessor holds at once, from the resources that the assembler reports.

CUDA C++ Programming Guide, 'Technical Specifications per Compute Capability', and the occupancy calculator's allocation
units, which are one and the same from sm_80 to sm_120: registers go to a warp in units of 256, warps in groups of 4
(one a sub-core), SMEM in units of 128 bytes, and each block has 1 KiB of SMEM taken by the system.
"""

from __future__ import annotations

from kernel_dsl.target import TARGETS, Limits, Target

_WARP = 32
_REGISTER_UNIT = 256
_SUBCORES = 4
_SMEM_UNIT = 128
_SMEM_RESERVED = 1024


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def target_limits(name: str) -> Limits:
    """The limits of the target called `name`; for an unknown target, those of the nearest older one."""
    if name in TARGETS:
        return TARGETS[name].limits

    def number(text: str) -> int:
        digits = "".join(c for c in text if c.isdigit())
        return int(digits or 0)

    older = [t for t in TARGETS.values() if number(t.name) <= number(name)]
    best: Target = max(older, key=lambda t: number(t.name), default=TARGETS["sm_80"])
    return best.limits


def blocks_per_multiprocessor(limits: Limits, *, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that fit one multiprocessor at once; 0 if a block is too large.

    Args:
        threads: lanes of a block.
        registers: 32-bit registers a lane at entry.
        shared_bytes: SMEM of a block, static and dynamic.
    """
    if threads > limits.threads_per_block or shared_bytes > limits.smem_per_block:
        return 0
    warps = _round_up(max(threads, 1), _WARP) // _WARP
    fits = [limits.blocks_per_multiprocessor, limits.warps_per_multiprocessor // warps]
    if registers:
        a_warp = _round_up(registers * _WARP, _REGISTER_UNIT)
        warps_held = (limits.registers_per_multiprocessor // _SUBCORES // a_warp) * _SUBCORES
        fits.append(warps_held // warps)
    smem = _round_up(shared_bytes + _SMEM_RESERVED, _SMEM_UNIT)
    fits.append(limits.smem_per_multiprocessor // smem)
    return max(0, min(fits))
