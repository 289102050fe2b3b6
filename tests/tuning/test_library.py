"""What was tuned for the library is taken by its calls, and the command that tunes it."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import tune_command
from kernel_dsl.__main__ import main
from kernel_dsl.library import tuned_choices
from kernel_dsl.library.attention_forward import tuned_attention
from kernel_dsl.library.attention_forward.options import AttentionOptions, problem_of
from kernel_dsl.library.product_routes import choose, tuned_matmul
from kernel_dsl.library.product_routes.routes import route, routes
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.plan import plan_by, plan_of
from kernel_dsl.library.products.problem import Problem
from kernel_dsl.stages import target_named
from kernel_dsl.target import DEFAULT
from kernel_dsl.tuning_file import NAME, TunedLine, tuned_results, written

from .fake import gpu, resources

SIZES = [(4096, 4096, 4096), (128, 8192, 8192), (16, 16384, 8192), (64, 64, 4096), (100, 60, 36), (1000, 520, 1016)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    monkeypatch.setenv("KERNEL_DSL_CACHE", str(tmp_path))
    tuned_results.cache_clear()
    yield tmp_path
    tuned_results.cache_clear()
    tuned_results().add({}, keep=False)  # plans by what this test tuned are forgotten


def asked(m: int, n: int, k: int, dtype: Any = kd.bfloat16, out: Any = None) -> Any:
    structs = kd.ShapeDtypeStruct((m, k), dtype), kd.ShapeDtypeStruct((k, n), dtype)
    return request(*structs, MatmulOptions(out_dtype=out), None)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [kd.bfloat16, kd.float8_e4m3fn, kd.float32])
def test_the_space_begins_with_the_choice(sizes: tuple[int, int, int], dtype: Any) -> None:
    r = asked(*sizes, dtype)
    every = routes(r.problem, r.left, r.right, r.family, DEFAULT)
    chosen = route(r.problem, r.left, r.right, r.family, None, DEFAULT)
    assert min(every, key=lambda option: option[0])[1] == chosen
    texts = [written(tuned_matmul.choice_of(found)) for _, found in every]
    assert len(set(texts)) == len(texts)


def test_variants_fit() -> None:
    for m, n, k in SIZES:
        problem = Problem(m, n, k, kd.bfloat16, kd.bfloat16, kd.bfloat16)
        for _, t in choose.space(problem, 132):
            p = problem.swapped if t.swapped else problem
            ring = t.epilogue_n * t.rows * t.consumers * t.epilogue_stages * 2
            assert t.stages * choose.stage_bytes(p, t.tile_m, t.tile_n, t.tile_k) + ring <= choose.SMEM
            assert 2 <= t.stages <= choose.DEEPEST and t.group >= 1


def test_keys_tell_problems_apart() -> None:
    keys = {
        tuned_matmul.key_of(r)
        for r in (
            asked(64, 64, 64),
            asked(64, 64, 128),
            asked(64, 64, 64, kd.float16),
            asked(64, 64, 64, out=kd.float32),
        )
    }
    a = kd.ShapeDtypeStruct((64, 64), kd.bfloat16)
    turned = np.zeros((64, 64), kd.bfloat16.numpy).T
    keys |= {tuned_matmul.key_of(request(*pair, MatmulOptions(), None)) for pair in ((a, turned), (turned, a))}
    keys |= {tuned_matmul.key_of(request(a, a, MatmulOptions(bias=np.zeros(64, np.float32)), None))}
    assert len(keys) == 7 and None not in keys
    own = MatmulOptions(activation=lambda x: x, epilogue=lambda x: x)
    assert tuned_matmul.key_of(request(a, a, own, None)) is None, "a function has no text"
    assert tuned_matmul.key_of(asked(64, 0, 64)) is None


def line(kernel: str, key: str | None, config: Any) -> None:
    made = TunedLine("Fake GPU", kernel, "", key or "", written(config), 1e-6, "", "2026", "0", "ptxas")
    tuned_results().add({made.place: (made,)})


def test_a_tuned_matmul_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_choices, "gpu_name", lambda: "Fake GPU")
    a = np.random.default_rng(0).standard_normal((64, 64)).astype(kd.bfloat16.numpy)
    struct = kd.ShapeDtypeStruct((64, 64), kd.bfloat16)
    r = request(struct, struct, MatmulOptions(), None)
    every = [tuned_matmul.choice_of(x) for _, x in routes(r.problem, r.left, r.right, r.family, DEFAULT)]
    before = plan_of(r, None, None)
    kd.library.matmul(a, a, interpret=True)
    other = next(c for c in every if c.kernel == "tile" and c.parts == 1 and c.config.tile_m == 128)
    line(tuned_choices.MATMUL, tuned_matmul.key_of(r), other)
    found = tuned_matmul.tuned_route(r, DEFAULT)
    assert found is not None and tuned_matmul.choice_of(found) == other
    assert plan_of(r, None, None) == plan_by(r, found, 132) != before
    assert plan_of(r, None, "sm_90a").kernel is not plan_by(r, found, 132).kernel, "not of this GPU"
    expected = a.astype(np.float64) @ a.astype(np.float64)
    got = kd.library.matmul(a, a, interpret=True).astype(np.float64)
    assert np.abs(got - expected).max() <= 2**-7 * np.abs(expected).max()
    assert plan_by(r, found, 132) in kd.library.matmul._plans.values(), "the plan of the first call is forgotten"
    monkeypatch.setattr(tuned_choices, "gpu_name", lambda: "Another GPU")
    assert tuned_matmul.tuned_route(r, DEFAULT) is None


def test_a_line_that_is_no_choice_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_choices, "gpu_name", lambda: "Fake GPU")
    r = asked(64, 64, 64)
    line(tuned_choices.MATMUL, tuned_matmul.key_of(r), "RouteChoice(kernel='fast')")
    assert tuned_matmul.tuned_route(r, DEFAULT) is None


def test_files_name_public_functions() -> None:
    """Files of results outlive the places of modules."""
    assert resolve_name(tuned_choices.MATMUL) is kd.library.matmul
    assert resolve_name(tuned_choices.ATTENTION) is kd.library.attention


def test_nothing_is_asked_where_nothing_was_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_choices, "gpu_name", lambda: pytest.fail("the GPU was asked"))
    assert tuned_choices.look_up("k", lambda: pytest.fail("the key was made"), dict) is None


def test_a_tuned_attention_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_choices, "gpu_name", lambda: "Fake GPU")
    q = kd.ShapeDtypeStruct((1, 2, 256, 64), kd.bfloat16)
    for options in ({"causal": True}, {"causal": True, "softcap": 3.0}):
        p = problem_of(q, q, q, AttentionOptions(**options), False)
        listed = tuned_attention.space(p, 132)
        assert min(listed, key=lambda option: option[0])[1] == tuned_attention.chosen(p)
        other = next(t for _, t in listed if t.consumers == 1 and t.block_kv == 64 and t.stages == 2)
        before = kd.library.attention.lower(q, q, q, **options)
        line(tuned_choices.ATTENTION, tuned_attention.key_of(p), other)
        after = kd.library.attention.lower(q, q, q, **options)
        assert (
            after.key_text == kd.library.attention.lower(q, q, q, config=other, **options).key_text != before.key_text
        )
    own = problem_of(q, q, q, AttentionOptions(mask_mod=lambda b, h, i, j: i >= j), False)
    assert tuned_attention.key_of(own) is None


# --- the command ---------------------------------------------------------------------------------


def test_the_command_predicts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [resources(spills=16), resources()]
    monkeypatch.setattr(tune_command, "machine_code", lambda stages: found.pop(0) if found else resources())
    monkeypatch.setenv("KERNEL_DSL_CACHE", "off")  # so that no child does it
    tuned_results.cache_clear()
    assert main(["tune", "matmul", "512x256x128", "bf16", "--keep", "1", "--layout", "NT"]) == 0
    text = capsys.readouterr().out
    assert (
        "on a machine without a GPU: predicted, not measured" in text
        and "dropped: spills 16 bytes of registers" in text
    )
    assert re.search(r"\* +RouteChoice\(.*\) +[\d.]+ us", text), "a prediction has its unit"
    assert "b along k" in text and "more, which were predicted to be slower" in text
    assert main(["tune", "attention", "1x2x256x64", "f16", "--causal", "--keep", "1", "--all", "--kv-heads", "1"]) == 0
    text = capsys.readouterr().out
    assert "kv_heads=1" in text and "causal='top_left'" in text and text.count("\n") > 20


def test_the_command_measures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(tune_command, "machine_code", lambda stages: resources())
    times = iter([3e-6, 2e-6] * 1000)
    with gpu() as bench:
        bench.sample = lambda run: run() is None or next(times)
        bench.clock = iter(range(1000)).__next__
        assert main(["tune", "matmul", "64x64x64", "bf16", "--keep", "2", "--seconds", "1"]) == 0
        text = capsys.readouterr().out
        assert "on Fake GPU: measured now" in text and "2.00 us" in text and "3 samples" in text
        assert len((folder / NAME).read_text().splitlines()) == 3
        assert main(["tune", "matmul", "64x64x64", "bf16", "--keep", "2"]) == 0
        assert "on Fake GPU: measured before" in capsys.readouterr().out
    monkeypatch.setattr(tuned_choices, "gpu_name", lambda: "Fake GPU")
    assert tuned_matmul.tuned_route(asked(64, 64, 64), target_named(None)) is not None, "calls take it"


@pytest.mark.parametrize(("arguments", "why"), [
    ("matmul 64x64 bf16", "MxNxK"), ("matmul 64x0x64 bf16", "ints above 0"), ("matmul axbxc bf16", "MxNxK"),
    ("matmul 64x64x64 bf17", "not a dtype"), ("matmul 64x64x64 bf16 --keep 0", "--keep is 1 or more"),
    ("matmul 64x64x64 bf16 --seconds nan", "--seconds above 0"), ("attention 1x2x3x4x5 bf16", "BATCHxHEADS"),
    ("attention 1x2x64x72 bf16", "one configuration"), ("attention 1x2x64x64 f32", "one configuration"),
])  # fmt: skip
def test_the_command_refuses(arguments: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments.split()]) == 2
    assert why in capsys.readouterr().err
