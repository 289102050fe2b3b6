"""Orders that the compiler adds."""

from __future__ import annotations

from ..ir import Effect, Op


class WarpgroupBarrier(Op, name="warpgroup_barrier", effect=Effect.SYNC):
    """All lanes of the warpgroup meet, and see each other's earlier stores. PTX `barrier.cta.sync`."""
