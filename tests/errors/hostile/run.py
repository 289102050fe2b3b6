"""The tries of one process: subjects found, right arguments found, then one hostile value after another."""

from __future__ import annotations

import itertools
import json
import random
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernel_dsl as kd

from . import world as places
from .tries import Labels, Outcome, Subject, attempt, functions, hostile_values, methods, right
from .world import World

WORLDS = ("", "one", "several")
SEARCH = 60  # tries for right arguments
TOGETHER = 20  # tries in one trace
ALONE = 0.6  # of the visits to a kernel's body that make one try and compile the kernel


def visit(which: str, use: Callable[[World], None]) -> Any:
    """Call `use` in one of the worlds; the stages of its kernel, where it has one."""
    return places.inside(which, use) if which else places.outside(use)


_numbers = itertools.count()


class Found:
    """What there is to call in each world, with right arguments where some are known."""

    def __init__(self, only: str, seed: int) -> None:
        self.subjects: dict[str, list[Subject]] = {}
        self.right: dict[tuple[str, str], Labels | None] = {}
        self._seed = seed
        for which in WORLDS:
            visit(which, lambda w, which=which: self._look(which, w, only))

    def _look(self, which: str, world: World, only: str) -> None:
        listed = [*functions(kd, "kd"), *functions(kd.library, "kd.library"), *functions(kd.random, "kd.random")]
        listed += methods(world)
        self.subjects[which] = [s for s in listed if which in s.inside and only in s.label]

    def arguments(self, subject: Subject, world: World) -> Labels | None:
        """Right arguments of a subject in a world, looked for once."""
        key = world.inside, subject.label
        if key not in self.right:
            self.right[key] = right(subject, world, SEARCH, self._seed)
        return self.right[key]


def work(count: int, seed: int, only: str, path: Path, seconds: float = 0) -> list[dict[str, Any]]:
    """Make `count` tries, each a line of JSON in the file as it begins, and another when it is done."""
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    warnings.simplefilter("ignore")
    with path.open("w") as file:
        return make(count, seed, only, lambda row: (file.write(json.dumps(row) + "\n"), file.flush()))


def make(
    count: int, seed: int, only: str = "", note: Callable[[dict[str, Any]], Any] = lambda row: None
) -> list[dict[str, Any]]:
    """`count` tries: subjects, parameters and values in random order, a quarter of them with two hostile values."""
    found = Found(only, seed)
    order = random.Random(seed)
    rows: list[dict[str, Any]] = []
    places_ = [w for w in WORLDS if found.subjects[w]]
    while len(rows) < count:
        which = order.choice(places_)
        alone = bool(which) and order.random() < ALONE  # a try whose kernel is compiled
        many = min(1 if alone else TOGETHER if which else 4, count - len(rows))
        stages = visit(which, lambda w, many=many: rows.extend(_some(found, w, many, order, note)))
        if alone and rows[-1]["kind"] == "accepted":
            _compile(stages, rows[-1], note)
    return rows


def _compile(stages: Any, row: dict[str, Any], note: Callable[[dict[str, Any]], Any]) -> None:
    """What was accepted while tracing compiles, or is refused in words of ours."""
    note({**row, "kind": "begun"})
    subject = Subject("", lambda _: lambda: stages.ptx, (), ())
    outcome = attempt(subject, World({}, ""), {})
    if outcome.kind != "accepted":
        row.update(kind=outcome.kind, words=f"compiling: {outcome.words}")
    note(row)


def _some(
    found: Found, world: World, count: int, order: random.Random, note: Callable[[dict[str, Any]], Any]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    values = hostile_values(world)
    for _ in range(count):
        subject = order.choice(found.subjects[world.inside])
        labels = found.arguments(subject, world) or {
            p.name: order.choice(list(world.objects)) for p in subject.required
        }
        if not subject.parameters:
            chosen: list[Any] = []
        else:
            number = 2 if order.random() < 0.25 and len(subject.parameters) > 1 else 1
            chosen = order.sample(subject.parameters, number)
        given = {p.name: order.choice(values) for p in chosen}
        shown = {**labels, **{k: v.label for k, v in given.items()}}
        call = f"[{world.inside or 'outside'}] {subject.label}({', '.join(f'{k}={v}' for k, v in shown.items())})"
        number = next(_numbers)
        row = {
            "number": number,
            "subject": subject.label,
            "parameter": "+".join(given),
            "call": call,
            "kind": "begun",
            "words": "",
        }
        note(row)
        arguments = {**{k: world.get(v) for k, v in labels.items()}, **{k: v.make() for k, v in given.items()}}
        outcome = attempt(subject, world, arguments)
        row.update(kind=outcome.kind, words=outcome.words)
        rows.append(row)
        note(row)
        if outcome.kind == "hung":
            break
    bad = _still_whole(world)
    if bad is not None:
        rows[-1].update(kind=bad.kind, words=f"one of the last {len(rows)} tries left the trace broken: {bad.words}")
    return rows


def _still_whole(world: World) -> Outcome | None:
    """What goes wrong with a right call after the tries; None where nothing does."""
    if not world.inside:
        return None
    subject = Subject("kd.exp", lambda _: kd.exp, (), (world.inside,))
    outcome = attempt(Subject("", lambda w: lambda: kd.exp(w.get("x")), (), (world.inside,)), world, {})
    del subject
    return None if outcome.kind == "accepted" else outcome
