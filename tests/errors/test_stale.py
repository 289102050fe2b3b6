"""What a body made, used after the body has ended: every parameter of everything public takes it, or refuses it in our words."""

from __future__ import annotations

import collections
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import ValueFromOtherTrace
from kernel_dsl.errors_dims import DimRead
from tests.errors.hostile import run
from tests.errors.hostile.tries import Subject, attempt
from tests.errors.hostile.world import World
from tests.errors.test_hostile import ALLOWED, INTERNAL

SQUARE = np.ones((64, 64), np.float32)
SUBJECTS = 8  # of some 500 in each world, in the default run
# the user's error of a body that a child of `warm` traces comes back without the child's frames
OWN = ("kernel.warm",)


def _stale() -> dict[str, Any]:
    """Values, Refs, extents and all kinds of handles that kernels of before made."""
    kept: dict[str, Any] = {}

    def body(x: Any, n: Any, o: Any, acc: Any, one: Any, several: Any, tile: Any, sem: Any) -> None:
        v = x[...]
        kept.update(
            value=v, scalar=v[0, 0], mask=v > 0, indices=v.astype(kd.int32), index=kd.program_id(0), n=n,
            ref=x, view=x.at[kd.ds(0, 4)], moved=x.at[kd.ds(n, 4)], row=x.at[n], turned=x.T, bits=x.bitcast(kd.int32),
            at=x.at, shape=x.shape, struct=kd.ShapeDtypeStruct(x.shape, x.dtype), slice=kd.ds(n, 4), acc=acc, barrier=one,
            barriers=several, one_of_them=several.at[0], tile=tile, rows=tile.at[0:8], sem=sem, pair=(v, n), by_name={"a": v},
            spec=kd.BlockSpec((8, 16), lambda *i: (n, 0)),
        )  # fmt: skip
        o[...] = 0.0

    scratch = (
        kd.ACC((64, 64)), kd.Barrier(), kd.Barrier(num_barriers=2), kd.SMEM((64, 64), kd.float32),
        kd.SemaphoreType.REGULAR((2,)),
    )  # fmt: skip
    kd.kernel(body, out_type=SQUARE, scratch_types=scratch, grid=(2,)).lower(SQUARE, 3)

    def with_dims(x: Any, o: Any) -> None:
        n = x.shape[0]
        kept.update(dim=n, sum_of_dim=n * 4 + 1, ref_of_dim=x, shape_of_dim=x.shape, turned_dim=x.T)
        o[...] = x[kd.ds(0, 8)]

    M = kd.Dim("M")
    declared = kd.kernel(with_dims, out_type=kd.ShapeDtypeStruct((8, 16), kd.float32), shapes={"x": (M, 16)})
    declared.lower(kd.ShapeDtypeStruct((M, 16), kd.float32))

    def grid(x: Any) -> tuple[Any, ...]:
        if not isinstance(x.shape[0], int):  # it is called with ints too
            kept.update(symbol=x.shape[0], sum_of_symbol=x.shape[0] * 2 + 1, struct_of_symbols=x)
        return (x.shape[0],)

    kd.kernel(lambda x, o: None, out_type=SQUARE, grid=grid).lower(SQUARE)
    assert "symbol" in kept
    return kept


def _walk(count: int | None, seed: int) -> collections.Counter[str]:
    stale = _stale()
    found = run.Found("", 0)
    order = random.Random(seed)
    bad: list[str] = []
    kinds: collections.Counter[str] = collections.Counter()

    def use(world: World) -> None:
        subjects = [s for s in found.subjects[world.inside] if s.label not in INTERNAL]
        chosen = subjects if count is None else order.sample(subjects, count)
        for subject, name, key in ((s, p.name, key) for s in chosen for p in s.parameters for key in stale):
            kind, words = _try(subject, world, name, stale[key])
            kinds[kind] += 1
            if kind not in ALLOWED:
                bad.append(f"{kind}: [{world.inside or 'outside'}] {subject.label}({name}={key})\n    {words}")

    def _try(subject: Subject, world: World, name: str, value: Any) -> tuple[str, str]:
        right = {k: world.get(v) for k, v in (found.arguments(subject, world) or {}).items()}
        outcome = attempt(subject, world, {**right, name: value})
        own = outcome.kind == "unforeseen" and subject.label in OWN
        return ("own" if own else outcome.kind), outcome.words

    for which in run.WORLDS:
        run.visit(which, use)
    assert bad == [], "\n".join(bad)
    return kinds


@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_stale_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # some functions write files
    kinds = _walk(SUBJECTS, 1)
    assert kinds["error"] > 1000 and kinds["error"] > 5 * kinds["accepted"], kinds


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_stale_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    _walk(None, 0)


def test_a_stale_ref_is_told_wherever_a_body_uses_it() -> None:
    """Its extents have no values, so that the first use must tell."""
    stale = _stale()
    uses: dict[str, Any] = {
        "load": lambda r: r[...],
        "view": lambda r: r.at[kd.ds(0, 4)][...],
        "index": lambda r: r[0],
        "masked": lambda r: kd.load(r, ...),
        "reshape": lambda r: r.reshape(-1)[...],
        "turn": lambda r: r.T[...],
        "gather": lambda r: r[kd.arange(4)],
    }
    for key in ("ref", "turned", "ref_of_dim"):
        for name, use in uses.items():

            @kd.kernel(out_type=SQUARE)
            def late(x: Any, o: Any, use: Any = use, key: str = key) -> None:
                use(stale[key])

            with pytest.raises(kd.Error) as told:
                late.lower(SQUARE)
            assert isinstance(told.value, (ValueFromOtherTrace, DimRead)), (key, name, str(told.value))
