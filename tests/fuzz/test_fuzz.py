"""A short run of the random kernels; `python -m tests.fuzz` is the long one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.fuzz.__main__ import attempt, differing
from tests.fuzz.generate import generate


@pytest.mark.parametrize("block", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 8))])
def test_interpreter(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        assert attempt(generate(seed), gpu=False) is None, f"python -m tests.fuzz --count 1 --seed {seed}"


@pytest.mark.parametrize("seed", [26333608, 26334205])
def test_a_running_sum_before_no_number_is_near(seed: int) -> None:
    assert attempt(generate(seed), gpu=False) is None


def test_parts_of_a_sum_may_be_infinite_where_the_whole_is_not() -> None:
    assert attempt(generate(780615), gpu=False) is None


@pytest.mark.gpu
@pytest.mark.parametrize("block", range(10))
def test_gpu(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        assert attempt(generate(seed), gpu=True) is None, f"python -m tests.fuzz --count 1 --seed {seed} --device gpu"


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_several_processes(count: int) -> None:
    """They share the seeds, and what one of them finds is the whole's."""
    command = [sys.executable, "-m", "tests.fuzz", "--count", str(count), "--seed", "300", "--jobs", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith(f"{count} kernels from seed 300: 0 failures"), (
        done.stdout + done.stderr
    )


def test_numbers_are_hard() -> None:
    """Programs meet what once was wrong: fp8 infinities, 64-bit amounts beyond 2**32, edges beside every dtype."""
    met: set[str] = set()
    for seed in range(2000):
        program = generate(seed)
        for source, array in zip(program.inputs, program.arrays(), strict=True):
            if source.dtype == "float8_e5m2" and np.isinf(array.astype(np.float32)).any():
                met.add("an infinity of fp8")
            if source.dtype == "uint64" and ((array >= 2**32) & (array % 2**32 < 64)).any():
                met.add("an amount that is small in 32 bits")
        for step in program.steps:
            if step.dtype in ("int64", "uint64") and step.operation == "shift":
                met.add("a shift of 64 bits")
            if "e4m3" in step.dtype and "np.inf" in step.text:
                met.add("an infinity beside e4m3")
        if len(met) == 4:
            break
    assert len(met) == 4, met


def test_a_seed_is_a_program() -> None:
    assert generate(11).source() == generate(11).source()


def test_outputs_are_compared_by_steps() -> None:
    """Programs whose outputs smaller values fill, too; a changed bit is found."""
    program = next(p for p in map(generate, range(1, 400, 2)) if p.filled)
    seen = program.run()
    assert len(seen) > len(program.steps) and differing(program, seen, seen) is None
    changed = [a.copy() for a in seen]
    first = changed[0].reshape(-1).view(np.uint8)
    first[0] ^= 1
    assert "differ" in str(differing(program, changed, seen))


def test_it_can_fail() -> None:
    """A wrong result is found: the check is not vacuous."""
    program = generate(3)
    outputs = program.run()
    for out in outputs:
        if out.size and out.dtype.kind != "b":
            out += out.dtype.type(1)
    with pytest.raises(AssertionError):
        program.check(outputs)
