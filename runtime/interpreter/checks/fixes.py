"""What mends each kind of hazard, for hazards that say nothing more exact."""

from __future__ import annotations

from .kinds import HazardKind as Kind

FIXES: dict[Kind, str] = {
    Kind.RACE_SHARED: "put a barrier between the two",
    Kind.RACE_GLOBAL: "put a barrier between the two",
    Kind.RACE_BLOCKS: "order the blocks by a semaphore with release and acquire, or use atomics",
    Kind.RACE_LAUNCHES: "put griddepcontrol.wait before the access",
    Kind.EQUAL_VALUE_RACE: "let one of them write, or order them; where any order is right, ignore this kind",
    Kind.READ_BEFORE_WAIT: "wait for the copy's barrier before reading",
    Kind.MISSING_PROXY_FENCE: "put fence.proxy.async (commit_smem) between the writes and the barrier",
    Kind.REUSED_BEFORE_READ: "wait until the store has read its source (wait_group.read), then tell the others",
    Kind.READ_ONLY_CACHE: "load without .nc",
    Kind.UNAWAITED_COPY: "wait for the copy before the block ends",
    Kind.REUSED_BEFORE_WGMMA: "wait for the wgmma group (wgmma.wait_group) before the memory is written again",
    Kind.WGMMA_REGISTERS: "wait for the wgmma group (wgmma.wait_group) before the access",
    Kind.MISSING_WGMMA_FENCE: "put wgmma.fence between the write and the wgmma",
    Kind.BYTES_MISMATCH: "expect as many bytes as the copies of the phase bring",
    Kind.PHASE_OVERRUN: "wait for each phase before the next one completes",
    Kind.IMPOSSIBLE_WAIT: "wait for a phase that arrivals complete",
    Kind.BARRIER_MISUSE: "initialise the mbarrier once, and let as many arrivals come as its count says",
    Kind.DEADLOCK: "see that every wait has its arrivals: counts, parities, and who runs first",
    Kind.LIVELOCK: "see that a warp changes what the loops read",
    Kind.DIVERGENCE: "let all lanes that the instruction needs execute it together",
    Kind.BARRIER_COUNT: "let as many threads arrive as the barrier's count says",
    Kind.OUT_OF_BOUNDS: "correct the address, or mask the access",
    Kind.MISALIGNED: "use an aligned address, or smaller accesses",
    Kind.READ_ONLY: "store to memory that the kernel may write",
    Kind.UNINITIALISED: "write it before it is read",
    Kind.UNWRITTEN: "store every element",
    Kind.SHARED_CAPACITY: "use less shared memory",
    Kind.REGISTER_CAPACITY: "ask for fewer registers, or let other warps give some back first",
    Kind.CLUSTER_SIZE: "use a smaller cluster",
    Kind.PEER_NOT_RUNNING: "meet at a cluster barrier before the first access to a peer, and after the last",
    Kind.DESCRIPTOR: "correct the operand",
    Kind.RACE_TMEM: "wait for it: tcgen05.wait after loads and stores, tcgen05.commit and its mbarrier after products "
    "and copies; then tell the other threads",
    Kind.TMEM_MISUSE: "access columns that the block has allocated and not freed",
    Kind.LAUNCH_CONTROL: "ask try_cancel again only after it cancelled a launch",
    Kind.SEMAPHORE_LEFT: "let each signal have its wait",
    Kind.STEP_BUDGET: "see that the loop ends, or give a larger step_budget",
    Kind.TRAP: "see which condition leads to the trap",
    Kind.ASSERTION: "see why the condition is false",
}
