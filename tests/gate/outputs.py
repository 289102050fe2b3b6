"""What the runs give: integers and exact products as digests, floats as values within a unit in the last place.

Machines differ in the functions of their libraries that approximations go through. Of floats a sample is kept, and the
sum of all under random signs, which every element counts in.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from kernel_dsl.dtypes import as_dtype

from .entries import Gate
from .runs import Result, bits, results, runs, sampled_results, sampled_schedules

SAMPLE = 160  # values of an output


def entries() -> dict[str, str]:
    """By run, output and schedule; schedules that agree are one entry."""
    found: dict[str, str] = {}
    exact = {name for name, run in runs().items() if run.exact}
    for name, by_schedule in results().items():
        told = {word: _told(result, name in exact) for word, result in by_schedule.items()}
        first = next(iter(told.values()))
        if all(one == first for one in told.values()):
            told = {"": first}
        for word, texts in told.items():
            found |= {f"{name} {key} {word}".strip(): text for key, text in texts.items()}
    return found


def sample(old: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Each run under its sampled schedules, with the schedule in every key."""
    exact = {name for name, run in runs().items() if run.exact}
    new = {
        f"{name} {key} {word}": text
        for name, by_schedule in sampled_results().items()
        for word, result in by_schedule.items()
        for key, text in _told(result, name in exact).items()
    }
    kept: dict[str, str] = {}
    for place, text in old.items():
        name, key, *words = place.split()
        for word in sampled_schedules(name):
            if not words or word in words:
                kept[f"{name} {key} {word}"] = text
    return kept, new


def _told(result: Result, exact: bool) -> dict[str, str]:
    texts = {str(number): stored(array, exact) for number, array in enumerate(result.outputs)}
    if result.printed:
        texts["printed"] = result.printed.strip()
    return texts


def stored(array: np.ndarray, exact: bool) -> str:
    """An output as text: dtype and shape, then a digest, or counts, the signed sum and a sample in base64.

    Where the sample is everything there is no sum.
    """
    head = f"{as_dtype(array.dtype)}{list(array.shape)}".replace(" ", "")
    raw = np.ascontiguousarray(array).reshape(-1)
    if exact or raw.dtype.kind in "iub":
        return f"{head} {hashlib.sha256(raw.tobytes()).hexdigest()[:16]}"
    wide = raw.astype(np.float64)
    counts = f"nan={np.isnan(wide).sum()} inf={np.isinf(wide).sum()}"
    if raw.size > SAMPLE:
        finite = np.where(np.isfinite(wide), wide, 0.0)
        signs = np.where(bits(raw.size, 77) & np.uint64(1), 1.0, -1.0)
        counts += f" sum={math.fsum(finite * signs)!r} of={math.fsum(abs(finite))!r}"
    where = np.argsort(bits(raw.size, 78), kind="stable")[:SAMPLE]
    sample = np.where(np.isnan(wide[where]), np.nan, wide[where]).astype(raw.dtype)
    return f"{head} {counts} {base64.b64encode(sample.tobytes()).decode()}"


def difference(old: str, new: str) -> str:
    """What is not the same: floats may be a unit in the last place off, and sums as far as that allows."""
    if old == new:
        return ""
    (head, *a), (other, *b) = old.split(), new.split()
    if head != other or min(len(a), len(b)) < 3 or a[:2] != b[:2]:
        return f"{_short(old)} became {_short(new)}"
    dtype = as_dtype(head.partition("[")[0]).numpy
    x, y = (np.frombuffer(base64.b64decode(words[-1]), dtype) for words in (a, b))
    off = ulps_apart(x, y)
    if (off > 1).any():
        worst = int(np.argmax(off))
        return f"{(off > 1).sum()} of {len(off)} values differ, {x[worst]} became {y[worst]} ({off[worst]:.0f} ulp)"
    if len(a) == 3:
        return ""
    (total, size), (total_now, _) = ([float(word.partition("=")[2]) for word in words[2:4]] for words in (a, b))
    info = ml_dtypes.finfo(dtype)
    elements = math.prod(int(n) for n in head.partition("[")[2].rstrip("]").split(","))
    allowed = float(info.eps) * size + float(info.smallest_subnormal) * elements
    if abs(total - total_now) > allowed:
        return f"the signed sum {total} became {total_now}; a unit in the last place of each makes {allowed:.1e}"
    return ""


def _short(text: str) -> str:
    return text if len(text) < 120 else f"{text[:120]}..."


def ulps_apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many numbers of their dtype apart two floats are: NaN from NaN none, zeros of two signs two."""

    def place(x: np.ndarray) -> Any:
        raw = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").astype(object)
        lowest = -(2 ** (8 * x.dtype.itemsize - 1))
        return np.array([lowest - int(i) - 2 if i < 0 else int(i) for i in raw], object)

    nan_a, nan_b = np.isnan(a.astype(np.float64)), np.isnan(b.astype(np.float64))
    far = np.where(nan_a & nan_b, 0, np.where(nan_a | nan_b, 2**64, abs(place(a) - place(b))))
    return far.astype(np.float64)


GATE = Gate(
    "outputs",
    "What kernels give in the interpreter: a digest, or counts, the signed sum, the sum of magnitudes, and a sample.\n"
    "An entry without a schedule is that of all.\n"
    "`python -m tests.gate --renew outputs` writes this file, and a commit that does says why.",
    entries,
    difference,
    sample=sample,
)
