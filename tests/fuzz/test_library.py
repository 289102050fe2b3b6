"""A short run of the random products; `python -m tests.fuzz.library` is the long one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.fuzz import calls
from tests.fuzz.library import KINDS
from tests.library.products import PACKINGS, STEPS, any_call

MODULE = "tests.fuzz.library"


@pytest.mark.parametrize("block", range(3))
@pytest.mark.sampled(3)
def test_interpreter(block: int) -> None:
    """Some kinds, hazards on; the tests of each function run calls of all."""
    calls.check(KINDS, MODULE, range(27 + 3 * block, 30 + 3 * block))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many(block: int) -> None:
    calls.check(KINDS, MODULE, range(1000 + 50 * block, 1050 + 50 * block))


@pytest.mark.gpu
@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("block", range(4))
def test_gpu(block: int) -> None:
    calls.check(KINDS, MODULE, range(36 * block, 36 * block + 36), gpu=True)


def test_it_reaches_what_it_is_for() -> None:
    """Each step beside each kind of weights, and each pair of steps."""
    made = [any_call(np.random.default_rng(seed)) for seed in range(1200)]
    assert {(m.packed, step) for m in made for step in m.steps} >= {
        (p, s) for p in ("", *PACKINGS) for s in STEPS if s != "c"
    }
    pairs = {(a, b) for m in made for a in m.steps for b in m.steps if a < b}
    assert len(pairs) == len(STEPS) * (len(STEPS) - 1) // 2 - 1  # all but "c" with "gated"


def test_a_wrong_call_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its kind, its description and how to repeat it; what hangs or ends in a child is a failure of its seed."""
    real = kd.library.matmul

    def without_bias(*arrays: Any, **options: Any) -> Any:
        return real(*arrays, **{n: x for n, x in options.items() if n != "bias"})

    seed = next(
        s
        for s in range(0, 9000, 9)
        if any_call(np.random.default_rng(s)).steps == ("bias",) and min(any_call(np.random.default_rng(s)).shape) > 4
    )
    monkeypatch.setattr(kd.library, "matmul", without_bias)
    with pytest.raises(AssertionError, match=rf"--count 1 --seed {seed}\nmatmul, \w+: Call\("):
        calls.check(KINDS, MODULE, [seed])


def test_processes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends without an answer is replaced, and the others go on."""
    monkeypatch.setattr("sys.argv", ["", "--count", "3", "--processes", "2", "--seconds", "600"])
    assert calls.main(KINDS, "tests.fuzz.no_such_module", None) == 1
    said = capsys.readouterr().out
    assert "3 calls from seed 0: 3 wrong [0, 1, 2]" in said and said.count("the process ended") == 3
