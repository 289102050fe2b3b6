"""Imports every file that registers instruction builders, so that importing this one fills the table."""

from __future__ import annotations

from . import atomics, barriers, control, loads, moves, warp

BUILDERS = (atomics, barriers, control, loads, moves, warp)
