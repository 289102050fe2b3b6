"""`kernel.profile`: events against what must be true of any order of warps, traces read back, and code that stays as it is."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.profile import Profile, ProfileEvent, arrows

f32, f16 = kd.float32, kd.float16
Spec = kd.ShapeDtypeStruct
X = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
TILES = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))


def _kernel(scope: Any = kd.named_scope, **options: Any) -> Any:
    def body(x: Any, out: Any, buf: Any, full: Any) -> None:
        with scope("load"):
            kd.copy_gmem_to_smem(x, buf.at[0], full.at[1])
            kd.barrier_wait(full.at[1])
        with scope("compute"), scope("inner"):
            out[kd.program_id(0)] = buf[0] * 2

    scratch = [kd.SMEM((1, 64, 64), f32), kd.Barrier(num_barriers=2)]
    return kd.kernel(body, out_type=Spec((3, 64, 64), f32), grid=(3,), scratch_types=scratch, **options)


def _nested(events: tuple[ProfileEvent, ...]) -> None:
    """Events of one warpgroup lie within or beside one another, within the kernel's."""
    for key in {(e.block, e.warpgroup) for e in events if e.kind in ("kernel", "scope", "wait")}:
        own = [e for e in events if (e.block, e.warpgroup) == key and e.kind not in ("copy", "wgmma")]
        (whole,) = (e for e in own if e.kind == "kernel")
        for a in own:
            assert whole.begin <= a.begin <= a.end <= whole.end
            assert all(b.end <= a.begin or a.end <= b.begin or (b.begin <= a.begin and a.end <= b.end) or
                       (a.begin <= b.begin and b.end <= a.end) for b in own)  # fmt: skip


def _check(profile: Profile) -> None:
    assert (profile.result == X * 2).all() and profile.dropped == 0
    _nested(profile.events)
    count: dict[tuple[str, str], int] = defaultdict(int)
    for e in profile.events:
        count[e.kind, e.name] += 1
    expected = {
        ("kernel", "body"): 3,
        ("scope", "load"): 3,
        ("scope", "compute"): 3,
        ("scope", "inner"): 3,
        ("wait", "full[1]"): 3,
    }
    assert {k: n for k, n in count.items() if k[0] not in ("copy", "wgmma")} == expected
    lines = {e.name: e.line for e in profile.events}
    assert lines["full[1]"] == lines["load"] + 2 and lines["compute"] == lines["inner"] == lines["load"] + 3
    assert {e.file for e in profile.events} == {__file__}
    summary = profile.summary()
    (wait,) = summary.waits
    waits = [e.duration for e in profile.events if e.kind == "wait"]
    assert (wait.name, wait.count, wait.total, wait.longest) == ("full", 3, sum(waits), max(waits))
    whole = sum(e.duration for e in profile.events if e.kind == "kernel")
    assert wait.share == pytest.approx(sum(waits) / whole)
    assert f"test_profile.py:{wait.line}" in str(summary) and "<script" not in summary._repr_html_()


@pytest.mark.parametrize("schedule", ["eager", "late", "random"])
def test_scopes_waits_and_copies(schedule: str) -> None:
    profile = _kernel().profile(X, interpret=kd.InterpretParams(schedule=schedule))
    assert profile.unit == "steps"
    _check(profile)
    copies = [e for e in profile.events if e.kind == "copy"]
    assert [(e.name, e.barrier) for e in copies] == [("TMA load", "full[1]")] * 3
    leaving, arriving = arrows(profile.events)
    for n, numbers in leaving.items():
        (target,) = (m for m, those in arriving.items() if set(those) & set(numbers))
        copy, wait = profile.events[n], profile.events[target]
        assert (copy.kind, wait.kind, wait.block) == ("copy", "wait", copy.block) and copy.end <= wait.end
    assert len(leaving) == 3


def test_products_are_tracks_of_their_own() -> None:
    def body(x: Any, out: Any, buf: Any, full: Any) -> None:
        kd.copy_gmem_to_smem(x, buf, full)
        kd.barrier_wait(full)

        def multiply(acc: Any) -> Any:
            kd.wgmma(acc, buf, buf)
            kd.wgmma_wait(0)
            return acc[...]

        out[...] = kd.run_scoped(multiply, kd.ACC((64, 64), f32))

    x = np.ones((64, 64), np.float16)
    k = kd.kernel(
        body, out_type=Spec((64, 64), f32), scratch_types=[kd.SMEM((64, 64), f16, transforms=TILES), kd.Barrier()]
    )
    profile = k.profile(x, interpret=True)
    assert (profile.result == 64).all()
    products = [e for e in profile.events if e.kind == "wgmma"]
    assert products and all(e.warpgroup == 0 for e in products)
    _, arriving = arrows(profile.events)
    assert {profile.events[n].name for n in arriving} == {"full", "wgmma_wait"}


def _fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message: (number, int or bytes)."""
    out: list[tuple[int, Any]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 2:
            size = varint()
            out.append((key >> 3, data[at : at + size]))
            at += size
        elif key & 7 == 1:
            out.append((key >> 3, int.from_bytes(data[at : at + 8], "little")))
            at += 8
        else:
            out.append((key >> 3, varint()))
    return out


def test_a_trace_is_read_back(tmp_path: Path) -> None:
    """Slices open and close as a stack on each track, and say the profile's times; flows leave before they arrive."""
    profile = _kernel().profile(X, interpret=True)
    profile.save(tmp_path / "a.pftrace")
    stacks: dict[int, list[tuple[str, int]]] = defaultdict(list)
    closed: list[tuple[str, int, int]] = []
    last, seen, ended = 0, set[int](), set[int]()
    for number, packet in _fields((tmp_path / "a.pftrace").read_bytes()):
        fields = dict(_fields(packet))
        assert number == 1 and fields[10] == 1
        if 11 not in fields:
            continue
        assert fields[8] >= last
        last = fields[8]
        event = _fields(fields[11])
        one = dict(event)
        if one[9] == 1:
            stacks[one[11]].append((one[23].decode(), last))
        else:
            name, begin = stacks[one[11]].pop()
            closed.append((name, begin, last))
            for flow in (v for k, v in event if k == 48):
                assert flow in seen
                ended.add(flow)
            seen |= {v for k, v in event if k == 47}
    assert not any(stacks.values()) and len(seen) == 3 and seen == ended
    assert sorted(closed) == sorted((e.name, e.begin, e.end) for e in profile.events)


def test_the_package_reads_the_same(tmp_path: Path) -> None:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    profile = _kernel().profile(X, interpret=True)
    profile.save(tmp_path / "a.pftrace")
    trace = pb.Trace()
    trace.ParseFromString((tmp_path / "a.pftrace").read_bytes())
    names = [p.track_event.name for p in trace.packet if p.track_event.type == pb.TrackEvent.TYPE_SLICE_BEGIN]
    assert sorted(names) == sorted(e.name for e in profile.events)
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    assert all(p.track_event.track_uuid in tracks for p in trace.packet if p.HasField("track_event"))
    assert trace.ByteSize() == (tmp_path / "a.pftrace").stat().st_size


def test_chrome_json(tmp_path: Path) -> None:
    profile = _kernel().profile(X, interpret=True)
    profile.save(str(tmp_path / "a.json"))
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    bars = sorted(
        (e["name"], round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)) for e in events if e["ph"] == "X"
    )
    assert bars == sorted((e.name, e.begin, e.end) for e in profile.events)
    assert sorted(e["ph"] for e in events if e["ph"] in "sf") == ["f"] * 3 + ["s"] * 3


def test_a_name_changes_no_code() -> None:
    def nothing(name: str) -> Any:
        return contextlib.nullcontext()

    assert _kernel().lower(X).ptx == _kernel(nothing).lower(X).ptx
    k = _kernel()
    before = k.lower(X).ptx
    k.profile(X, interpret=True)
    assert k.lower(X).ptx == before and "globaltimer" not in before


def test_a_ring_keeps_the_last() -> None:
    def body(out: Any) -> None:
        def step(i: Any, total: Any) -> Any:
            with kd.named_scope("turn"):
                return total + i

        out[...] = kd.fori_loop(0, 20, step, 0)

    k = kd.kernel(body, out_type=Spec((), kd.int32))
    whole, part = (k.profile(space=n, interpret=True) for n in (64, 7))
    assert whole.result == part.result == sum(range(20)) and whole.dropped == 0
    assert [e.name for e in whole.events].count("turn") == 20
    assert part.dropped == 42 - 7 and [e.name for e in part.events] == ["turn"] * 3
    assert 0 < part.summary().scopes[0].share <= 1, "of what is left"
    assert "35 events had no room" in str(part.summary())


def test_warps_on_their_own_and_several_outputs() -> None:
    def body(x: Any, out: Any, last: Any) -> None:
        @kd.warp_map
        def _(warp: Any) -> None:
            with kd.named_scope("mine"):
                out[warp] = x[warp] + 1

        last[...] = x[3]

    x = np.arange(4, dtype=np.int32)
    k = kd.kernel(body, out_type=[Spec((4,), kd.int32), Spec((), kd.int32)])
    given = [np.zeros(4, np.int32), np.zeros((), np.int32)]
    profile = k.profile(x, out=given, interpret=True)
    assert profile.result[0] is given[0] and (given[0] == x + 1).all() and given[1] == 3
    assert sorted(e.warp for e in profile.events if e.name == "mine") == [0, 1, 2, 3]


def test_compiler_params_write_a_trace_for_each_call(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "traces"
    k = _kernel(compiler_params=kd.CompilerParams(profile_space=32, profile_dir=str(folder)))
    for _ in range(2):
        assert (k(X, interpret=True) == X * 2).all()
    assert (kd.vmap(k)(X[None], interpret=True) == X * 2).all()
    assert sorted(p.name for p in folder.iterdir()) == [f"body-{n}.pftrace" for n in range(3)]


def test_a_kernel_over_batches() -> None:
    """Each member has its own blocks; outputs are one or several, and batches one or two."""

    def body(x: Any, y: Any, out: Any, last: Any) -> None:
        with kd.named_scope("add"):
            out[kd.program_id(0)] = x[kd.program_id(0)] + y[...]
        last[kd.program_id(0), 0] = y[...]

    x, y = np.arange(12, dtype=np.int32).reshape(2, 3, 2), np.array([5, 7], np.int32)
    one = kd.kernel(body, out_type=[Spec((2,), kd.int32), Spec((2, 1), kd.int32)], grid=(2,))
    for mapped, given in (
        (kd.vmap(one, (0, None)), (x[0], y[0])),
        (kd.vmap(kd.vmap(one, (0, None))), (x, y)),
        (kd.vmap(kd.vmap(one, (0, None)), (None, 0)), (x[1], y)),
    ):
        profile = mapped.profile(*given, interpret=True)
        expected = mapped(*given, interpret=True)
        for made, wanted in zip(profile.result, expected, strict=True):
            np.testing.assert_array_equal(made, wanted)
        blocks = expected[1].size
        assert sorted(e.block for e in profile.events if e.name == "add") == list(range(blocks))
    whole = kd.vmap(_kernel()).profile(np.stack([X, X + 1]), interpret=True)
    assert (whole.result == np.stack([X, X + 1])[:, None] * 2).all() and whole.dropped == 0


def _swap(**more: Any) -> Any:
    @kd.kernel(
        **more,
        out_type=Spec((2, 64), kd.float32),
        mesh=kd.Mesh(("x",), (2,)),
        grid=(2,),
        scratch_types=[kd.SMEM((64,), kd.float32), kd.Barrier(), kd.SemaphoreType.REGULAR],
    )
    def swap(x: Any, out: Any, tile: Any, full: Any, met: Any) -> None:
        row = kd.program_id(0)
        with kd.named_scope("meet"):
            kd.semaphore_signal_multicast(met, collective_axes="x")
            kd.semaphore_wait(met, 2)
        kd.copy_gmem_to_smem(kd.remote_ref(x, 1 - kd.axis_index("x")).at[row], tile, full)
        kd.barrier_wait(full)
        out[row] = tile[...]

    return swap


def test_a_kernel_on_a_mesh(tmp_path: Path) -> None:
    """Each device has its own rings; the interpreter has one clock for all."""
    xs, swap = [np.full((2, 64), n, np.float32) for n in range(2)], _swap()
    profile = swap.profile(xs, interpret=True)
    assert all((made == other).all() for made, other in zip(profile.result, xs[::-1], strict=True))
    for kind in ("kernel", "scope", "wait", "copy"):
        found = sorted((e.device, e.block) for e in profile.events if e.kind == kind)
        assert found == [(d, b) for d in range(2) for b in range(2)], kind
    assert min(e.begin for e in profile.events) == 0 and profile.unit == "steps"
    tracks, bars = profile._drawn()
    assert {f"swap device {d} block {b} (steps of the interpreter)" for d in range(2) for b in range(2)} == {
        t.name for t in tracks if not t.parent
    }
    assert [len(b.ends) for b in bars if b.name == "full"] == [1, 1, 1, 1]  # each from its own device's copy
    profile.save(tmp_path / "swap.pftrace")
    outs = [np.zeros((2, 64), np.float32) for _ in range(2)]
    assert swap.profile(xs, out=outs, interpret=True).events and (outs[0] == xs[1]).all() and (outs[1] == xs[0]).all()
    folder = tmp_path / "traces"
    kept = _swap(compiler_params=kd.CompilerParams(profile_space=32, profile_dir=str(folder)))
    assert all((made == other).all() for made, other in zip(kept(xs, interpret=True), xs[::-1], strict=True))
    kept(xs[::-1], out=outs, interpret=True)
    assert (outs[0] == xs[0]).all() and (outs[1] == xs[1]).all()
    assert sorted(p.name for p in folder.iterdir()) == ["swap-0.pftrace", "swap-1.pftrace"]


@pytest.mark.gpu
@pytest.mark.several_gpus
def test_a_kernel_on_two_gpus() -> None:
    torch: Any = pytest.importorskip("torch")
    xs = [torch.full((2, 64), float(n), device=f"cuda:{n}") for n in range(2)]
    profile = _swap().profile(xs)
    assert all(torch.equal(made.cpu(), other.cpu()) for made, other in zip(profile.result, xs[::-1], strict=True))
    found = sorted((e.device, e.block) for e in profile.events if e.name == "meet")
    assert found == [(d, b) for d in range(2) for b in range(2)] and profile.unit == "ns"


def test_what_has_no_profile(tmp_path: Path) -> None:
    k = _kernel()
    for space in (0, -1, 2**30, "many", True):
        with pytest.raises(kd.Error, match="space"):
            k.profile(X, space=space, interpret=True)
    profile = k.profile(X, interpret=True)
    with pytest.raises(kd.Error, match="path="):
        profile.save(3)
    with pytest.raises(kd.Error, match="path="):
        profile.save(tmp_path / "missing" / "a.pftrace")


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    k = _kernel()
    k.profile(torch.from_numpy(X).cuda())
    profile = k.profile(torch.from_numpy(X).cuda())
    assert profile.unit == "ns"
    profile.result = profile.result.cpu().numpy()
    _check(profile)
    assert all(0 < e.duration < 10**8 for e in profile.events if e.kind == "kernel")
    assert not [e for e in profile.events if e.kind in ("copy", "wgmma")]
