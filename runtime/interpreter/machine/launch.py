"""Runs a launch: it admits blocks in batches, as many as a GPU would hold at once, until all have exited."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.compiled import ReportNames, SourceLine
from kernel_dsl.interpret_params import InterpretParams
from kernel_dsl.target import DEFAULT, Target, device_target

from ..checks.clocks import Clocks
from ..checks.deadlock import stuck
from ..checks.doubts import Doubts
from ..checks.explore import EXPLORED
from ..checks.global_shadow import GlobalShadow, prepare_buffers, report_unwritten
from ..checks.hazards import Reporter, RunReport
from ..checks.launches import Launches, LaunchState
from ..checks.livelock import Watch, livelock
from ..checks.order import Order
from ..checks.patience import Patience
from ..checks.peers import Peers
from ..checks.shared_shadow import SharedShadow
from ..checks.sync import SyncMemory
from ..checks.tensor_proxy import MapProxy
from ..checks.waits import MbarrierWait
from ..checks.wording import QUEUES, AccessSide
from ..ptx.module import Instruction
from .batch import Batch
from .engine import Engine
from .frame import Pool
from .group import Group
from .heap import Heap
from .launch_checks import check_launch
from .mbarriers import TIMED_OUT
from .memory import SHARED_RESERVED, GlobalMemory
from .program import Program, Seg
from .recorder import RECORDER, FlightRecorder
from .register_counts import RegisterCounts
from .spaces import GenericSpace, GlobalSpace, ParamSpace
from .special import special
from .turns import BatchTurns
from .variables import load_variables
from .waiting_blocks import Dims, WaitingBlocks
from .wgmma import WgmmaUnit

Array = npt.NDArray[Any]

# Warps in a batch: enough that the cost of a NumPy call is spread, few enough that registers stay in cache.
BATCH_WARPS = 1024
BATCH_BYTES = 1 << 28
_LONGEST = 10**18  # the longest wait, in nanoseconds
_LONGEST_SLEEP = 10**6  # the longest nanosleep, in nanoseconds (PTX ISA, 'nanosleep')


class Run(WaitingBlocks):
    """One launch of an entry: on one GPU, or at the same time on several, each with parameters of its own."""

    # what every run counts from its beginning
    accesses: int = 0  # how often lanes have accessed shadow memory
    steps: int = 0  # counted for a whole segment when a group enters it
    ahead: int = 0  # while a clock is read: how many of these steps come after it
    progress: int = 0
    exits: int = 0  # how often lanes have exited
    idle: int = 0  # how much of the progress changed nothing that a load could see
    polls: bool = False  # whether a group has polled memory
    atomics: int = 0  # the number of atomics that have changed memory
    slept: int = 0  # nanoseconds that have passed while a group slept
    waited: int = 0  # nanoseconds that all groups have waited, see `pass_time`
    _workspace: int = 0
    _seen_at: int = -1
    _idle_at: int = 0
    _looked_at: int = -1
    _looks: int = 0

    def __init__(
        self, program: Program, params: list[bytes], grid: Dims, block: Dims, cluster: Dims,
        dynamic_smem: int, memory: GlobalMemory, target: str, config: InterpretParams,
        names: ReportNames | None, lines: Mapping[int, SourceLine] | None, kernel_name: str,
        launches: Launches | None = None, overlaps: bool = False,
        report: RunReport | None = None, others: Sequence[list[bytes]] = (), patience: int = 0,
        doubts: Doubts | None = None,
    ) -> None:  # fmt: skip
        super().__init__(grid, cluster, 1 + len(others))
        self.launches: Launches = launches or Launches()
        self.overlap: LaunchState = self.launches.begin(overlaps)
        self.program = program
        self.block: Dims = block
        self.memory = memory
        self.config = config
        self.target: Target = device_target(target) or DEFAULT
        self.report: RunReport = report or RunReport()
        self.reporter: Reporter = Reporter(
            config.on_hazard == "warn", kernel_name or program.entry.name, names, lines, self.report,
            config.ignore,
        )  # fmt: skip
        self.reporter.files = program.module.files
        for fn in program.module.functions.values():
            self.reporter.locations |= fn.locations
        self.reporter.clock = lambda: self.accesses
        self.doubts: Doubts = doubts or Doubts(False)
        self.detect: bool = config.detect_hazards
        # for each PTX line: the spans of dynamic shared memory that its loads and stores must stay within
        uses = self.reporter.names.smem_uses if self.detect else ()
        self.smem_spans: dict[int, tuple[tuple[int, int], ...]] = {
            line: spans for spans, numbers in uses for line in numbers
        }
        self.threads_per_block: int = block[0] * block[1] * block[2]
        self.warps_per_block: int = -(-self.threads_per_block // 32)
        self.shared_bytes: int = SHARED_RESERVED + program.static_shared
        if dynamic_smem:
            self.shared_bytes = program.dynamic_offset + dynamic_smem
        self.dynamic_smem = dynamic_smem
        self.recorder: FlightRecorder | None = RECORDER.get()
        if self.recorder is not None:
            self.recorder.ran = True
        self.order: Order | None = EXPLORED.get()
        if self.order is not None:
            self.order.begin()
        self.rng: random.Random | None = (
            random.Random(config.seed) if config.schedule == "random" and self.order is None else None
        )
        self.patience: Patience = Patience(self, patience)
        self.budget: int = self.patience.first  # the number of steps at which `patience` looks at the run
        self.initial: Mapping[str, bytes] = {}  # initial bytes of module variables, instead of those in the text
        self.output: list[str] = []
        self._param_data: list[bytes] = [self._packed(given) for given in (params, *others)]
        self.parameters: list[ParamSpace] = [ParamSpace(data) for data in self._param_data]
        self.globals: GlobalSpace = GlobalSpace(self)
        self.generic: GenericSpace = GenericSpace(self)
        self.symbols: list[dict[str, int]] = [{} for _ in self.parameters]
        check_launch(self)
        self.count_blocks()
        self.resident: list[Batch] = []
        self.sync: SyncMemory = SyncMemory()
        self.maps_acquired: MapProxy = MapProxy()
        self.pool: Pool = Pool()
        self.heap: Heap = Heap(self)
        self.maps: dict[bytes, Any] = {}
        self.registers: RegisterCounts = RegisterCounts(self)
        self.sites: list[Instruction] = []
        self._site_of: dict[int, int] = {}
        # Bits for a cluster's warps and as many asynchronous queues; they leave room for the cluster's number if possible.
        agents = 2 * self.cluster_size * self.warps_per_block + 32
        self.agent_bits: int = max(min(30 - max(self.teams, 1).bit_length(), 12), 7, agents.bit_length())
        self.turns: BatchTurns = BatchTurns(self)
        self.watch: Watch = Watch(self)

    # --- set-up --------------------------------------------------------------------------------

    def _packed(self, params: list[bytes]) -> bytes:
        wanted = self.program.entry.params
        if len(params) != len(wanted):
            raise ValueError(f"entry '{self.program.entry.name}' takes {len(wanted)} parameters, {len(params)} given")
        data = bytearray(self.program.param_bytes)
        for var, value in zip(wanted, params, strict=True):
            at, size = self.program.param_offsets[var.name]
            if len(value) != size:
                raise ValueError(f"parameter '{var.name}' has {size} bytes, {len(value)} given")
            data[at : at + size] = value
        return bytes(data)

    def grid_workspace(self) -> int:
        """Return the memory of a cooperative launch's grid barrier, allocated at its first use."""
        if not self._workspace:
            data = np.zeros(64, np.uint8)
            self._workspace = self.memory.allocate(data, "grid workspace", kind="variable")
            buffer = self.memory.find(self._workspace)
            if buffer is not None and self.detect:
                buffer.shadow = GlobalShadow(self, buffer)
        return self._workspace

    def resolve(self, kind: str, what: Any, device: int) -> int:
        """Return the value of a link-time slot on a GPU: a global symbol's address or bytes of the parameters."""
        if kind == "global":
            return self.symbols[device][what[0]] + what[1]
        offset, size = what
        return int.from_bytes(self._param_data[device][offset : offset + size], "little")

    # --- running -------------------------------------------------------------------------------

    def run(self) -> RunReport:
        addresses = [address for symbols in self.symbols for address in load_variables(self, symbols)]
        try:
            with np.errstate(all="ignore"):
                self._prepare()
                self._loop()
                self._finish()
                self.launches.end(self.overlap, self)
        finally:
            for address in (*addresses, *([self._workspace] if self._workspace else []), *self.heap.addresses):
                self.memory.free(address)
            self.report.steps = self.steps
            self.report.output = "".join(self.output)
        return self.report

    def _prepare(self) -> None:
        prepare_buffers(self)

    def attach(self, batch: Batch) -> None:
        """Give a new batch its clocks and shadow memory."""
        if self.detect:
            batch.clocks = Clocks(batch)
            if batch.cluster > 1:
                batch.peers = Peers(batch)
            batch.shared.shadow = SharedShadow(batch)
        batch.engine = Engine(batch)
        batch.wgmma = WgmmaUnit(batch)

    def _loop(self) -> None:
        """Run batches until all blocks are done; admit more blocks as there is room for them."""
        per_batch, room = self._sizes()
        order = self.order
        while self.resident or any(self._waiting()):
            if not self.resident:
                for device in range(self.devices):
                    self._admit_first(device, min(per_batch, room))
            if order is not None and order.holds:
                order.release()
            batch = self._pick()
            while batch.ready and not self.watch.repeats(batch):
                batch.step()
                batch.engine.stepped()
                if order is not None and order.holds:
                    order.release()
                if self.turns.due:
                    self.turns.due = False
                    break
            if batch.done:
                batch.engine.drain()
                batch.engine.at_exit()
                self.resident.remove(batch)
                batch.close()
                continue
            if batch.ready:
                self._let_others(per_batch, room)
                continue
            if batch.engine.unblock():
                continue
            if any(b.ready for b in self.resident):
                continue
            self._all_wait(per_batch, room)

    def _pick(self) -> Batch:
        able = [b for b in self.resident if b.ready or b.done] or self.resident
        if len(able) > 1 and self.watch.asleep:
            able = [b for b in able if not self.watch.rests(b)] or able
        if self.turns.rng is None:
            return self.turns.pick(able)
        batch = self.turns.pick([b for b in self.resident if b in able or b.may_look(self.atomics)])
        if not batch.ready:
            batch.wake_pollers()
        return batch

    def pass_time(self) -> bool:
        """Let time pass if all GPUs wait and the kernel reads the clock, for time-outs. Otherwise return False."""
        if not self.program.reads_time or self.waited > _LONGEST:
            return False
        self.waited = 4 * self.waited + 10**9
        self.watch.asleep.clear()
        self.watch.polled = None
        self.watch.seen.clear()
        return True

    def _let_others(self, per_batch: int, room: int) -> None:
        """Run the batches that may end a batch's repetition; if there are none, report a livelock."""
        awake = [b for b in self.resident if not self.watch.rests(b)]
        if any(b.ready or b.done for b in awake) or any(b.engine.unblock() for b in awake):
            return
        if self._admit_more(per_batch, room):
            return
        if self.watch.polled_before() or not self._wake_pollers():
            livelock(self)

    def _all_wait(self, per_batch: int, room: int) -> None:
        """Complete pending copies, wake polling groups, admit blocks, or report a deadlock, because no group is ready."""
        for batch in self.resident:
            if batch.engine.unblock():
                return
        if self.order is not None and self.order.release(forced=True):
            return
        if self._wake_pollers() or any(b.barriers.part() for b in self.resident):
            return
        if self._admit_more(per_batch, room):
            return
        if self.idle != self._idle_at:  # warps go round, between barriers, and change nothing
            livelock(self)
        else:
            stuck(self)

    def _wake_pollers(self) -> bool:
        """Wake polling groups, except in a state that they already had since memory last changed."""
        if self._seen_at != self.progress - self.idle:
            self._seen_at = self.progress - self.idle
            self._idle_at = self.idle
            self.watch.seen.clear()
            for batch in self.resident:
                batch.trail = set()
        woken = False
        for batch in self.resident:
            kept: list[Group] = []
            for g in batch.polling:
                state = self.watch.state(batch, g)
                if state in self.watch.seen:
                    kept.append(g)
                    continue
                self.watch.seen.add(state)
                waits = type(g.why) is MbarrierWait
                g.why = TIMED_OUT if waits else None
                batch.push(g)
                woken = True
            batch.polling = kept
        return woken

    def _admit_more(self, per_batch: int, room: int) -> bool:
        """Admit blocks of a GPU that has room. Returns whether there is such a GPU."""
        for device, left in enumerate(self._waiting()):
            held = sum(b.blocks for b in self.resident if b.device == device)
            if left and held < room:
                self._admit(device, min(per_batch, room - held))
                return True
        return False

    def _admit_first(self, device: int, count: int) -> None:
        """Admit the first blocks of a GPU, in one batch or in several."""
        clusters = max(min(count, self._waiting()[device]) // self.cluster_size, 1)
        for size in self.turns.first_sizes(clusters):
            self._admit(device, size * self.cluster_size)

    def _admit(self, device: int, count: int) -> None:
        size = self.cluster_size
        wanted = max(count // size, 1) * size if count > 0 else 0
        count = min(wanted, self._waiting()[device])
        if self.program.cancels and count:
            count = self._some(count // size) * size
        if count:
            first = self._take(device, count)
            self.resident.append(Batch(self, self.coordinates(first, count), first))

    def _some(self, clusters: int) -> int:
        """Return how many of `clusters` start now if the kernel cancels launches: a busy GPU may start any number."""
        if self.rng is not None:
            return self.rng.randint(1, clusters)
        return max(clusters // (4 if self.config.schedule == "late" else 2), 1)

    def _sizes(self) -> tuple[int, int]:
        """Return (blocks in a batch, blocks resident on the whole GPU)."""
        limits = self.target.limits
        used = max(self.shared_bytes, 1)
        per_sm = min(
            limits.blocks_per_multiprocessor,
            max(limits.warps_per_multiprocessor // self.warps_per_block, 1),
            max(limits.smem_per_multiprocessor // used, 1),
        )
        room = per_sm * limits.multiprocessors
        registers = max(len(self.program.entry.registers), 1)
        tracked = (24 + 4 * self.warps_per_block) * used // self.program.shared_granule if self.detect else 0
        by_bytes = BATCH_BYTES // max(used + tracked + registers * self.warps_per_block * 128, 1)
        per_batch = max(min(BATCH_WARPS // self.warps_per_block, by_bytes, room), 1)
        return per_batch, max(room, self.cluster_size)

    def _finish(self) -> None:
        self.reporter.flush()
        if self.config.report_unwritten:
            report_unwritten(self)

    # --- services to instructions --------------------------------------------------------------

    def sleep(self, c: Group, time: int) -> None:
        """Let the nanoseconds of a nanosleep pass, if nothing else could happen meanwhile."""
        alone = not c.batch.ready and not any(b.ready for b in self.resident)
        if alone and not any(b.engine.pending for b in self.resident):
            self.slept += min(time, _LONGEST_SLEEP)

    def yield_group(self, c: Group, ins: Instruction) -> bool:
        """Let other groups run before `c` goes on after its instruction."""
        c.batch.poll(c.at(c.frame.code.segments[c.pc].next), ins)
        return False

    def looked(self, c: Group, ins: Instruction) -> bool:
        """Record that a group polled memory. If nothing has changed, hold the group and return False."""
        self._looks += 1
        c.batch.look(ins, self.atomics)
        self.turns.due = self.turns.taken
        self.polls = True
        if self._looked_at != self.progress - self.idle and self._looks & 63:
            self._looked_at = self.progress - self.idle
            return True
        return self.yield_group(c, ins)

    def stored(self, moved: bool) -> None:
        """Record a store. `moved`: whether it changed memory."""
        self.progress += 1
        self.idle += not moved

    def site(self, ins: Instruction) -> int:
        """Return a small number for an instruction, for shadow memory."""
        found = self._site_of.get(id(ins))
        if found is None:
            self.sites.append(ins)
            found = self._site_of[id(ins)] = len(self.sites) - 1
        return found

    def side(self, batch: Batch, team: int, agent: int, site: int, same: bool) -> AccessSide:
        """Return an agent and a place as texts (`team` counts from the batch's first; `same`: the accessor's own)."""
        place = self.reporter.place(self.sites[site])
        clocks = batch.clocks
        if agent < clocks.agents:
            rank, warp = divmod(agent, self.warps_per_block)
            at = batch.first + team * self.cluster_size + rank
            known = 0 <= at < self.blocks
            who = self.reporter.who(self.coordinates(at, 1)[0], warp) if known else "another block"
            return AccessSide(who, place, "", same, rank)
        if not same:  # each batch numbers its own queues
            return AccessSide("an asynchronous copy of another cluster", place, "copy", False)
        key = clocks.queues[agent - clocks.agents]
        rank = key[1] // self.warps_per_block if key[0] in ("bulk", "bulkw", "cp.async") else None
        return AccessSide(QUEUES.get(key[0], "an asynchronous copy"), place, str(key[0]), same, rank)

    def takes_long(self, more: int) -> None:
        """Let an instruction count as so many more until `patience` looks at the run."""
        if self.patience.every:
            self.budget -= more

    def out_of_steps(self, g: Group, seg: Seg) -> None:
        self.budget = self.patience.look(g, seg)

    def on_exit(self, g: Group) -> None:
        """Complete cluster barriers after lanes have exited."""
        self.progress += 1
        self.exits += 1
        if g.batch.cluster > 1:
            g.batch.barriers.cluster_settle()

    def special(self, batch: Batch, name: str) -> Array:
        return special(self, batch, name)
