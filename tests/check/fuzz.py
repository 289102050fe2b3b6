"""Mutated images: each is an error of ours or a report, within seconds. `python -m tests.check.fuzz --count 2000`.

`--structure` takes the mutations of `mutations.py`.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.errors import UnusableArgument, UnusableValue
from kernel_dsl.runtime.interpreter import parse
from tests.conftest import ROOT
from tests.kernels import lowered

from . import mutations

SECONDS = 5.0
FOLDER = ROOT / "tests" / "interpreter" / "ptx"
HOPPER = ("matmul", "swapped_in_a_cluster", "handoff")  # of `tests.kernels`
_TOKEN = re.compile(r"[%$.\w]+|\S")
_NUMBERS = ("0", "1", "-1", "31", "32", "255", "4294967295", "0x80000000", "0f7FC00000", "1.5", "99999999999999999999")


def corpus() -> list[tuple[str, str]]:
    """(text, entry) of each entry of the committed images, without the other entries, and of kernels for Hopper."""
    found: list[tuple[str, str]] = []
    for name in HOPPER:
        text = lowered(name).ptx
        found += [(text, entry) for entry in parse(text).entries]
    for path in sorted(FOLDER.glob("*.ptx")):
        text = path.read_text()
        entries = parse(text).entries
        found += [(alone(text, name, entries), name) for name in entries]
    return found


def alone(text: str, entry: str, entries: Sequence[str]) -> str:
    """The module without the bodies of its other entries."""
    for name in entries:
        found = re.search(rf"(?m)^\.visible \.entry {re.escape(name)}\(", text)
        if name == entry or found is None:
            continue
        at = text.index("{", found.start())
        depth = 1
        while depth:
            at += 1
            depth += {"{": 1, "}": -1}.get(text[at], 0)
        text = text[: found.start()] + text[at + 1 :]
    return text


def mutate(text: str, entry: str, rng: random.Random) -> str:
    """The text with one to three changes, most of them in the entry."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if re.search(rf"\.entry\s+{re.escape(entry)}\b", line))
    end = next((i for i in range(start + 1, len(lines)) if lines[i].strip() == "}"), len(lines) - 1)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(start, end) if rng.random() < 0.9 else rng.randrange(len(lines))
        lines[at] = _changed(lines[at], lines[rng.randint(start, end)], rng)
    changed = "\n".join(lines)
    if rng.random() < 0.03:
        changed = changed[: rng.randrange(len(changed))]
    return changed


def _changed(line: str, other: str, rng: random.Random) -> str:
    tokens = _TOKEN.findall(line)
    if not tokens or rng.random() < 0.15:
        return rng.choice(("", "", other, line + "\n" + line, line + "\n" + other))
    at = rng.randrange(len(tokens))
    token = tokens[at]
    if rng.random() < 0.6:  # most of these are PTX still
        alike = [t for t in _TOKEN.findall(other) if t != token and _kind(t) == _kind(token)]
        tokens[at] = rng.choice(_NUMBERS[:7]) if _kind(token) == "number" else rng.choice(alike or [token])
        return " ".join(tokens)
    kind = rng.randrange(5)
    if kind == 0:
        del tokens[at]
    elif kind == 1:
        tokens[at] = rng.choice((*_TOKEN.findall(other), *_NUMBERS))
    elif kind == 2 and "." in token:
        words = token.split(".")
        words[rng.randrange(len(words))] = rng.choice(
            ("u32", "b64", "f16", "shared", "global", "sync", "v2", "relaxed", "cta", "")
        )
        tokens[at] = ".".join(words)
    elif kind == 3:
        tokens.insert(at, token)
    else:
        cut = rng.randrange(len(token) + 1)
        tokens[at] = token[:cut] + rng.choice("x%.0{}[];,@!-é\0\"'") + token[cut + 1 :]
    return " ".join(tokens)


def _kind(token: str) -> str:
    """Tokens of one kind can stand for each other: registers of a type, numbers, labels, words."""
    if token[:1] == "%":
        return token.rstrip("0123456789")
    if token[:1].isdigit():
        return "number"
    return "label" if token.startswith("$L") else "word" if token[:1].isalpha() else token


def arguments(text: str, entry: str) -> list[Any]:
    """Something for each parameter: arrays of 64 KiB where an address fits."""
    params = parse(text).functions[entry].params
    made: list[Any] = []
    for p in params:
        made.append(
            np.zeros(1 << 14, np.int32)
            if p.size == 8 and p.elem[0] in "ub"
            else bytes(p.size)
            if p.size not in (2, 4)
            else 3
        )
    return [bytes(p.size) if p.elem[0] == "f" else a for p, a in zip(params, made, strict=True)]


def launch(text: str, entry: str) -> dict[str, Any]:
    """Options of a launch that the entry allows."""
    directives = parse(text).functions[entry].directives
    return {
        "block": directives.get("reqntid") or (32,),
        "grid": directives.get("reqnctapercluster") or (1,),
        "smem": 1024 if "wgmma" not in text else 65536,
    }


def attempt(text: str, entry: str, args: list[Any], options: dict[str, Any]) -> str:
    """What a check of this says: a verdict, or the class of an error of ours. Raises what is raw."""
    try:
        return kd.check(text, *args, entry=entry, schedules=("eager", "late", "random:2"), **options).verdict.partition(
            " up"
        )[0]
    except kd.Error as error:
        if isinstance(error, (UnusableArgument, UnusableValue)):  # what was raw inside
            raise AssertionError(str(error)) from None
        return type(error).__name__


class TooLong(BaseException):
    """A mutant has taken several times what it may."""


@contextmanager
def limited() -> Generator[None]:
    """End what takes longer than four times SECONDS of CPU, so that the others are tried too."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 4 * SECONDS)
    try:
        yield
    except TooLong:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run(
    count: int, seed: int, seconds: float = float("inf"), change: Callable[[str, str, random.Random], str] = mutate
) -> tuple[Counter[str], list[str]]:
    """(what was said how often, what went wrong in words) of `count` mutants, or of as many as fit in `seconds`."""
    rng = random.Random(seed)
    images = corpus()
    said: Counter[str] = Counter()
    wrong: list[str] = []
    began = time.monotonic()
    for number in range(count):
        if time.monotonic() - began > seconds:
            break
        text, entry = rng.choice(images)
        changed = change(text, entry, rng)
        start = time.process_time()
        try:
            with limited():
                said[attempt(changed, entry, arguments(text, entry), launch(text, entry))] += 1
        except Exception:
            wrong.append(f"seed {seed}, mutant {number} of {entry}: {traceback.format_exc(limit=-2)}")
        if (took := time.process_time() - start) > SECONDS:
            wrong.append(f"seed {seed}, mutant {number} of {entry}: {took:.1f} s")
    return said, wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--structure", action="store_true", help="the mutations of `mutations.py`")
    options = parser.parse_args()
    said, wrong = run(options.count, options.seed, change=mutations.mutate if options.structure else mutate)
    print(dict(said))
    print("\n".join(wrong))
    sys.exit(bool(wrong))
