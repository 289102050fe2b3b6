"""A short run of the random calls of attention; `python -m tests.fuzz.attention` is the long one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.fuzz import attention_batch, calls
from tests.fuzz.attention import KINDS, Attention
from tests.fuzz.attention_batch import Batch
from tests.fuzz.attention_options import MASK_MODS, SCORE_MODS, Functions
from tests.library import attention_reference as reference
from tests.library.products import PLACES

MODULE = "tests.fuzz.attention"
OPTIONS = ("causal", "window", "softcap", "scale", "sinks", "bias", "score_mod", "mask_mod")


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.sampled(8)
def test_interpreter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small calls of some kinds, hazards on."""
    monkeypatch.setattr(attention_batch, "FEW", (1, 5, 16, 33, 70))
    calls.check(KINDS, MODULE, [seed])


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many(block: int) -> None:
    calls.check(KINDS, MODULE, range(1000 + 40 * block, 1040 + 40 * block))


@pytest.mark.gpu
@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("block", range(4))
def test_gpu(block: int) -> None:
    calls.check(KINDS, MODULE, range(30 * block, 30 * block + 30), gpu=True)


def test_a_seed_is_a_call() -> None:
    assert all(str(kind(11, False)) == str(kind(11, False)) for kind in KINDS.values())


def test_it_reaches_what_it_is_for() -> None:
    made = [Attention(seed, way=way) for seed in range(600) for way in ("forward", "gradients")]
    assert {m.form for m in made} == {"dense", "ragged", "paged", "paged ragged"}
    for name in OPTIONS:
        assert sum(name in m.options for m in made) > 100, name
    assert {m.options["score_mod"] for m in made if "score_mod" in m.options} == {*SCORE_MODS}
    assert {m.options["mask_mod"] for m in made if "mask_mod" in m.options} == {*MASK_MODS}
    pairs = {(a, b) for m in made for a in m.options for b in m.options if a < b and "given derivative" not in (a, b)}
    assert len(pairs) == len(OPTIONS) * (len(OPTIONS) - 1) // 2
    assert {place for m in made for place in m.places} == {*PLACES, "heads last"}
    assert {m.config is None for m in made if m.far} == {m.config is None for m in made if not m.far} == {False, True}
    assert {m.backward for m in made} == {m.deterministic for m in made} == {m.calls > 1 for m in made} == {False, True}
    assert {form for m in made for form in m.scales} == {"", "number", "tensor", "heads"}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.sampled(4)
def test_an_option_that_is_ignored_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In calls whose result the option changes at all."""
    monkeypatch.setattr(attention_batch, "FEW", (16, 33))
    real = kd.library.attention

    def without(*arrays: Any, **options: Any) -> Any:
        return real(*arrays, **{n: x for n, x in options.items() if n != name})

    made = next(m for seed in range(7000, 19000) if alone(m := Attention(seed), name))
    monkeypatch.setattr(kd.library, "attention", without)
    with pytest.raises(AssertionError, match=r"out of sequence|lse|rows without keys|-inf"):
        made.run(kd.InterpretParams())


def alone(made: Attention, name: str) -> bool:
    """Whether this option and no other counts, in small arrays of 16-bit floats, and hides or moves something."""
    if {n for n in made.options if n in OPTIONS} != {name} or made.dtype not in (kd.bfloat16, kd.float16):
        return False
    clear = {
        "window": lambda x: x < 9,
        "mask_mod": lambda x: x in ("even", "by_bits"),
        "softcap": lambda x: x < 2,
        "sinks": lambda x: not x[1],  # those of -inf are none
    }
    return made.form == "dense" and made.dim <= 64 and clear.get(name, lambda _: True)(made.options[name])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(4)
def test_the_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the reference are its derivatives, with all options together: central differences along random directions."""
    monkeypatch.setattr(attention_batch, "FEW", (1, 3, 7, 9))
    call = Attention(9000 + seed, way="gradients")
    rng = np.random.default_rng(seed)
    batch, functions = Batch(call, rng), Functions.of(call.options, rng)
    options = {n: batch.options[n] for n in ("causal", "window", "softcap", "scale") if n in batch.options}
    for b, own in enumerate(batch.own):
        given = {n: x.astype(np.float64) for n, x in zip("qkv", own, strict=True)}
        if "sinks" in batch.options:
            given["sinks"] = batch.options["sinks"].astype(np.float64)
        if "bias" in batch.options:
            given["bias"] = batch.bias_of(b, own[0].shape[2], own[1].shape[2]).copy()
        fixed = options | functions.of_batch(b)
        dout = rng.standard_normal((*own[0].shape[:3], own[2].shape[3]))
        grads = reference.attention(**fixed, **given, dout=dout).grads
        assert grads.keys() == given.keys()
        for which, grad in grads.items():
            way = rng.standard_normal(grad.shape)
            ends = [
                float((reference.attention(**fixed, **given | {which: given[which] + step * way}).out * dout).sum())
                for step in (-1e-5, 1e-5)
            ]
            slope = (ends[1] - ends[0]) / 2e-5
            assert abs(slope - (grad * way).sum()) < 1e-6 * max(1.0, abs(slope)), (str(call), which)


X, LSE = np.ones((2, 2, 8, 64), np.float16), np.zeros((2, 2, 8), np.float32)
R, STARTS, PAGES = np.ones((8, 2, 64), np.float16), np.array([0, 3, 8], np.int32), np.zeros((2, 1), np.int32)
BIAS, NARROW = np.ones((8, 8), np.float32), np.ones((2, 2, 8, 64), kd.float8_e4m3fn.numpy)
# (arrays, options, words of the message: it names both of what exclude each other)
EXCLUDED: list[tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = [
    ((R, R, R), {"q_seqlens": STARTS, "bias": BIAS}, ("bias", "q_seqlens")),
    ((R, X, X), {"q_seqlens": STARTS, "page_table": PAGES, "bias": BIAS}, ("bias", "q_seqlens")),
    ((R, R, R), {"kv_seqlens": STARTS}, ("kv_seqlens", "q_seqlens")),
    *(((X, X, X), {f"{n}_scale": 2.0}, (f"{n}_scale", "float16")) for n in "qkv"),
    ((X, X, X, X, X, LSE), {"page_table": PAGES}, ("page_table", "gradients")),
    ((X, X, X, X, X, LSE), {"score_mod_grad": reference.alibi}, ("score_mod_grad", "score_mod")),
    ((X, NARROW, NARROW, NARROW, X, LSE), {}, ("float8", "gradients")),
    ((R, R, R, R, R, LSE[0]), {"q_seqlens": STARTS, "bias": BIAS}, ("bias", "q_seqlens")),
]


@pytest.mark.parametrize("case", EXCLUDED, ids=lambda case: "-".join(case[2]) + f"-{len(case[0])}")
def test_options_that_exclude_each_other(case: Any) -> None:
    arrays, options, words = case
    function = kd.library.attention if len(arrays) == 3 else kd.library.attention_backward
    with pytest.raises(kd.Error) as caught:
        function(*arrays, **options, interpret=True)
    assert all(word in str(caught.value) for word in words), str(caught.value)
