"""What the interpreter reports. The value of each kind is what `HazardError.kind` prints as."""

from __future__ import annotations

from enum import StrEnum

from .boundary import Choices


class HazardKind(StrEnum, metaclass=Choices):
    """The kinds of hazard. Those that say 'always' are errors even with `on_hazard="warn"`."""

    RACE_SHARED = "race_shared"  # two warps, one writing, unordered, in shared memory
    RACE_GLOBAL = "race_global"  # two warps of one block, in global memory
    RACE_BLOCKS = "race_blocks"  # two blocks
    RACE_LAUNCHES = "race_launches"  # two launches of which the second need not wait for the first to end
    EQUAL_VALUE_RACE = "equal_value_race"  # two unordered writes of one value, by two warps, blocks or proxies
    READ_BEFORE_WAIT = "read_before_wait"  # the result of an async copy read before its completion was waited for
    MISSING_PROXY_FENCE = "missing_proxy_fence"  # an ordinary write, then an async-proxy access, with no fence
    REUSED_BEFORE_READ = "reused_before_read"  # shared memory rewritten before a TMA store has read it
    READ_ONLY_CACHE = "read_only_cache"  # ld.global.nc of what the kernel itself writes
    UNAWAITED_COPY = "unawaited_copy"  # a block ends while a bulk copy may still read or write its shared memory
    REUSED_BEFORE_WGMMA = "reused_before_wgmma"  # shared memory rewritten while wgmma may still read it
    WGMMA_REGISTERS = "wgmma_registers"  # accumulator or A fragment touched while wgmma is in flight
    MISSING_WGMMA_FENCE = "missing_wgmma_fence"  # registers written, then wgmma, with no wgmma.fence
    BYTES_MISMATCH = "bytes_mismatch"  # bytes that a barrier expects differ from those issued
    PHASE_OVERRUN = "phase_overrun"  # a barrier phase completed again before the last was seen
    IMPOSSIBLE_WAIT = "impossible_wait"  # a wait that nothing can end
    BARRIER_MISUSE = "barrier_misuse"  # an mbarrier used before init, or arrived at too often
    DEADLOCK = "deadlock"  # always: nothing can run
    LIVELOCK = "livelock"  # always: all that runs repeats itself, and nobody can change what it reads
    DIVERGENCE = "divergence"  # always: lanes of a warp part at an instruction that needs them together
    BARRIER_COUNT = "barrier_count"  # a named barrier's thread count is wrong
    OUT_OF_BOUNDS = "out_of_bounds"  # outside of arrays, or of a line's own SMEM; a peer's memory through .shared
    MISALIGNED = "misaligned"
    READ_ONLY = "read_only"  # a store to memory that the kernel may not write
    UNINITIALISED = "uninitialised"  # what nobody wrote decides something: a store, a branch, an address, a predicate
    UNWRITTEN = "unwritten"  # an output element that nothing stored to (`report_unwritten`)
    SHARED_CAPACITY = "shared_capacity"  # always
    REGISTER_CAPACITY = "register_capacity"  # setmaxnreg asks for more than the block has
    CLUSTER_SIZE = "cluster_size"  # always
    PEER_NOT_RUNNING = "peer_not_running"  # a peer's shared memory touched before it started or after it left
    DESCRIPTOR = "descriptor"  # a TMA or wgmma operand that breaks the hardware's rules
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
