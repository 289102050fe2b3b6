"""What no check runs: PTX that an assembler refuses, arguments that don't fit, symbols and instructions that are not there."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import PtxError

from .images import ADD, FILL, HEAD, image


def refused(text: Any, *args: Any, **options: Any) -> Any:
    out = np.zeros(4, np.int32)
    given = args or (7, out)
    with pytest.raises(kd.Error) as caught:
        kd.check(text, *given, **{"grid": 1, "block": 4} | options)
    assert not out.any()
    return caught.value


BAD = [
    (image("", " frobnicate.b32 %r1, %r2;"), 6, 2, "unknown instruction"),
    (image("", " add.s32 %r1, %d1, %r2;"), 6, 2, "'%d1' is .b64"),
    (image("", " bra NOWHERE;"), 6, 2, "NOWHERE"),
    (image("", " call missing;"), 6, 2, "'missing' is not declared"),
    (image("", " call foo;", before=".extern .func foo();\n"), 7, 2, "nothing in the image defines it"),
    (image("", " mov.u64 %d1, g;", before=".extern .global .u32 g;\n"), 7, 2, "nothing in the image defines it"),
    (image("", " st.global.u32 [nowhere], %r1;"), 6, 2, "'nowhere' is not declared"),
    (image("", "", before=".func f() { .reg .b32 %r<2>; add.s33 %r1, %r1, %r1; ret; }\n"), 4, 30, "add.s33"),
    (image("", " tanh.approx.bf16 %h1, %h2;", head=HEAD.replace("90a", "80")), 6, 2, "needs sm_90"),
    (
        image("", " tcgen05.shift.cta_group::1.down [1];", head=HEAD.replace("90a", "100a")),
        6,
        2,
        "tcgen05.*not interpreted",
    ),
    (image("", " tcgen05.wait::ld.sync.aligned;"), 6, 2, "targets such as sm_100a"),
    (image("", " tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%d1, {%r1}];"), 6, 2, "tex.*not interpreted"),
    (HEAD + ".visible .entry k() {", 4, 22, "not closed"),
    (".version 8.6\n", 2, 1, "no .target"),
    (HEAD.replace("8.6", "8.9"), 1, 1, "no PTX 8.9"),
    (HEAD.replace("8.6", "7.0"), 2, 1, "needs .version 8.0"),
    (image("", "", head=HEAD.replace("90a", "200")), 2, 1, "is no target"),
    (image("", " mov.u32 %r1, 0018;"), 6, 18, "expected ';', found '8'"),  # an octal number, as in C
    (image("", "", before=".global .align 4 .b8 g[09];\n"), 4, 25, "found '9'"),
    (image("", " // \u00e9"), 6, 5, "is not ASCII"),
    (image("", "", name="k\u00e9"), 4, 18, "is not ASCII"),
    (image("", " // ").encode().replace(b"// ", b"// \xe9"), 6, 5, "is not ASCII"),
]


@pytest.mark.parametrize("text,line,column,words", BAD, ids=[w for *_, w in BAD])
def test_an_error_with_line_and_column(text: Any, line: int, column: int, words: str) -> None:
    with pytest.raises(kd.Error, match=words) as caught:
        kd.check(text, grid=1, block=1)
    assert (caught.value.line, caught.value.column) == (line, column)  # pyright: ignore


ARGUMENTS = [
    ((7,), 4, 10, "takes 2 parameters"),
    ((7.5, np.zeros(4)), 4, 31, "give an int"),
    ((2**32, np.zeros(4)), 4, 31, "does not fit 32 bits"),
    ((np.zeros(4), np.zeros(4)), 4, 31, "64-bit pointer"),
    ((np.int64(3), np.zeros(4)), 4, 31, "8 bytes"),
    ((np.float32(3), np.zeros(4)), 4, 31, "NumPy float32"),
    ((None, np.zeros(4)), 4, 31, "null pointer"),
    ((b"123", np.zeros(4)), 4, 31, "has 3 bytes"),
    ((7, "x"), 4, 46, "give an array"),
    ((7, object()), 4, 46, "give an array"),
]


@pytest.mark.parametrize("args,line,column,words", ARGUMENTS, ids=[w for *_, w in ARGUMENTS])
def test_an_argument_that_does_not_fit(args: Any, line: int, column: int, words: str) -> None:
    error = refused(FILL, *args)
    assert isinstance(error, TypeError) and words in str(error)
    assert (error.line, error.column) == (line, column)


def test_an_entry_that_is_not_there() -> None:
    error = refused(FILL, entry="other")
    assert "no entry 'other'" in str(error) and error.line == 4 and error.column == 10


def test_several_entries() -> None:
    assert "entry= is missing" in str(refused(FILL + ADD.partition("64\n")[2].replace(" k(", " m(")))


@pytest.mark.parametrize(
    "options,words",
    [
        ({"grid": None}, "grid= is missing"), ({"block": None}, "block= is missing"), ({"grid": "2"}, "grid='2'"),
        ({"grid": (1, 2, 3, 4)}, "grid="), ({"grid": -1}, "grid=-1"), ({"block": 0}, "block=0"), ({"block": 2048}, "2048 threads"),
        ({"cluster": 3}, "cluster"), ({"smem": -1}, "negative"), ({"smem": 10**7}, "bytes of SMEM"), ({"smem": 1.5}, "smem="),
        ({"target": "sm_20"}, "sm_20"), ({"target": 90}, "target=90"), ({"target": "sm_80"}, "the device is sm_80"),
        ({"schedules": ()}, "empty"), ({"schedules": "soon"}, "'soon'"), ({"schedules": ["random:0"]}, "random:0"),
        ({"schedules": 3}, "schedules=3"), ({"ignore": ("race",)}, "'race'"), ({"ignore": 3}, "ignore=3"), ({"entry": 3}, "entry=3"),
        ({"out": 1}, "out= is of traced"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing(options: dict[str, Any], words: str) -> None:
    assert words in str(refused(FILL, **options))


@pytest.mark.parametrize(
    "given", [None, 3, b"", b"\x7fELF", b"\x50\xed\x55\xba", b"\xff\xfe", "", "nonsense", object()]
)
def test_no_image(given: Any) -> None:
    refused(given)


def test_requirements_of_the_entry() -> None:
    text = FILL.replace("out) {", "out) .reqntid 64 {")
    assert "requires blocks of (64, 1, 1)" in str(refused(text))
    assert "allows blocks of at most 2" in str(refused(FILL.replace("out) {", "out) .maxntid 2 {")))
    text = FILL.replace("out) {", "out) .reqnctapercluster 2, 1, 1 {")
    assert "requires clusters of (2, 1, 1)" in str(refused(text, grid=4, cluster=4))


HOSTILE = {
    "parentheses": ("mov.u32 %r1, " + "(" * 3000 + "1" + ")" * 3000 + ";", "nested too deeply"),
    "signs": ("mov.u32 %r1, " + "-" * 5000 + "1;", "nested too deeply"),
    "digits": ("mov.u32 %r1, " + "9" * 100_000 + ";", "does not fit 64 bits"),
    "an integer of 65 bits": ("mov.u64 %d1, 0x10000000000000000;", "does not fit 64 bits"),
    "a long name": ("bra " + "x" * 1_000_000 + ";", "is not defined"),
    "constants": (".const .b8 c[65537];", "a module has 65536"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts(name: str) -> None:
    """Texts that no compiler makes: an error at a line of the PTX, which fits a screen."""
    body, says = HOSTILE[name]
    with pytest.raises(PtxError, match=says) as caught:
        kd.check(image("", body), grid=1, block=32)
    assert caught.value.line and len(str(caught.value)) < 2000


def test_branches_that_cross() -> None:
    """Each branch goes into another loop, and every loop holds most of the others."""
    lines = [f"@%p1 bra L{i * 7919 % 600};\nL{i}:" for i in range(600)]
    report = kd.check(image("", "setp.ne.u32 %p1,1,1;\n" + "\n".join(lines)), grid=1, block=32, schedules=("eager",))
    assert report.verdict == "none"


def test_a_name_that_fills_the_screen() -> None:
    with pytest.raises(kd.Error) as caught:
        kd.check("x" * 1_000_000, grid=1, block=32)
    assert len(str(caught.value)) < 2000


def test_entries_are_checked_in_time_that_grows_with_their_number() -> None:
    """A module may have thousands of entries: each is compiled with what it may call, and not with the others."""
    entries = [f".visible .entry k{i}() {{ .reg .b32 %r1; mov.u32 %r1, {i}; ret; }}\n" for i in range(4000)]

    def seconds(number: int, first: int) -> float:
        start = time.thread_time()
        kd.check(
            "".join([HEAD, *entries[first : first + number]]), entry=f"k{first}", grid=1, block=1, schedules=("eager",)
        )
        return time.thread_time() - start

    seconds(10, 0)
    few = min(seconds(300, first) for first in (0, 300, 600))
    assert seconds(3000, 1000) < 40 * few
