"""The kinds of hazard that the interpreter reports. `HazardError.kind` prints as the value of its kind."""

from __future__ import annotations

from enum import StrEnum

from .boundary import Choices


class HazardKind(StrEnum, metaclass=Choices):
    """The kinds of hazard. Kinds marked 'always' are errors even with `on_hazard="warn"`."""

    RACE_SHARED = "race_shared"  # unordered accesses of two warps to shared memory, at least one of them a write
    RACE_GLOBAL = "race_global"  # the same for two warps of one block, in global memory
    RACE_BLOCKS = "race_blocks"  # the same for two blocks
    RACE_LAUNCHES = "race_launches"  # the same for two launches, where the second may start before the first ends
    EQUAL_VALUE_RACE = "equal_value_race"  # two unordered writes of one value, by two warps, blocks or proxies
    READ_BEFORE_WAIT = "read_before_wait"  # a read of an async copy's result before a wait for the copy
    MISSING_PROXY_FENCE = "missing_proxy_fence"  # ordinary accesses, then one by the async proxy, with no fence
    REUSED_BEFORE_READ = "reused_before_read"  # shared memory rewritten before a TMA store has read it
    READ_ONLY_CACHE = "read_only_cache"  # ld.global.nc of memory that the kernel writes
    UNAWAITED_COPY = "unawaited_copy"  # a block ends while a bulk copy may still read or write its shared memory
    REUSED_BEFORE_WGMMA = "reused_before_wgmma"  # shared memory rewritten while wgmma or tcgen05 may still read it
    WGMMA_REGISTERS = "wgmma_registers"  # an access to an accumulator or A fragment while wgmma is in flight
    MISSING_WGMMA_FENCE = "missing_wgmma_fence"  # registers written, then wgmma, with no wgmma.fence
    BYTES_MISMATCH = "bytes_mismatch"  # a barrier expects another number of bytes than the copies bring
    PHASE_OVERRUN = "phase_overrun"  # a barrier phase completed again before the last was seen
    IMPOSSIBLE_WAIT = "impossible_wait"  # a wait that no arrival can end
    BARRIER_MISUSE = "barrier_misuse"  # an mbarrier used before init, initialised while valid, or arrived at too often
    DEADLOCK = "deadlock"  # always: no warp can run
    LIVELOCK = "livelock"  # always: all running warps repeat their steps, and no warp can change the data they read
    DIVERGENCE = "divergence"  # always: lanes of a warp diverge at an instruction that needs all of them
    BARRIER_COUNT = "barrier_count"  # a named barrier's thread count is wrong
    OUT_OF_BOUNDS = "out_of_bounds"  # outside arrays, or outside the SMEM of its Ref; a peer's memory through .shared
    MISALIGNED = "misaligned"  # an address that is not a multiple of the access's size
    READ_ONLY = "read_only"  # a store to memory that the kernel may not write
    UNINITIALISED = "uninitialised"  # unwritten or discarded data reaches a store, a branch, an address or a predicate
    UNWRITTEN = "unwritten"  # an output element without a store (`report_unwritten`)
    SHARED_CAPACITY = "shared_capacity"  # always: more shared memory than the target has
    REGISTER_CAPACITY = "register_capacity"  # setmaxnreg asks for more than the block has, or not by a whole warpgroup
    CLUSTER_SIZE = "cluster_size"  # always: a cluster that the target cannot launch
    PEER_NOT_RUNNING = "peer_not_running"  # an access to a peer's shared memory before the peer starts or after it ends
    DESCRIPTOR = "descriptor"  # a TMA, wgmma or tcgen05 operand that breaks the hardware's rules
    RACE_TMEM = "race_tmem"  # unordered accesses to tensor memory, at least one of them a write
    TMEM_MISUSE = "tmem_misuse"  # tensor memory allocated, freed or addressed against its rules, or not freed
    LAUNCH_CONTROL = "launch_control"  # a launch cancelled after a failed request, or a response that is none
    SEMAPHORE_LEFT = "semaphore_left"  # a kernel on a mesh ends with a semaphore that is not zero
    STEP_BUDGET = "step_budget"  # always: the step budget ran out
    TRAP = "trap"  # always: the kernel executed trap
    ASSERTION = "assertion"  # always: a device assertion failed


ALWAYS = frozenset(
    {
        HazardKind.DEADLOCK,
        HazardKind.LIVELOCK,
        HazardKind.DIVERGENCE,
        HazardKind.SHARED_CAPACITY,
        HazardKind.CLUSTER_SIZE,
        HazardKind.STEP_BUDGET,
        HazardKind.TRAP,
        HazardKind.ASSERTION,
        HazardKind.IMPOSSIBLE_WAIT,
    }
)
