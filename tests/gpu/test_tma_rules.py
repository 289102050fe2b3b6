"""A walk over the table of TMA rules: just inside works, just outside is refused before a GPU sees it.

What is outside of a rule runs on a GPU in a child process, past our checks: that it goes wrong there is why there is the rule.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import tma
from kernel_dsl.runtime.interpreter import GlobalMemory, HazardError, parse, run
from kernel_dsl.runtime.interpreter.machine.tensor_map import TensorMapError, encode_tensor_map

from .launcher import Gpu, why_no_gpu
from .tma_rules import BASE, COPIES, GOOD, MAPS, Copy, arrays, encode, ptx, tiled, wanted

_REASON = why_no_gpu()
on_a_gpu = [pytest.mark.gpu, pytest.mark.tma, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]

f32 = kd.float32
Spec = kd.ShapeDtypeStruct


def cases(table: dict[str, Any], side: int) -> list[Any]:
    return [pytest.param(rule, n, id=f"{rule}-{n}") for rule, sides in table.items() for n in range(len(sides[side]))]


def test_each_rule_has_its_edges() -> None:
    assert set(MAPS) == {rule.name for rule in tma.MAP_RULES}
    assert set(COPIES) == {rule.name for rule in tma.COPY_RULES}
    assert all(inside for inside, _ in (*MAPS.values(), *COPIES.values()))
    assert set(LANGUAGE) == set(MAPS) | set(COPIES)


# --- our checks ----------------------------------------------------------------------------------


def interpreted(t: tma.Tiled) -> bytes:
    return encode_tensor_map(
        t.address, t.dtype, t.extents, t.strides, t.box, t.element_strides, t.swizzle, t.oob_fill, t.interleave
    )


@pytest.mark.parametrize(("rule", "number"), cases(MAPS, 0))
def test_maps_that_are_allowed(rule: str, number: int) -> None:
    assert tma.map_rule_broken(MAPS[rule][0][number]) is None
    assert len(interpreted(MAPS[rule][0][number])) == 128


@pytest.mark.parametrize(("rule", "number"), cases(MAPS, 1))
def test_maps_that_are_refused(rule: str, number: int) -> None:
    """By the rule that they break."""
    t = MAPS[rule][1][number]
    assert next(r.name for r in tma.MAP_RULES if r.broken(t) is not None) == rule
    with pytest.raises(TensorMapError):
        interpreted(t)


def interpret(copy: Copy) -> bool:
    memory = GlobalMemory()
    whole, part = arrays(copy)
    data = interpreted(tiled(copy, memory.allocate(whole, "whole")))
    addresses = [memory.allocate(np.frombuffer(data, np.uint8).copy(), "map"), memory.allocate(part, "part")]
    params = [a.to_bytes(8, "little") for a in addresses]
    run(parse(ptx(copy)), "k", params, grid=(1, 1, 1), block=(128, 1, 1), memory=memory)
    return all(np.array_equal(a, b) for a, b in zip((whole, part), wanted(copy), strict=True))


def breaks(copy: Any) -> bool:
    """Whether a copy breaks a rule of TMA."""
    return any(rule.broken(copy.box) is not None for rule in tma.COPY_RULES)


@pytest.mark.parametrize(("rule", "number"), cases(COPIES, 0))
def test_copies_that_the_interpreter_makes(rule: str, number: int) -> None:
    copy = COPIES[rule][0][number]
    assert not breaks(copy) and interpret(copy)


@pytest.mark.parametrize(("rule", "number"), cases(COPIES, 1))
def test_copies_that_the_interpreter_reports(rule: str, number: int) -> None:
    copy = COPIES[rule][1][number]
    assert breaks(copy)
    with pytest.raises(HazardError, match=r"misaligned|out_of_bounds"):
        interpret(copy)


# --- the language, just outside of each rule -----------------------------------------------------


def loaded(x: Any, size: Any, index: Any, tile: Any = None, dtype: Any = f32, **options: Any) -> Callable[[Any], Any]:
    """Loads a block of `x` and gives it back."""

    def go(interpret: Any) -> Any:
        def body(x: Any, out: Any, s: Any, ready: Any) -> None:
            part = s if tile is None else s.at[tile]
            kd.copy_gmem_to_smem(x.at[index], part, ready, **options)
            kd.barrier_wait(ready)
            out[...] = part[...]

        buffer = kd.SMEM(size if tile is None else (8, 128), dtype)
        made = kd.kernel(body, out_type=Spec(size, dtype), scratch_types=[buffer, kd.Barrier()])
        return made(x, interpret=interpret)

    return go


def stored(index: Any) -> Callable[[Any], Any]:
    def go(interpret: Any) -> Any:
        def body(out: Any, s: Any) -> None:
            s[...] = kd.ones((8, 32), f32)
            kd.commit_smem()
            kd.copy_smem_to_gmem(s, out.at[index])

        made = kd.kernel(body, out_type=Spec((16, 128), f32, init=0), scratch_types=[kd.SMEM((8, 32), f32)])
        return made(interpret=interpret)

    return go


X = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
_UNALIGNED = np.zeros(16 * 128 + 1, np.float32)[1:].reshape(16, 128)
# rule: what a kernel that would break it does: an error (its words), or the values by another way
LANGUAGE: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "rank": (loaded(np.zeros((1,) * 5 + (64,), np.float32), (64,), (*(0,) * 5, kd.ds(4, 64))), "rank 6"),
    "interleave": (loaded(X, (8, 32), np.s_[:8, :32]), X[:8, :32]),  # the language has none
    "address": (loaded(_UNALIGNED, (8, 32), np.s_[:8, :32]), "aligned to 16 bytes"),
    "extents": (loaded(X[:0], (8, 32), (kd.ds(0, 8), kd.ds(0, 32))), np.zeros((8, 32))),
    "strides": (loaded(np.zeros((16, 130), np.float32), (8, 32), np.s_[:8, :32]), "multiples of 16 bytes"),
    "box": (loaded(np.tile(X, (32, 1)), (300, 32), np.s_[:300, :32]), np.tile(X, (32, 1))[:300, :32]),
    "row": (loaded(X, (8, 30), np.s_[:8, :30]), "multiples of 16 bytes"),
    "element strides": (loaded(X, (8, 32), np.s_[:16:2, :32]), "strided slice"),
    "swizzle": (
        lambda interpret: kd.SMEM((8, 64), f32, transforms=(kd.SwizzleTransform(128),)),
        "can't have a 128-byte swizzle",
    ),
    "fill": (
        loaded(X.astype(np.int32), (8, 32), np.s_[:8, :32], dtype=kd.int32, oob_mode=kd.OOBFillMode.NANS),
        "oob_mode=NANS for int32",
    ),
    "innermost start": (loaded(X, (8, 32), np.s_[:8, 1:33]), X[:8, 1:33]),
    "negative store": (stored((kd.ds(-1, 8), kd.ds(0, 32))), "starts at -1"),
    "coordinates": (
        loaded(X, (8, 32), (kd.ds(2**31 - 8, 8), kd.ds(0, 32))),
        np.zeros((8, 32)),
    ),
    "shared memory": (loaded(X, (8, 32), np.s_[:8, :32], tile=np.s_[:, 4:36]), "multiple of 128 bytes"),
}


@pytest.mark.parametrize("where", ["interpreter", pytest.param("gpu", marks=on_a_gpu)])
@pytest.mark.parametrize("rule", LANGUAGE)
def test_kernels_that_would_break_a_rule(rule: str, where: str) -> None:
    """Refused at the line, or done in another way."""
    go, want = LANGUAGE[rule]
    interpreter = where == "interpreter"
    if isinstance(want, str):
        with pytest.raises(kd.Error, match=want):
            go(interpreter)
    else:
        np.testing.assert_array_equal(go(interpreter), want)


# --- a GPU, past our checks ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def memory() -> Iterator[int]:
    """An address on the GPU."""
    with Gpu() as gpu:
        yield int(gpu._upload(np.zeros(256, np.uint8)))


def at(t: tma.Tiled, memory: int) -> tma.Tiled:
    return replace(t, address=memory + t.address - BASE)


@pytest.mark.parametrize(("rule", "number"), [pytest.param(*c.values, id=c.id, marks=on_a_gpu) for c in cases(MAPS, 0)])
def test_the_driver_takes_what_is_allowed(rule: str, number: int, memory: int) -> None:
    assert encode(at(MAPS[rule][0][number], memory))[0] == "CUDA_SUCCESS"


@pytest.mark.parametrize(("rule", "number"), [pytest.param(*c.values, id=c.id, marks=on_a_gpu) for c in cases(MAPS, 1)])
def test_the_driver_refuses_what_is_not(rule: str, number: int, memory: int) -> None:
    """But for interleaved layouts, which are refused as nothing here makes or reads them."""
    if rule == "interleave":
        pytest.skip("a driver takes them, of three dimensions and more")
    assert encode(at(MAPS[rule][1][number], memory))[0] != "CUDA_SUCCESS"


def child(rule: str, side: str, number: int) -> str:
    command = [sys.executable, "-m", "tests.gpu.tma_rules", rule, side, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[-1] if done.returncode else "right"


@pytest.mark.parametrize(
    ("rule", "number"), [pytest.param(*c.values, id=c.id, marks=on_a_gpu) for c in cases(COPIES, 0)]
)
def test_a_gpu_makes_what_is_allowed(rule: str, number: int) -> None:
    assert child(rule, "inside", number) == "right"


@pytest.mark.parametrize(
    ("rule", "number"), [pytest.param(*c.values, id=c.id, marks=on_a_gpu) for c in cases(COPIES, 1)]
)
def test_a_gpu_goes_wrong_outside(rule: str, number: int, record_property: Any) -> None:
    """Where the rule was seen there and nowhere written; what the PTX ISA forbids is noted."""
    found = child(rule, "outside", number)
    record_property("found", found)
    source = next(r.source for r in tma.COPY_RULES if r.name == rule)
    if source.startswith("seen"):
        assert found != "right", found


def test_the_table_is_of_good_maps() -> None:
    assert tma.map_rule_broken(GOOD) is None
