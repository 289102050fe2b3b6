"""Planted bugs in PTX and in kernels of the language, each beside its correct twin, through `kd.check`.

A body has `<<bad||good>>` where the two differ: the text of the one or of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kernel_dsl as kd

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
REGISTERS = """ .reg .pred %p<20>; .reg .b16 %h<20>; .reg .b32 %r<120>; .reg .b64 %d<40>; .reg .f32 %f<80>; .reg .f64 %e<8>;
 .reg .b32 tid, lane, warp, cta, rank;
 mov.u32 tid, %tid.x; and.b32 lane, tid, 31; shr.u32 warp, tid, 5; mov.u32 cta, %ctaid.x; mov.u32 rank, %cluster_ctarank;
"""
_CHOICE = re.compile(r"<<(.*?)\|\|(.*?)>>", re.S)
EVERY = ("eager", "late", *(f"random seed {n}" for n in range(8)))


def one_of(text: str, good: bool) -> str:
    """The correct text, or the one with the bug."""
    assert _CHOICE.search(text), text
    return _CHOICE.sub(lambda m: m[2 if good else 1], text)


@dataclass(frozen=True)
class Probe:
    """A bug and its twin. `calls(good)`: arguments of `kd.check.launch`, as (positional, keywords), of each launch.

    `kinds`: what it may be reported as; the first hazard of each schedule is one of these. `every`: whether each schedule
    must find it, or at least one of the check.
    """

    name: str
    kinds: tuple[str, ...]
    calls: Callable[[bool], Sequence[tuple[tuple[Any, ...], dict[str, Any]]]]
    every: bool = True
    ignore: tuple[str, ...] = ()
    text: str = field(default="", repr=False)

    def check(self, good: bool, **options: Any) -> Any:
        launches = [kd.check.launch(*args, **rest) for args, rest in self.calls(good)]
        return kd.check.sequence(launches, ignore=self.ignore, **options)


def zeros(*counts: int, dtype: Any = np.int32) -> Callable[[], list[Any]]:
    return lambda: [np.zeros(n, dtype) for n in counts]


def numbers(*counts: int, dtype: Any = np.int32) -> Callable[[], list[Any]]:
    return lambda: [np.arange(n).astype(dtype) for n in counts]


def image(body: str, params: str, before: str = "", directives: str = "") -> str:
    return f"{HEAD}{before}\n.visible .entry k({params}) {directives}\n{{\n{REGISTERS}{body}\n ret;\n}}\n"


def ptx(
    name: str, kinds: str, body: str, args: Callable[[], list[Any]] = list, *, params: str | None = None, before: str = "",
    directives: str = "", grid: Any = 1, block: Any = 64, every: bool = True, ignore: tuple[str, ...] = (), **launch: Any,
) -> Probe:  # fmt: skip
    """A probe of one launch. `params`: by default a pointer a0, a1, ... for each argument."""
    texts = {good: "\0".join((body, before, directives)) for good in (False, True)}
    texts = {good: one_of(t, good) for good, t in texts.items()}

    def calls(good: bool) -> Sequence[tuple[tuple[Any, ...], dict[str, Any]]]:
        given = args()
        named = ", ".join(f".param .u64 a{n}" for n in range(len(given))) if params is None else params
        b, h, d = texts[good].split("\0")
        return [((image(b, named, h, d), *given), {"grid": grid, "block": block, **launch})]

    return Probe(name, tuple(kinds.split()), calls, every, ignore, body)


def sequence(
    name: str, kinds: str, bodies: Sequence[tuple[str, str, bool]], arrays: dict[str, int], grid: Any = 1, block: Any = 64,
    before: str = "",
) -> Probe:  # fmt: skip
    """A probe of launches: (body, letters of the arrays that it is given, whether it may start early)."""

    def calls(good: bool) -> Sequence[tuple[tuple[Any, ...], dict[str, Any]]]:
        made = {letter: np.zeros(n, np.int32) for letter, n in arrays.items()}
        found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for body, letters, early in bodies:
            text = one_of(body, good) if "<<" in body else body
            params = ", ".join(f".param .u64 a{n}" for n in range(len(letters)))
            given = image(text, params, before), *(made[x] for x in letters)
            found.append((given, {"grid": grid, "block": block, "programmatic_dependent_launch": early or None}))
        return found

    return Probe(name, tuple(kinds.split()), calls, text=str(bodies))


def traced(name: str, kinds: str, make: Callable[[bool], Any], *args: Any, **options: Any) -> Probe:
    """A probe of a kernel of the language: `make(bug)`."""
    return Probe(
        name, tuple(kinds.split()), lambda good: [((make(not good), *(a.copy() for a in args)), {})], **options
    )
