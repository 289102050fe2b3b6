"""Machine code of the library is found without a trace: calls of one identity must have one code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.kernel import Kernel, identified
from kernel_dsl.library import blocks
from kernel_dsl.specialisations import Specialisation
from kernel_dsl.text import show

from .counting import _call, _on, none_before
from .test_compiles import FAMILIES


@contextmanager
def known() -> Iterator[dict[str, str]]:
    """The IR of each identity that calls have meanwhile, which is the same for all of them."""
    found: dict[str, str] = {}

    def on(made: Specialisation, device: Any, sizes: Any, identity: str = "") -> Any:
        if identity:
            text = show(made.stages.ir, locations=False)
            assert found.setdefault(identity, text) == text, f"{made.name} of {sizes}"
        return _on(made, device, sizes)

    with mock.patch.object(Specialisation, "on", on), mock.patch.object(Kernel, "_call", _call), none_before():
        yield found


def computed() -> None:
    """An output whose extent is computed from a Dim: library code has it as a constant, unless it is declared."""

    def body(x: Any, out: Any) -> None:
        out[kd.ds(0, 64)] = kd.zeros((64,), kd.float32)

    # the file of the body decides that the kernel is the library's
    body.__code__ = body.__code__.replace(co_filename=blocks.__file__)
    n = kd.Dim("n")
    out = kd.ShapeDtypeStruct((kd.cdiv(n, 16) * 16,), kd.float32)
    kernel = identified(kd.kernel(body, out_type=out, shapes={0: (n,)}, name="computed"), "computed")
    for size in (16, 40, 100, 1000):
        kernel(np.zeros(size, np.float32))


def test_computed_extents() -> None:
    with known() as found:
        computed()
        assert len(found) > 1


@pytest.mark.parametrize(("family", "seed"), [(family, seed) for family in FAMILIES for seed in range(12)], ids=str)
@pytest.mark.sampled(18)
def test_calls_of_the_library(family: str, seed: int) -> None:
    """Of random options and five sizes, those with one first size among them."""
    _, call = FAMILIES[family](np.random.default_rng(seed + 100))
    with known():
        for sizes in ((2, 256, 320), (1, 500, 700), (3, 1024, 904), (2, 130, 264)):
            call(*sizes)
