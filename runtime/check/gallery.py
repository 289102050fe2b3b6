"""`python -m kernel_dsl gallery`: known bugs of public projects, each restated in a few lines of PTX, beside its fixed form.

A restatement keeps the essence of the bug: the writer, the reader, and the missing order between them. It is not the project's
code. `docs/gallery.md` has the threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..interpreter import HazardKind
from .launches import Call
from .report import Report
from .run import check_calls
from .schedules import DEFAULT

_HEAD = """.version 8.6
.target sm_90a
.address_size 64
"""
_REGISTERS = """ .reg .pred p, q; .reg .b16 h; .reg .b32 t, w, s, i, n, a, b, c, m; .reg .b64 o, x, e; .reg .f32 f<8>;
 mov.u32 t, %tid.x; shr.u32 w, t, 5;
"""


@dataclass(frozen=True)
class Exhibit:
    """One bug.

    The fixed form has `with_` in place of `without` in `body`. `kinds`: the kinds of hazard that may report it.
    """

    name: str
    thread: str
    about: str
    kinds: tuple[HazardKind, ...]
    body: str
    without: str
    with_: str
    params: str = ""
    before: str = ""
    args: Callable[[], list[Any]] = list
    block: int = 64
    launch: dict[str, Any] = field(default_factory=dict[str, Any])

    def image(self, mended: bool) -> str:
        """The PTX, with the bug or without."""
        assert self.body.count(self.without) == 1, self.name
        body = self.body.replace(self.without, self.with_) if mended else self.body
        return f"{_HEAD}{self.before}.visible .entry k({self.params}) {{\n{_REGISTERS}{body} ret;\n}}\n"

    def check(self, mended: bool, schedules: Any = DEFAULT) -> Report:
        call = Call(self.image(mended), self.args(), 1, self.block, **self.launch)
        return check_calls([call], schedules, ())

    def as_told(self, bad: Report, good: Report) -> bool:
        """Whether the bug is found as one of its kinds, and nothing is found in the fixed form."""
        return bool(bad.hazards) and all(h.kind in self.kinds for h in bad.hazards) and not good.hazards


K = HazardKind
_GITHUB = "https://github.com/"
_OUT = ".param .u64 out"
_SHARED = ".shared .align 128 .b8 tile[4096];\n.shared .align 8 .b8 bar[16];\n"


def _out(n: int = 256) -> Callable[[], list[Any]]:
    return lambda: [np.zeros(n, np.int32)]


def _in_out(n: int) -> Callable[[], list[Any]]:
    return lambda: [np.arange(n, dtype=np.int32), np.zeros(256, np.int32)]


EXHIBITS = (
    Exhibit(
        "cuml-block-gemv", _GITHUB + "NVIDIA/cuml/pull/6578",
        "All threads write SMEM and meet; thread 0 reduces, and the others are already writing the next round.",
        (K.RACE_SHARED,),
        """ mov.u32 s, tile; mad.lo.u32 a, t, 4, s; mov.u32 i, 0; ld.param.u64 o, [out];
LOOP: st.shared.u32 [a], t;
 bar.sync 0;
 setp.ne.u32 p, t, 0; @p bra NEXT;
 ld.shared.u32 b, [s+128]; st.global.u32 [o], b;
NEXT: // the next round
 add.u32 i, i, 1; setp.lt.u32 p, i, 2; @p bra LOOP;
""",
        "NEXT: // the next round", "NEXT: bar.sync 0;", _OUT, _SHARED, _out(),
    ),
    Exhibit(
        "hecbench-marching-cubes", _GITHUB + "ORNL/HeCBench/issues/254",
        "One thread writes two sums into SMEM, and all threads read them with no barrier between.",
        (K.RACE_SHARED,),
        """ mov.u32 s, tile; setp.ne.u32 p, t, 0; @p bra READ;
 st.shared.u32 [s], 7; st.shared.u32 [s+4], 8;
READ: // all read
 ld.shared.u32 a, [s]; ld.shared.u32 b, [s+4]; add.u32 a, a, b;
 ld.param.u64 o, [out]; mad.wide.u32 o, t, 4, o; st.global.u32 [o], a;
""",
        "READ: // all read", "READ: bar.sync 0;", _OUT, _SHARED, _out(), 128,
    ),
    Exhibit(
        "fuser-async-copy", _GITHUB + "NVIDIA/Fuser/issues/3428",
        "cp.async into SMEM, then a barrier, but no wait for the copy: the barrier orders threads, not what they started.",
        (K.READ_BEFORE_WAIT, K.RACE_SHARED, K.UNINITIALISED),
        """ ld.param.u64 x, [x_]; mad.wide.u32 x, t, 4, x; mov.u32 s, tile; mad.lo.u32 a, t, 4, s;
 cp.async.ca.shared.global [a], [x], 4;
 // here
 bar.sync 0;
 xor.b32 b, t, 32; mad.lo.u32 b, b, 4, s; ld.shared.u32 c, [b];
 ld.param.u64 o, [out]; mad.wide.u32 o, t, 4, o; st.global.u32 [o], c;
""",
        " // here", " cp.async.wait_all;", ".param .u64 x_, " + _OUT, _SHARED, _in_out(64),
    ),
    Exhibit(
        "flashkda-proxy-fence", _GITHUB + "MoonshotAI/FlashKDA/issues/24",
        "Ordinary stores fill SMEM, a barrier, and a bulk copy stores it: the async proxy has not been told of the writes.",
        (K.MISSING_PROXY_FENCE,),
        """ mov.u32 s, tile; mad.lo.u32 a, t, 4, s; st.shared.u32 [a], t;
 // here
 bar.sync 0;
 setp.ne.u32 p, t, 0; @p ret;
 ld.param.u64 o, [out];
 cp.async.bulk.global.shared::cta.bulk_group [o], [s], 256;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
""",
        " // here", " fence.proxy.async.shared::cta;", _OUT, _SHARED, _out(),
    ),
    Exhibit(
        "triton-wgmma-wait", _GITHUB + "triton-lang/triton/pull/8964",
        "The accumulator of a wgmma is read where no wait stands before, in the epilogue of a persistent matmul.",
        (K.WGMMA_REGISTERS,),
        """ mov.u32 s, tile; mad.lo.u32 a, t, 16, s; mov.f32 f0, 0f00000000; mov.f32 f1, f0; mov.f32 f2, f0; mov.f32 f3, f0;
 mov.b32 b, 0; st.shared.v4.b32 [a], {b, b, b, b}; st.shared.v4.b32 [a+2048], {b, b, b, b};
 fence.proxy.async.shared::cta; bar.sync 0;
 shr.u32 s, s, 4; cvt.u64.u32 e, s; or.b64 e, e, 0x8000800080000; // 128 bytes along K and along the rows, no swizzle
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, e, e, 1, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned;
 // here
 ld.param.u64 o, [out]; mad.wide.u32 o, t, 4, o; st.global.f32 [o], f0;
 wgmma.wait_group.sync.aligned 0;
""",
        " // here", " wgmma.wait_group.sync.aligned 0;", _OUT, _SHARED, _out(), 128,
    ),
    Exhibit(
        "tilelang-divergent-barrier", _GITHUB + "tile-ai/tilelang/issues/1026",
        "A generated __syncthreads() stands inside a branch that half of the lanes of each warp take.",
        (K.DIVERGENCE, K.DEADLOCK, K.BARRIER_COUNT),
        """ mov.u32 s, tile; mad.lo.u32 a, t, 4, s; st.shared.u32 [a], t;
 and.b32 b, t, 1; setp.eq.u32 p, b, 0;
 @!p bra DONE;
 bar.sync 0;
DONE: bar.sync 0;
 ld.param.u64 o, [out]; mad.wide.u32 o, t, 4, o; st.global.u32 [o], t;
""",
        " @!p bra DONE;\n bar.sync 0;", " bar.sync 0;", _OUT, _SHARED, _out(),
    ),
    Exhibit(
        "vllm-mla-named-barrier", _GITHUB + "vllm-project/vllm/pull/26026",
        "Compute warps with nothing to do arrive at a named barrier without waiting, loop, and arrive again before the load "
        "warp has come once.",
        (K.DEADLOCK, K.BARRIER_COUNT),
        """ mov.u32 i, 0; setp.eq.u32 p, w, 2; @p bra LOAD;
COMPUTE: bar.arrive 1, 96;
 add.u32 i, i, 1; setp.lt.u32 q, i, 2; @q bra COMPUTE;
 ret;
LOAD: nanosleep.u32 100; bar.sync 1, 96;
 add.u32 i, i, 1; setp.lt.u32 q, i, 2; @q bra LOAD;
""",
        "COMPUTE: bar.arrive 1, 96;", "COMPUTE: bar.sync 1, 96;", block=96,
    ),
    Exhibit(
        "tilelang-one-iteration", _GITHUB + "tile-ai/tilelang/issues/2566",
        "A producer of one round arrives once on its barrier; the consumer waits for a second phase that never ends.",
        (K.DEADLOCK, K.IMPOSSIBLE_WAIT, K.LIVELOCK),
        """ mov.u32 s, bar; setp.ne.u32 p, t, 0; @p bra READY;
 mbarrier.init.shared.b64 [s], 1;
READY: bar.sync 0;
 setp.ne.u32 p, w, 0; @p bra CONSUME;
 setp.eq.u32 p, t, 0; @p mbarrier.arrive.shared.b64 e, [s];
 ret;
CONSUME: mov.u32 i, 0;
WAIT: mbarrier.try_wait.parity.shared.b64 q, [s], i; @!q bra WAIT;
 add.u32 i, i, 1; setp.lt.u32 p, i, 2; @p bra WAIT;
""",
        " add.u32 i, i, 1; setp.lt.u32 p, i, 2; @p bra WAIT;\n", "", "", _SHARED,
    ),
    Exhibit(
        "flashinfer-norm-alignment", _GITHUB + "flashinfer-ai/flashinfer/pull/636",
        "16-byte vectors in SMEM begin behind one float a warp; with three warps that is no multiple of 16 bytes.",
        (K.MISALIGNED,),
        """ mov.u32 s, tile; mov.u32 n, %ntid.x; shr.u32 n, n, 5;
 // here
 mad.lo.u32 s, n, 4, s; mad.lo.u32 s, t, 16, s; st.shared.v4.b32 [s], {t, t, t, t};
""",
        " // here", " add.u32 n, n, 3; and.b32 n, n, 0xfffffffc;", "", _SHARED, block=96,
    ),
    Exhibit(
        "tvm-half2-offset", _GITHUB + "apache/tvm/issues/8540",
        "Two halves are loaded as one 32-bit word from an odd element.",
        (K.MISALIGNED,),
        """ setp.ne.u32 p, t, 0; @p ret;
 ld.param.u64 x, [x_]; ld.param.u64 o, [out];
 ld.global.b32 a, [x+2];
 st.global.b32 [o], a;
""",
        " ld.global.b32 a, [x+2];", " ld.global.b16 h, [x+2]; cvt.u32.u16 a, h;", ".param .u64 x_, " + _OUT, "", _in_out(4),
    ),
    Exhibit(
        "cuml-umap-overflow", _GITHUB + "NVIDIA/cuml/pull/7587",
        "A grid-stride loop in 32 bits: near 2^31 the next row wraps to a negative number, which is below the end too.",
        (K.OUT_OF_BOUNDS,),
        """ ld.param.u32 n, [n_]; ld.param.u64 o, [out]; ld.param.u32 m, [first]; add.u32 i, t, m; mov.u32 c, 0;
LOOP: setp.ge.s32 p, i, n; @p ret;
 sub.u32 a, i, m; mad.wide.s32 x, a, 4, o; st.global.u32 [x], t;
 // here
 add.u32 i, i, 0x40000000; add.u32 c, c, 1; setp.lt.u32 q, c, 3; @q bra LOOP; // the others would do the same
""",
        " // here", " sub.u32 b, n, 0x40000000; setp.gt.s32 q, i, b; @q ret;",
        ".param .u32 n_, .param .u32 first, " + _OUT, "", lambda: [0x7FFFFFFF, 0x7FFFFF00, np.zeros(64, np.int32)],
    ),
    Exhibit(
        "timemachine-centroid", _GITHUB + "proteneer/timemachine/pull/1214",
        "A typo in the condition: all threads write an array of three elements.",
        (K.OUT_OF_BOUNDS, K.RACE_SHARED, K.RACE_GLOBAL),
        """ ld.param.u64 o, [out]; mad.wide.u32 o, t, 8, o; mov.u64 x, 0;
 // here
 st.global.u64 [o], x;
""",
        " // here", " setp.ge.u32 p, t, 3; @p ret;", _OUT, "", lambda: [np.zeros(3, np.int64)], 32,
    ),
    Exhibit(
        "cuda-samples-reduction", _GITHUB + "NVIDIA/cuda-samples/issues/398",
        "The last step of a reduction shuffles among the lanes that take a branch, and reads lanes that do not.",
        (K.DIVERGENCE,),
        """ mov.u32 m, 1; setp.ne.u32 p, t, 0; @p bra DONE;
 shfl.sync.down.b32 a, t, 16, 31, m;
 ld.param.u64 o, [out]; st.global.u32 [o], a;
DONE: add.u32 t, t, 1;
""",
        " mov.u32 m, 1; setp.ne.u32 p, t, 0; @p bra DONE;\n shfl.sync.down.b32 a, t, 16, 31, m;",
        " shfl.sync.down.b32 a, t, 16, 31, -1; setp.ne.u32 p, t, 0; @p bra DONE;", _OUT, "", _out(), 32,
    ),
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these; by default all")
    parser.add_argument("--show", action="store_true", help="print the PTX and the whole report too")


def run(options: argparse.Namespace) -> int:
    """Check all exhibits.

    Returns the exit status: 0 if each is found and its fixed form has no hazard, 2 for an unknown name.
    """
    known = {e.name: e for e in EXHIBITS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        print(f"there is no exhibit {unknown[0]!r}; there are: {', '.join(known)}")
        return 2
    wrong = 0
    for exhibit in [known[name] for name in options.names] or EXHIBITS:
        start = time.perf_counter()
        bad, good = exhibit.check(False), exhibit.check(True)
        took = time.perf_counter() - start
        found = ", ".join(dict.fromkeys(str(h.kind) for h in bad.hazards)) or "nothing"
        silent = "silent" if not good.hazards else ", ".join(str(h.kind) for h in good.hazards)
        print(f"{exhibit.name}: {found}; mended: {silent} ({took:.1f} s)\n  {exhibit.about}\n  {exhibit.thread}")
        if options.show:
            print(f"{exhibit.image(False)}\n{bad}\n")
        wrong += not exhibit.as_told(bad, good)
    return 1 if wrong else 0
