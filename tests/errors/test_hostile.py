"""A seeded sample of wrong calls of everything public; `python -m tests.errors.hostile --count 59000` makes all of them."""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import re
import tempfile
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import ops
from tests.errors.hostile import run
from tests.errors.hostile.__main__ import BAD
from tests.errors.hostile.tries import attempt
from tests.errors.hostile.world import World

# what a try may end as; `unforeseen` is told in words that name function and arguments, but not what to write
ALLOWED = {"accepted", "error", "python", "own"}
INTERNAL = ("x_ref.bounds", "x_ref.ends_with_array", "n.evaluate")  # methods that only our own code calls


def _make(count: int, seed: int) -> list[dict[str, str]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),  # some functions write files
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        return run.make(count, seed)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_wrong_calls_are_told(seed: int) -> None:
    rows = _make(400, seed)
    bad = [
        f"{r['kind']}: {r['call']}\n    {r['words']}"
        for r in rows
        if r["kind"] not in ALLOWED and r["subject"] not in INTERNAL
    ]
    assert bad == [], "\n".join(bad)
    counts = collections.Counter(r["kind"] for r in rows)
    assert counts["error"] > 200 and counts["accepted"] > 13, counts


@pytest.mark.slow
def test_many_wrong_calls_are_told() -> None:
    rows = _make(20_000, 3)
    bad = [
        f"{r['kind']}: {r['call']}\n    {r['words']}" for r in rows if r["kind"] in BAD and r["subject"] not in INTERNAL
    ]
    assert bad == [], "\n".join(bad)


def test_all_that_is_public_is_tried() -> None:
    """Subjects come from `__all__` and from classes, so that what is new is among them."""
    found = run.Found("", 0)
    labels = {s.label for subjects in found.subjects.values() for s in subjects}
    functions = {f"kd.{n}" for n in kd.__all__ if callable(getattr(kd, n)) and not _is_error(getattr(kd, n))}
    assert functions <= labels
    for method in (
        "x.sum",
        "x_ref.reshape",
        "acc.scale_rows",
        "kernel.lower",
        "graph.set_params",
        "cuda.__call__",
        "stages.compile",
    ):
        assert method in labels


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def test_errors_name_the_function_that_was_called() -> None:
    """Not one that it calls, nor the first name of one with several: what can't be an operand is given for each parameter."""
    found = run.Found("kd.", 0)
    told = 0
    wrong: list[str] = []

    def use(world: World) -> None:
        nonlocal told
        for subject in found.subjects["one"]:
            name = subject.label.removeprefix("kd.")
            right = found.arguments(subject, world) or {}
            for parameter in subject.parameters if name in ops.NAMES else ():
                given = {**{k: world.get(v) for k, v in right.items()}, parameter.name: "no operand"}
                outcome = attempt(subject, world, given)
                named = re.search(r"`(\w+)`", outcome.words) if outcome.kind == "error" else None
                if named is not None and named[1] in ops.NAMES:
                    told += 1
                    if named[1] != name:
                        wrong.append(f"kd.{name}, {parameter.name}: {outcome.words}")

    run.visit("one", use)
    assert told > 200 and wrong == [], "\n".join(wrong)


@pytest.mark.parametrize(
    "only", ["kd.library.pack_int4", "kd.library.matmul", pytest.param("kd.library.", marks=pytest.mark.slow)]
)
def test_what_has_half_of_an_array(only: str) -> None:
    """A dtype without a shape, or a shape without a dtype, is told for each parameter."""
    found = run.Found(only, 0)
    f32 = np.dtype("float32")
    halves = [
        kd.float32,
        *(SimpleNamespace(**x) for x in ({"dtype": f32}, {"shape": (8, 16)}, {"shape": None, "dtype": f32})),
    ]
    tried = 0
    wrong: list[str] = []

    def use(world: World) -> None:
        nonlocal tried
        for subject in found.subjects[""]:
            right = found.arguments(subject, world) or {}
            for parameter, half in itertools.product(subject.parameters, halves):
                outcome = attempt(subject, world, {**{k: world.get(v) for k, v in right.items()}, parameter.name: half})
                tried += 1
                if outcome.kind not in ALLOWED:
                    wrong.append(f"{subject.label}, {parameter.name}: {outcome.words}")

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        run.visit("", use)
    assert tried > 9 and wrong == [], "\n".join(wrong)


def test_a_method_that_dataclasses_write_is_not_the_users() -> None:
    """The library's options hash what they hold, and the value that can't be hashed is named."""

    def fail(self: object) -> int:
        raise ZeroDivisionError

    odd = type("Odd", (str,), {"__hash__": fail})("x")
    x, weight, targets = np.zeros((8, 16), np.float32), np.zeros((8, 16), np.float32), np.zeros(8, np.int32)
    with pytest.raises(kd.errors.BadArgumentType, match=r"ignore_index, an Odd, raises ZeroDivisionError"):
        kd.library.linear_cross_entropy.lower(x, weight, targets, ignore_index=odd)


def test_a_defect_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that checks nothing, and one that never ends, are told by the tries."""

    def careless(x: object) -> object:
        return x + 1  # type: ignore[operator]

    def endless(x: object) -> None:
        while x is not None:
            pass

    monkeypatch.setattr(run, "SEARCH", 2)
    monkeypatch.setitem(run.attempt.__globals__, "SECONDS", 0.05)
    for function, kind in ((careless, {"python", "raw"}), (endless, {"hung"})):
        monkeypatch.setattr(kd, "__all__", ["exp"])
        monkeypatch.setattr(kd, "exp", function)
        rows = run.make(8, 0, "kd.exp")
        assert kind & {r["kind"] for r in rows}, rows


def test_numbers_that_no_float_holds() -> None:
    q, cache = np.ones((1, 8, 1, 128), np.float16), np.ones((1, 2, 16, 128), np.float16)
    lengths, huge = np.ones(1, np.int32), 10**400
    x, targets, lse = np.ones((4, 16), np.float32), np.zeros(4, np.int32), np.ones(4, np.float32)
    for call in (
        lambda: kd.library.decode_attention(q, cache, cache, lengths, k_scale=huge, interpret=True),
        lambda: kd.library.linear_cross_entropy_backward(huge, x, x, targets, lse, interpret=True),
        lambda: kd.kernel(lambda x, out: None, out_type=x).lower(10**5000),
    ):
        with pytest.raises((kd.errors.BadCallValue, kd.errors.BadCallArgument, kd.errors.LiteralOutOfRange)):
            call()


def test_ints_that_python_does_not_print() -> None:
    def body(x: object, out: object) -> None:
        kd.split(x[...], 10**5000)  # type: ignore[index]

    with pytest.raises(kd.errors.BadArgument, match=r"`split`: indices_or_sections=an int of 16610 bits"):
        kd.kernel(body, out_type=kd.ShapeDtypeStruct((8,), kd.float32)).lower(kd.ShapeDtypeStruct((8,), kd.float32))


def test_lists_within_lists_are_no_structs_with_dims() -> None:
    endless: list[object] = []
    endless.append(endless)
    for function in (kd.library.matmul, kd.library.decode_attention, kd.library.grouped_matmul):
        with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadArgumentType)):
            function.lower(endless, endless, endless, endless)


@pytest.mark.parametrize("out", [[None], [], 3])
def test_a_profile_without_an_array_for_its_result(out: object) -> None:
    copies = kd.kernel(lambda x, out: out.__setitem__(..., x[...]), out_type=kd.ShapeDtypeStruct((8,), kd.float32))
    with pytest.raises(kd.errors.BadCallArgument, match="holds no array"):
        copies.profile(np.ones(8, np.float32), out=out, interpret=True)
