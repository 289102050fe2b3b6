"""Orders that the compiler adds."""

from __future__ import annotations

from ..ir import Effect, Op


class WarpgroupBarrier(Op, name="warpgroup_barrier", effect=Effect.SYNC):
    """All lanes of the warpgroup wait for each other, and see each other's earlier stores. PTX `barrier.cta.sync`."""


class GmemProxyFence(Op, name="gmem_proxy_fence", effect=Effect.SYNC):
    """After a wait for another device's signal: later asynchronous copies see the GMEM that the lanes see.

    PTX `fence.proxy.async.global`, in kernels with such copies.
    """


class SmemProxyFence(Op, name="smem_proxy_fence", effect=Effect.SYNC):
    """The lanes' loads of SMEM end before another warpgroup's copies overwrite what they read.

    An arrival on an mbarrier does not wait for loads: they may still be in the queue of SMEM when it completes. The op has
    no barrier. PTX `fence.proxy.async.shared::cta` (ISA 8.9.5).
    """
