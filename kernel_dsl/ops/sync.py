"""Orders that the compiler adds."""

from __future__ import annotations

from ..ir import Effect, Op


class WarpgroupBarrier(Op, name="warpgroup_barrier", effect=Effect.SYNC):
    """All lanes of the warpgroup meet, and see each other's earlier stores. PTX `barrier.cta.sync`."""


class GmemProxyFence(Op, name="gmem_proxy_fence", effect=Effect.SYNC):
    """Asynchronous copies that follow see what the lanes have seen of GMEM: after a wait for another device's signal.

    PTX `fence.proxy.async.global`, in kernels that copy so.
    """
