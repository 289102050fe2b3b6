"""A short run of the random kernels that move memory; `python -m tests.fuzz.memory` is the long one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.fuzz import halos, nests, pipelines, specs, views
from tests.fuzz.memory import KINDS, REFUSED, SCHEDULES, attempt

COUNTS = {
    "views": 15,
    "halos": 12,
    "pipelines": 8,
    "specs": 6,
    "nests": 6,
    "tickets": 4,
    "scales": 3,
    "orders": 6,
    "products": 5,
}


@pytest.mark.parametrize("block", range(2))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_interpreter(kind: str, block: int) -> None:
    """In turns under each schedule, hazards on."""
    refused = 0
    for n in range(COUNTS[kind]):
        seed = block * 1000 + n
        wrong = attempt(kind, seed, schedules=(SCHEDULES[n % 3],))
        refused += wrong == REFUSED
        assert wrong in (None, REFUSED), f"python -m tests.fuzz.memory {kind} --count 1 --seed {seed}\n{wrong}"
    assert refused <= max(COUNTS[kind] // 5, 2), "the generator makes too much that is refused"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(5000, 5400, 40))
@pytest.mark.parametrize("kind", KINDS)
def test_many(kind: str, first: int) -> None:
    for seed in range(first, first + 40):
        wrong = attempt(kind, seed)
        assert wrong in (None, REFUSED), f"python -m tests.fuzz.memory {kind} --count 1 --seed {seed}\n{wrong}"


@pytest.mark.gpu
@pytest.mark.tma
@pytest.mark.parametrize("kind", KINDS)
def test_gpu(kind: str) -> None:
    for seed in range(100):
        wrong = attempt(kind, seed, gpu=True)
        assert wrong in (None, REFUSED), (
            f"python -m tests.fuzz.memory {kind} --count 1 --seed {seed} --device gpu\n{wrong}"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_a_program(kind: str) -> None:
    assert KINDS[kind](11).source() == KINDS[kind](11).source()


def test_it_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where views end at their arrays again, the check says so."""
    from kernel_dsl.refs import Ref

    real = Ref.view

    def whole(self: Ref, promise: bool = False, own: int | None = None) -> Any:
        """The masks that the root's extents give, and no others."""
        again = Ref(self.root, self._dims, self._starts)
        return real(again, promise, own)

    monkeypatch.setattr(Ref, "view", whole)
    assert any(attempt("views", seed, schedules=("eager",)) for seed in range(30))


def test_nests_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another function in the place of one of the language's is found."""
    seeds = [s for s in range(60) if "kd.mulhi(" in nests.generate(s).source()][:4]
    monkeypatch.setattr(kd, "mulhi", kd.multiply)
    assert any(attempt("nests", seed, schedules=("eager",)) for seed in seeds)


@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("kernels_apart")
def test_missing_fences_and_waits_are_found(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler's fences in pipelines, for the lanes' copies and its waits, kernels of each kind go wrong."""
    import kernel_dsl.pipeline_sides as several
    import kernel_dsl.pipelines as single
    from kernel_dsl.lowering import pipeline
    from kernel_dsl.lowering.context import Context
    from kernel_dsl.lowering.passes.order_memory import MemoryOrder

    def kinds(kind: str, seeds: Any) -> set[str]:
        found = [attempt(kind, seed, schedules=("late",)) for seed in seeds]
        return {
            word
            for f in found
            if f
            for word in ("missing_proxy_fence", "reused_before_read", "unawaited_copy")
            if word in f
        }

    seeds = range(300, 300 + count)
    with monkeypatch.context() as patch:
        patch.setattr(single, "writes_in_place", lambda *a: False)
        patch.setattr(several, "writes_in_place", lambda *a: False)
        patch.setattr(MemoryOrder, "tells", lambda *a: False)  # the fence behind loads is one behind stores, too
        assert kinds("pipelines", seeds) == {"missing_proxy_fence"}
    with monkeypatch.context() as patch:
        patch.setattr(MemoryOrder, "telling", lambda *a: [])
        assert "missing_proxy_fence" in kinds("orders", (1081, 1085, 1143, 1148, 1185)[:count])
    with monkeypatch.context() as patch:
        patch.setattr(Context, "seen_by_async", lambda *a: False)
        assert kinds("halos", seeds) == {"missing_proxy_fence"}
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "STEPS", tuple(s for s in pipeline.STEPS if s.name != "finish copies"))
        assert "reused_before_read" in kinds("pipelines", range(350, 352 + count))


@pytest.mark.usefixtures("kernels_apart")
def test_missing_waits_for_products_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler's waits for products where memory is used again, kernels go wrong."""
    from kernel_dsl import in_flight

    monkeypatch.setattr(in_flight, "_reuses", lambda *_: False)
    found = [attempt("products", seed, schedules=("eager",)) for seed in range(700, 708)]
    assert any("reused_before_wgmma" in text for text in found if text)


def test_each_generator_reaches_what_it_is_for() -> None:
    """Both ways of a copy, split and moving views, every kind of access, in-place bodies of both pipelines."""
    texts = {kind: [KINDS[kind](seed).source() for seed in range(80)] for kind in KINDS}
    for kind, words in (
        ("views", ("reshape", "transpose", "bitcast", "atomic_add", "kd.load", "[i", ", -1)", "None")),
        (
            "halos",
            (
                "num_threads=2",
                "SwizzleTransform",
                "NANS",
                "reduction_op",
                "async_prefetch",
                "sm_80",
                "copy_smem_to_gmem",
            ),
        ),
        (
            "pipelines",
            ("warp_specialized", "RefUnion", "run_scoped", "manual_consumed_barriers=True", "delay_release=1"),
        ),
        ("specs", ("kind='element'", "kind='squeezed'", "shift=-1", "source=-2", "delay_release", "int4", "GMEM")),
        (
            "nests",
            (
                "associative_scan",
                "top_k",
                "searchsorted",
                "random.bits",
                "take_along_axis",
                "layout_cast",
                "atomic_add",
                "while_loop",
                "switch",
                "kd.loop",
                "exclusive=True",
                "kd.dot",
                "vmap",
                "shapes=",
                "num_threads",
                "kd.when",
            ),
        ),
        (
            "orders",
            (
                *("while_loop", "fori_loop", "switch", "kd.cond", "kd.when", "num_threads=3", "async_store_smem"),
                *("semaphore_signal", 'order="release"', "barrier_arrive", "atomic_add(w0", 'memory_scope="cta"'),
            ),
        ),
        (
            "products",
            (
                *("while_loop", "fori_loop", "switch", "kd.cond", "kd.when", "num_threads=2", "run_scoped", "RefUnion"),
                *(
                    "kd.wgmma(acc00, h",
                    "kd.wgmma(acc00, g",
                    "wait_gmem_to_smem",
                    "barrier_wait",
                    "reduction_op",
                    "scale_rows",
                ),
            ),
        ),
    ):
        for word in words:
            assert any(word in text for text in texts[kind]), (kind, word)
    ways = {str(op.start.way) for seed in range(40) for op in _copies(halos.generate(seed)) if op.start}
    assert len(ways) == 3
    assert any(p.in_place for p in map(pipelines.generate, range(20)))
    assert {specs.generate(s).specialised for s in range(9)} == {True, False}
    assert np.all([isinstance(views.generate(s), views.Program) for s in range(3)])


def _copies(program: Any) -> list[Any]:
    try:
        ir = program.kernel().lower(*program.arguments()).ir
    except kd.Error:
        return []
    return [op for op in ir.walk() if op.op_name in ("copy_gmem_to_smem", "copy_smem_to_gmem")]
