"""Mutated images are errors of ours or reports, within seconds; `python -m tests.check.fuzz` tries more."""

from __future__ import annotations

import pytest

import kernel_dsl as kd

from . import fuzz, mutations
from .images import image


def test_a_sample_of_mutated_images() -> None:
    said, wrong = fuzz.run(60, seed=7, seconds=8)
    assert wrong == [] and said["PtxError"] > 5 and said["none"] > 2


def test_a_sample_of_images_mutated_by_their_structure() -> None:
    said, wrong = fuzz.run(60, seed=7, seconds=8, change=mutations.mutate)
    assert wrong == [] and said["PtxError"] > 5 and said["none"] > 2


@pytest.mark.slow
def test_a_thousand_images_mutated_by_their_structure() -> None:
    said, wrong = fuzz.run(1000, seed=0, change=mutations.mutate)
    assert wrong == [] and sum(said.values()) == 1000


@pytest.mark.slow
def test_two_thousand_mutated_images() -> None:
    said, wrong = fuzz.run(2000, seed=0)
    assert wrong == [] and sum(said.values()) == 2000


# What mutants once met: raw errors of ours.
FOUND = [
    ("bra;", "bra takes one label"),
    ("call f, (a);", "'f' takes 0 arguments"),
]


@pytest.mark.parametrize("line,words", FOUND)
def test_what_was_found(line: str, words: str) -> None:
    with pytest.raises(kd.Error, match=words) as caught:
        kd.check(image("", f" .param .b32 a;\n {line}", before=".func f() { ret; }\n"), grid=1, block=1)
    assert (caught.value.line, caught.value.column) == (8, 2)  # pyright: ignore


def test_stores_to_the_parameters_and_beyond_an_argument() -> None:
    body = " mov.b64 %d1, n; cvta.param.u64 %d1, %d1; st.u32 [%d1], 3;"
    report = kd.check(image(".param .u32 n", body), 7, grid=1, block=32)
    assert {str(h.kind) for h in report.hazards} == {"read_only"}
    with pytest.raises(kd.Error, match="'a' has 4 bytes, and 8 at 0 are stored"):
        kd.check(image("", " .param .b32 a; st.param.b64 [a], %d1;"), grid=1, block=1)


MBARRIERS = (
    "mbarrier.init.shared.b64 [%r1], 1;",
    "mbarrier.inval.shared.b64 [%r1];",
    "mbarrier.arrive.shared.b64 _, [%r1];",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 16;",
    "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 1;",
    "mbarrier.test_wait.parity.shared.b64 %p1, [%r1], 1;",
    "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];",
)


@pytest.mark.parametrize("line", MBARRIERS, ids=lambda line: line.split(" ")[0])
def test_barriers_outside_of_shared_memory(line: str) -> None:
    for address in (0, 1024 + 12, 1 << 20):
        report = kd.check(image("", f" mov.u32 %r1, {address};\n {line}"), grid=1, block=32, smem=16, schedules="eager")
        assert "out_of_bounds" in [str(h.kind) for h in report.hazards], (address, report)
    report = kd.check(image("", f" mov.u32 %r1, 1032;\n {line}"), grid=1, block=32, smem=16, schedules="eager")
    assert "out_of_bounds" not in [str(h.kind) for h in report.hazards]
