"""Waits that end: what the kernel says, and that saying it costs the products nothing."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import dtypes as dt
from kernel_dsl.library.collectives import all_reduce_words
from kernel_dsl.library.mesh_products.gathering_product import gathering_kernel
from kernel_dsl.library.mesh_products.scattering_product import scattering_kernel
from kernel_dsl.library.mesh_products.shared import MeshProduct
from kernel_dsl.library.ring.general import RingProblem
from kernel_dsl.library.ring.kernel import ring_kernel

PAIR = kd.Mesh(("x",), (2,))
SLOW = pytest.mark.slow


def like(*shape: int) -> Any:
    return kd.ShapeDtypeStruct(shape, dt.bfloat16)


def product(name: str, tile_n: int) -> Any:
    p = MeshProduct(4096, 4096, 2048, dt.bfloat16, PAIR, tile_n, 3, 132, 5, sends=name != "gather")
    if name == "gather":
        return gathering_kernel(p).lower(like(2048, 2048), like(2048, 4096), target="sm_90a")
    kernel = scattering_kernel(p, name == "reduce")
    return kernel.lower(like(4096, 2048), like(2048, 4096), target="sm_90a")


def ring(causal: bool, dim: int = 128) -> Any:
    p = RingProblem(PAIR, 1, 16, 8192, dim, 16, dt.bfloat16, causal, dim**-0.5, 132, 5)
    return ring_kernel(p).lower(*[like(1, 16, 8192, dim)] * 3, target="sm_90a")


FUSED = [
    pytest.param(lambda: product("gather", 256), id="gather_256"),
    pytest.param(lambda: product("scatter", 256), id="scatter_256", marks=SLOW),
    pytest.param(lambda: product("reduce", 64), id="reduce_64"),
    pytest.param(lambda: product("reduce", 256), id="reduce_256", marks=SLOW),
    pytest.param(lambda: ring(False), id="ring", marks=SLOW),
    pytest.param(lambda: ring(True), id="ring_causal"),
    pytest.param(lambda: ring(False, 64), id="ring_64", marks=SLOW),
    pytest.param(lambda: ring(True, 64), id="ring_64_causal", marks=SLOW),
]


@pytest.mark.parametrize("make", FUSED)
@pytest.mark.sampled(3)
def test_fused_kernels_with_a_timeout_have_no_call(make: Any) -> None:
    """With one anywhere, ptxas has all wgmma instructions one after another."""
    stages = make()
    assert "wgmma.mma_async" in stages.ptx and "trap" in stages.ptx and "call" not in stages.ptx
    assert [remark.text for remark in stages.compile().remarks] == []


@pytest.mark.parametrize("name", ["two", "größer_" * 40])
def test_each_wait_has_words_of_its_own(name: str) -> None:
    """A report has 224 bytes, of which a long name leaves room for the wait."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((), kd.int32),
        mesh=PAIR,
        interpret=True,
        scratch_types=[kd.SemaphoreType.REGULAR] * 2,
        name=name,
    )
    def two(x: Any, out: Any, first: Any, second: Any) -> None:
        kd.semaphore_signal(first)
        kd.semaphore_wait(first, timeout=0.5)
        kd.semaphore_signal(second, 4)
        kd.when(kd.axis_index("x") == 1)(lambda: kd.semaphore_wait(second, x[...], timeout=0.25))
        kd.when(kd.axis_index("x") == 0)(lambda: kd.semaphore_wait(second, 4, timeout=0.25))
        out[...] = x[...]

    with pytest.raises(kd.HazardError) as caught:
        two([np.array(7, np.int32), np.array(7, np.int32)])
    told = "' in block (0, 0, 0) waited for 0.25 s for 'second' to reach 7; it was 4"
    assert f"rank 1: kernel {name[:3]!r}"[:-1] in str(caught.value)
    assert told in str(caught.value) and "fix: find the signal that did not come" in str(caught.value)
    assert str(caught.value).count("waited for 0") == 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.sampled(2)
def test_a_wait_says_which_element_of_which_block(seed: int, traced: bool) -> None:
    """Sets of several shapes, of each block and of all, and an array as a set; one wait of one block has no signal. Half of the
    waits have a time-out, and the others end as livelocks."""
    timeout = None if (seed + traced) % 2 else 0.5
    rng = np.random.default_rng(seed)
    shapes = [tuple(rng.integers(1, 5, rng.integers(1, 4)).tolist()) for _ in range(3)]
    grid, number = tuple(rng.integers(1, 4, 3).tolist()), int(rng.integers(4))
    shape = (2, 3) if number == 3 else shapes[number]
    at = [int(rng.integers(n)) for n in shape]
    device, block = int(rng.integers(2)), [int(rng.integers(n)) for n in grid]
    wanted, came = int(rng.integers(2, 9)), 1

    def body(x: Any, out: Any, flags: Any, first: Any, second: Any) -> None:
        sets = [first, second, kd.get_global(kd.SemaphoreType.REGULAR(shapes[2])), flags]
        index = tuple(x[i] if traced else i for i in at)
        mine = kd.axis_index("x") == device
        for name, i in zip("abc", block, strict=True):
            mine = mine & (kd.axis_index(name) == i)

        @kd.when(mine)
        def _() -> None:
            out[...] = x[0]
            kd.semaphore_signal(sets[number].at[index], came)
            kd.semaphore_wait(sets[number].at[index], x[wanted] if traced else wanted, timeout=timeout)

    kernel = kd.kernel(
        body,
        out_type=(kd.ShapeDtypeStruct((), kd.int32, init=0), kd.ShapeDtypeStruct((2, 3), kd.int32, init=0)),
        mesh=PAIR,
        grid=grid,
        grid_names=("a", "b", "c"),
        scratch_types=[kd.SemaphoreType.REGULAR(shape) for shape in shapes[:2]],
        name="odd",
    )
    xs = [np.arange(9, dtype=np.int32) for _ in range(2)]
    with pytest.raises(kd.HazardError) as caught:
        kernel(xs, interpret=kd.InterpretParams(seed=seed))
    name = ["first", "second", "semaphore", "flags"][number]
    where = str(at) if prod(shape) > 1 else ""
    told = f"rank {device}: kernel 'odd' in block {tuple(block[::-1])} waited for 0.5 s for {name!r}{where}"
    if timeout is None:
        own = f" of block {tuple(block[::-1])}" if number < 2 and prod(grid) > 1 else ""
        named = f"'flags on device {device}'{where}" if number == 3 else f"{name!r}{where}{own} on device {device}"
        told = f"device {device}, block {tuple(block[::-1])} warpgroup 0: waits for {named}"
        assert caught.value.kind == kd.HazardKind.LIVELOCK and str(caught.value).count(": waits for ") == 1
    assert f"{told} to reach {wanted}; it was {came}" in str(caught.value)


@pytest.mark.parametrize(("n", "silent"), [(2, 0), (2, 1), (3, 1)])
def test_a_small_all_reduce_says_whose_words_it_waits_for(n: int, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def inline_ptx(text: str, *args: Any, **how: Any) -> Any:
        if "st.relaxed.sys" not in text:
            return kd.inline_ptx(text, *args, **how)
        return kd.when(kd.axis_index("x") != silent)(lambda: kd.inline_ptx(text, *args, **how))

    own = {name: getattr(kd, name) for name in kd.__all__}  # vars(kd) lacks names that nobody has used yet
    monkeypatch.setattr(all_reduce_words, "kd", SimpleNamespace(**own | {"inline_ptx": inline_ptx}))
    mesh = kd.Mesh(("x",), (n,))
    kernel = all_reduce_words.words_kernel.__wrapped__((64,), dt.float32, mesh, 0.001)
    with pytest.raises(kd.HazardError, match=rf"waited for 0.001 s for the words of rank {silent}") as caught:
        kernel([np.ones(64, np.float32) for _ in range(n)], interpret=kd.InterpretParams(seed=silent))
    assert "it was" not in str(caught.value)


def flag_of(ref: Any, kind: str) -> Any:
    """Read an element as flags are read: by an atomic, a compare-and-swap that changes nothing, or a load."""
    if kind == "add":
        return kd.atomic_add(ref, 0, order="acquire", scope="sys")
    if kind == "cas":
        return kd.atomic_cas(ref, 99, 99, order="acquire", scope="sys")
    return kd.inline_ptx(f"ld.{kind}.sys.global.b32 $0, [$1];", ref, out_type=kd.int32)


# (how it reads, whether it goes on waiting, what it waits for); the flag is 5
SPINS: list[tuple[str, Any, str]] = [
    ("add", lambda seen: seen < 7, "to reach 7"),
    ("cas", lambda seen: seen != 7, "to become 7"),
    ("acquire", lambda seen: seen == 5, "to differ from 5"),
    ("relaxed", lambda seen: seen > 3, "to fall to 3"),
    ("acquire", lambda seen: ~(seen >= 7), "to reach 7"),
    ("relaxed", lambda seen: seen.astype(kd.uint32) <= 6, "to reach 7"),
    ("add", lambda seen: (seen & 2) == 0, "to change"),
]


def test_spins_of_the_authors_own_say_for_what() -> None:
    """Each device spins in another way."""
    count = len(SPINS)

    def spin(x: Any, flags: Any) -> None:
        for device, (kind, waits, _) in enumerate(SPINS):

            @kd.when(kd.axis_index("x") == device)
            def _(device: int = device, kind: str = kind, waits: Any = waits) -> None:
                flag = flags.at[device + 1]
                kd.while_loop(waits, lambda seen: flag_of(flag, kind), flag_of(flag, kind))

    mesh, out = kd.Mesh(("x",), (count,)), kd.ShapeDtypeStruct((count + 1,), kd.int32, init=5)
    with pytest.raises(kd.HazardError) as caught:
        kd.kernel(spin, out_type=out, mesh=mesh)([np.zeros(4, np.int32) for _ in SPINS], interpret=True)
    for device, (_, _, until) in enumerate(SPINS):
        named = f"device {device}, block (0, 0, 0) warpgroup 0: waits for 'flags on device {device}'[{device + 1}]"
        assert f"{named} {until}; it was 5" in str(caught.value)


@SLOW
def test_more_waits_than_texts() -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((), kd.int32), mesh=PAIR, scratch_types=[kd.SemaphoreType.REGULAR((40,))])
    def many(x: Any, out: Any, sems: Any) -> None:
        for i in range(40):
            wait = 5.0 + i  # each says another time
            kd.semaphore_signal(sems.at[i])
            kd.semaphore_wait(sems.at[i], 2 if i == 39 else 1, timeout=wait if i < 39 else 0.125)
        out[...] = x[...]

    with pytest.raises(kd.HazardError, match="waited too long for a semaphore; it was 1"):
        many([np.array(1, np.int32), np.array(2, np.int32)], interpret=True)
