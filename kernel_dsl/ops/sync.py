"""Orders that the compiler adds."""

from __future__ import annotations

from ..ir import Effect, Op


class WarpgroupBarrier(Op, name="warpgroup_barrier", effect=Effect.SYNC):
    """All lanes of the warpgroup wait for each other, and see each other's earlier stores. PTX `barrier.cta.sync`."""


class GmemProxyFence(Op, name="gmem_proxy_fence", effect=Effect.SYNC):
    """After a wait for another device's signal: later asynchronous copies see the GMEM that the lanes see.

    PTX `fence.proxy.async.global`, in kernels with such copies.
    """
