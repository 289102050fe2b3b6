"""`kd.tune` without a GPU: on a clock of the test's, and by prediction."""

from __future__ import annotations

import math
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernel_dsl as kd
from kernel_dsl import tuning_file, tuning_run
from kernel_dsl.errors_tuning import NoConfiguration, ResultsDiffer, TuneType, TuneValue, TuningSpace
from kernel_dsl.tuning_table import TuningRow

from .fake import FakeBench, gpu, resources

X = np.arange(64, dtype=np.float32)


@dataclass(frozen=True)
class Rows:
    """Rows of a block. `factor`: a wrong one gives wrong results."""

    rows: int
    factor: float = 2.0
    smem: int = 0


SPACE = [Rows(8), Rows(16), Rows(32), Rows(64)]


def make(config: Rows) -> kd.Kernel:
    """The kernel, named by its configuration."""
    assert config.rows % 8 == 0, "rows go by eight"
    scratch = [kd.SMEM((config.smem,), kd.float32)] if config.smem else []

    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype),
        grid=lambda x: (kd.cdiv(x.shape[0], config.rows),),
        scratch_types=scratch,
        name=f"rows_{config.rows}",
    )
    def body(x: Any, out: Any, *tiles: Any) -> None:
        here = kd.ds(kd.program_id(0) * config.rows, config.rows)
        for tile in tiles:
            tile[:8] = x[:8]
        out[here] = x[here] * config.factor

    return body


def rows_of(name: str) -> int:
    return int(name.partition("_")[2])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Results are kept in a folder of the test's."""
    monkeypatch.setenv("KERNEL_DSL_CACHE", str(tmp_path))
    tuning_file.tuned_results.cache_clear()
    yield tmp_path
    tuning_file.tuned_results.cache_clear()


def new(space: Any = None, **options: Any) -> Any:
    """A tuned function that no other test knows."""
    return kd.tune(SPACE if space is None else space, **options)(make)


def test_arrays_of_four_bits_are_tuned_as_they_are_called() -> None:
    @kd.tune(SPACE)
    def copy(config: Rows) -> kd.Kernel:
        @kd.kernel(out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], config.rows),))
        def body(x: Any, out: Any) -> None:
            here = kd.ds(kd.program_id(0) * config.rows, config.rows)
            out[here] = x[here]

        return body

    x = np.arange(64).reshape(8, 8) % 8
    nibbles = x.astype(kd.int4.numpy)
    np.testing.assert_array_equal(copy(nibbles).astype(int), x)
    assert "ld.global" in copy.lower(nibbles).ptx


def generated() -> Any:
    """A space that is a function with `yield`."""
    yield from SPACE


# --- prediction ----------------------------------------------------------------------------------


def test_without_a_gpu_the_prediction_is_taken() -> None:
    scale = new(predict=lambda c, x: abs(c.rows - 16) + x.shape[0] / 1e6)
    np.testing.assert_array_equal(scale(X), X * 2)
    made = scale.tune(X)
    assert (made.how, made.gpu, made.best, made.key) == ("predicted", "interpreter", Rows(16), "'float32[64]'")
    assert [row.config.rows for row in made.rows] == [16, 8, 32, 64]
    assert all(row.seconds is None for row in made.rows)
    assert scale.kernel(X).name == "rows_16" and "rows_16" in scale.lower(X).ptx
    assert new().tune(kd.ShapeDtypeStruct((64,), kd.float32)).how == "first"
    out = np.full_like(X, -1)
    assert scale(X, out=out) is out and out[3] == 6


@pytest.mark.parametrize("space", [
    lambda: iter(SPACE), lambda: (Rows(n) for n in (8, 16)), lambda: tuple(SPACE), lambda: lambda: SPACE,
    lambda: generated,
    lambda: lambda x: [Rows(8), Rows(x.shape[0])],
])  # fmt: skip
def test_spaces(space: Callable[[], Any]) -> None:
    scale = new(space())
    assert scale.tune(X).best == Rows(8)
    assert scale.tune(X[:32]).rows, "a generator is read once"


def test_the_key_tells_calls_apart() -> None:
    asked: list[int] = []

    def predict(config: Rows, x: Any) -> float:
        asked.append(x.shape[0])
        return abs(config.rows - x.shape[0])

    scale = new(predict=predict, key=lambda x: x.shape[0] > 16)
    assert [scale.tune(X[:n]).best.rows for n in (32, 64, 8, 16)] == [32, 32, 8, 8]
    assert sorted(set(asked)) == [8, 32]


def test_a_second_call_asks_for_no_key() -> None:
    asked: list[Any] = []

    def key(x: Any, n: int = 0, more: Any = None) -> Any:
        asked.append(n)
        return x.shape[0] + n

    def with_number(config: Rows) -> kd.Kernel:
        def body(x: Any, *rest: Any) -> None:
            rest[-1][...] = x[...] * 2

        return kd.kernel(body, out_type=lambda x, *rest: x)

    scale = kd.tune(SPACE, key=key)(with_number)
    for _ in range(2):
        for args in ((X,), (X, 1), (X, True), (X, 2), (X[:32],), (X, 1, [X])):
            np.testing.assert_array_equal(scale(*args), args[0] * 2)
    assert asked == [0, 1, True, 2, 0, 1, 1], "a nest is looked at each time"
    tuning_file.tuned_results().add({})
    scale(X)
    assert len(asked) == 8, "results that were added may be others"


def test_what_can_not_run_is_dropped() -> None:
    space = [Rows(12), Rows(8, smem=1 << 20), Rows(64), Rows(32), Rows(16)]
    scale = new(space, predict=lambda c, x: math.inf if c.rows == 32 else 0)
    made = scale.tune(X)
    assert made.best == Rows(64)
    reasons = {row.config: row.dropped for row in made.rows}
    assert reasons[Rows(12)] == "rows go by eight" and reasons[Rows(32)] == "predict gives inf"
    assert "smem" in reasons[Rows(8, smem=1 << 20)] and not reasons[Rows(16)]
    with pytest.raises(NoConfiguration, match="rows go by eight"):
        new([Rows(12), Rows(9)])(X)


def test_values_that_fill_the_registers_are_no_choice() -> None:
    """Without an assembler a spill is seen by the values' sizes; nobody is warned of what is not taken."""

    def large(config: Rows) -> kd.Kernel:
        n = config.rows * 128

        def body(x: Any, out: Any) -> None:
            out[...] = x[:n] + x[n : 2 * n]

        return kd.kernel(body, out_type=lambda x: kd.ShapeDtypeStruct((n,), kd.float32))

    x = kd.ShapeDtypeStruct((512 * 128,), kd.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = kd.tune([Rows(256), Rows(8)])(large).tune(x)
    assert made.best == Rows(8)
    assert made.rows[0].dropped == "spills registers: float32[32768] takes 256 registers a lane of 255"


def test_a_mistake_of_the_function_is_not_hidden() -> None:
    @kd.tune(SPACE)
    def broken(config: Any) -> Any:
        return config.no_such_field

    with pytest.raises(AttributeError, match="no_such_field"):
        broken(X)


# --- measuring -----------------------------------------------------------------------------------


def test_the_fastest_of_those_predicted_best() -> None:
    scale = new(predict=lambda c, x: -c.rows, keep=3, seconds=1.0)
    with gpu(lambda name: rows_of(name) * 1e-2) as bench:
        np.testing.assert_array_equal(scale(X), X * 2)
        made = scale.tune(X)
    assert (made.how, made.gpu, made.best) == ("measured", "Fake GPU", Rows(16))
    assert [row.seconds for row in made.rows] == [0.64, 0.32, 0.16, None]
    turns = len(bench.sampled) // 3
    assert turns == tuning_run.LEAST and bench.sampled == ["rows_64", "rows_32", "rows_16"] * turns, "in turn"


def test_seconds_bound_the_samples() -> None:
    scale = new(keep=2)
    with gpu(lambda name: 1e-3) as bench:
        assert scale.tune(X, budget=0.1).rows[0].samples == 50
        del bench.sampled[:]
        assert scale.tune(X, budget=1e3, again=True).rows[0].samples == tuning_run.MOST
        assert len(bench.sampled) == 2 * tuning_run.MOST


def test_spills_and_capacity() -> None:
    found = {8: resources(spills=40), 16: resources(blocks=0)}
    scale = new(keep=2)
    with gpu(lambda name: rows_of(name) * 1e-3, lambda name: found.get(rows_of(name), resources())) as bench:
        made = scale.tune(X)
    assert made.best == Rows(32) and set(bench.sampled) == {"rows_32", "rows_64"}, "others take their places"
    assert [row.dropped for row in made.rows[:2]] == [
        "spills 40 bytes of registers", "needs more registers or SMEM than a multiprocessor has",
    ]  # fmt: skip
    with gpu(made=lambda name: resources(spills=8)), pytest.raises(NoConfiguration, match="spills 8 bytes"):
        new()(X[:32])


def test_a_wrong_result_is_dropped_and_named() -> None:
    scale = new([Rows(8), Rows(16, factor=2.5), Rows(32)])
    fast = lambda name: 1e-6 if name == "rows_16" else 1e-3  # noqa: E731
    with gpu(fast), pytest.warns(RuntimeWarning, match=r"Rows\(rows=16, factor=2.5.* is dropped, as its result"):
        made = scale.tune(X)
    assert made.best == Rows(8) and "of 64 elements differ" in made.rows[1].dropped
    with gpu(), pytest.raises(ResultsDiffer, match="rows=16"):
        new([Rows(8), Rows(16, factor=2.5)])(X)
    with gpu(fast), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert new([Rows(8), Rows(16, factor=2.5)], tolerance=math.inf).tune(X).best.rows == 16
        assert new([Rows(8), Rows(16, factor=2.0001)]).tune(X).best.rows == 16, "rounding is no difference"


def test_what_is_not_written_is_seen() -> None:
    """Outputs are poisoned, so that one kernel's result is not taken for another's."""
    space = [Rows(8), Rows(16), Rows(32)]

    def partly(config: Rows) -> kd.Kernel:
        @kd.kernel(out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype), name=f"rows_{config.rows}")
        def body(x: Any, out: Any) -> None:
            n = 32 if config.rows == 16 else 64
            out[:n] = x[:n]

        return body

    with gpu(), pytest.warns(RuntimeWarning, match="32 of 64 elements differ"):
        assert kd.tune(space)(partly).tune(X).rows[1].dropped


@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_ints_are_equal_or_wrong(dtype: Any) -> None:
    a = np.array([0, 1, 1, 0], dtype)
    assert not tuning_run.difference([a], [a.copy()], None)
    assert tuning_run.difference([a], [1 - a.astype(np.int8)], None).startswith("4 of 4")


# --- budgets and what is kept --------------------------------------------------------------------


def test_budgets() -> None:
    options: Any = {"predict": lambda c, x: -c.rows, "keep": 4}
    fast = lambda name: rows_of(name) * 1e-3  # noqa: E731
    with gpu(fast) as bench:
        none = new(budget="none", **options)
        assert (none.tune(X).how, none.tune(X).best.rows) == ("predicted", 64)
        cached = new(budget="cached", **options)
        assert (cached.tune(X).how, bench.sampled) == ("predicted", [])
        assert (none.tune(X, budget=0.01).how, none.tune(X, budget=0.01).best.rows) == ("measured", 8)
        assert none(X, budget="none") is not None and none.tune(X).best.rows == 64
        assert (cached.tune(X).how, cached.tune(X).best.rows) == ("kept", 8), "what became known since is seen"
        count = len(bench.sampled)
        assert new(**options).tune(X).how == "kept" and len(bench.sampled) == count
        assert new(**options).tune(X, again=True).how == "measured" and len(bench.sampled) > count
        assert none.tune(X, budget="cached", interpret=True).gpu == "Fake GPU", "the fake stands for any device"
    assert new(**options).tune(X).how == "predicted", "without a GPU"


@pytest.mark.parametrize("budget", [0, -1, math.nan, math.inf, True, "some"])
def test_a_budget_of_a_later_call_is_checked(budget: Any) -> None:
    """Also where the call's choice is known, so that nothing is measured."""
    scale = new()
    for call in (scale, scale.tune, scale.kernel):
        call(X)
        with pytest.raises(TuneType if budget is True else TuneValue, match="budget="):
            call(X, budget=budget)


def test_nothing_is_measured_while_a_graph_is_recorded() -> None:
    scale = new(predict=lambda c, x: -c.rows)
    with gpu() as bench:
        with kd.Graph() as graph:
            out = scale(X, interpret=True)
        assert not bench.sampled
        graph()
        np.testing.assert_array_equal(out, X * 2)
        assert not kd.check(scale.kernel(X, budget="none"), X).hazards and not bench.sampled
        assert scale.tune(X).how == "measured", "afterwards it is"


def test_a_changed_source_is_tuned_anew(folder: Path) -> None:
    def double(config: Rows) -> kd.Kernel:
        return make(config)

    first = double

    def double(config: Rows) -> kd.Kernel:
        return make(Rows(config.rows))

    with gpu() as bench:
        kd.tune(SPACE, name="double")(first)(X)
        count = len(bench.sampled)
        assert kd.tune(SPACE, name="double")(first).tune(X).how == "kept" and len(bench.sampled) == count
        assert kd.tune(SPACE, name="double")(double).tune(X).how == "measured"
    lines = (folder / tuning_file.NAME).read_text().splitlines()
    assert len(lines) == 1 + 2 * len(SPACE) and "Rows(rows=8, factor=2.0, smem=0)" in "".join(lines)


def test_other_gpus_and_keys_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = new()
    with gpu():
        scale(X)
        monkeypatch.setattr(FakeBench, "gpu", "Other GPU")
        assert new().tune(X, budget="cached").how == "first"
        monkeypatch.undo()
    with gpu():
        assert new().tune(X[:32], budget="cached").how == "first"


def test_threads_measure_once() -> None:
    scale = new()
    found: list[str] = []
    with gpu() as bench:
        threads = [threading.Thread(target=lambda: found.append(scale.tune(X).how)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == ["measured"] * 4 and len(bench.sampled) == len(SPACE) * tuning_run.MOST
    assert len(scale._kernels) == len(SPACE)


def test_children_compile(folder: Path) -> None:
    """With the real assembler, in processes of their own, from a space of which one does not fit."""
    from kernel_dsl import loading

    if not __import__("kernel_dsl.runtime.measure.samples", fromlist=["x"]).assembles_apart():
        pytest.skip("needs ptxas")
    rows = [TuningRow(c, str(c)) for c in (Rows(8), Rows(16, smem=1 << 20), Rows(32))]
    from kernel_dsl.tuning_trial import KernelTrial

    built = tuning_run.build(rows, lambda c: KernelTrial(make(c), (X,)))
    built, taken = tuning_run.compiled(built, 2, "sm_90a", loading.machine_code, True, "scale")
    assert taken == [0, 2] and "smem" in built.rows[1].dropped


@pytest.mark.parametrize("given", [TypeError("no such row"), KeyError("rows"), SystemExit(3)])
def test_an_exception_of_a_body_is_the_users(given: BaseException) -> None:
    """Also of a configuration that a child compiles: only the errors of the docs drop one."""

    def broken(config: Rows) -> kd.Kernel:
        @kd.kernel(out_type=lambda x: x)
        def body(x: Any, out: Any) -> None:
            raise given

        return body

    from kernel_dsl.tuning_trial import KernelTrial

    for apart in (True, False):
        built = tuning_run.build([TuningRow(Rows(8), "Rows(8)")], lambda c: KernelTrial(broken(c), (X,)))
        with pytest.raises(BaseException) as caught:
            tuning_run.compiled(built, 1, "sm_90a", lambda stages: resources(), apart, "scale")
        assert caught.value is given and caught.traceback[-1].path == Path(__file__)


# --- tables --------------------------------------------------------------------------------------


def test_the_table() -> None:
    scale = new([Rows(8), Rows(12), Rows(16)], key=lambda x: "<b>")
    with gpu(lambda name: rows_of(name) * 1e-6):
        made = scale.tune(X)
    text = str(made)
    assert re.search(r"^\*  Rows\(rows=8\) .*8\.00 us +1\.000", text, re.M) and "dropped: rows go by eight" in text
    page = made._repr_html_()
    assert "<b>" not in page and "&lt;b&gt;" in page and page.count("<tr>") == 4
    assert "Rows(rows=8, factor=2.0, smem=0), measured now" in repr(made)


def test_bad_arguments_of_calls() -> None:
    scale = new()
    for budget, error in [("fast", TuneValue), (0, TuneValue), (math.nan, TuneValue), (True, TuneType), ([], TuneType)]:
        with pytest.raises(error):
            scale(X, budget=budget)
    with pytest.raises(TuningSpace, match="can't be called"):
        new(lambda a, b: SPACE)(X)
    with pytest.raises(TuningSpace, match="the space holds 8"):
        new(lambda x: [8])(X)
    with pytest.raises(TuneType, match="predict gives 'x'"):
        new(predict=lambda c, x: "x")(X)


@kd.tune(SPACE, predict=lambda c, x: c.rows)
def pickled(config: Rows) -> kd.Kernel:
    """A tuned function of a module."""
    return make(config)


def test_it_is_found_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(pickled)) is pickled
    assert pickled.__doc__ == "A tuned function of a module." and pickled.name.endswith("test_tune.pickled")


# --- any space -----------------------------------------------------------------------------------


@st.composite
def trials(draw: Any) -> list[tuple[int, float, float, str]]:
    """(number, predicted, measured, why not) of configurations."""
    count = draw(st.integers(1, 12))
    numbers = st.floats(1e-6, 1.0)
    why = st.sampled_from(["", "", "make", "spill", "capacity"])
    return [(i, draw(numbers), draw(numbers), draw(why)) for i in range(count)]


@given(trials(), st.integers(1, 6))
def test_the_choice_is_the_fastest_of_the_first_that_can_run(listed: list[Any], keep: int) -> None:
    @dataclass(frozen=True)
    class Point:
        number: int

    by = {number: row for number, *row in listed}
    made: dict[str, Any] = {
        f"k_{i}": resources(spills=why == "spill", blocks=why != "capacity") for i, *_, why in listed
    }

    def point(config: Point) -> kd.Kernel:
        if by[config.number][2] == "make":
            raise ValueError("make")
        return kd.kernel(lambda x, out: None, out_type=X, name=f"k_{config.number}")

    scale = kd.tune([Point(i) for i in by], predict=lambda c, x: by[c.number][0], keep=keep, name="any")(point)
    order = sorted((row[0], i) for i, row in by.items() if not row[2])[:keep]
    with gpu(lambda name: by[rows_of(name)][1], lambda name: made[name], lambda name: X) as bench:
        if not order:
            with pytest.raises(NoConfiguration):
                scale.tune(X)
            return
        found = scale.tune(X)
    assert {rows_of(name) for name in bench.sampled} == {i for _, i in order}
    assert by[found.best.number][1] == min(by[i][1] for _, i in order)
    assert all(bool(row.dropped) <= bool(by[row.config.number][2]) for row in found.rows)


def test_inputs_by_name() -> None:
    """As for the kernels, of which none may be made yet."""
    with gpu(lambda name: rows_of(name) * 1e-6) as bench:
        for call in (lambda t: t(x=X), lambda t: t.kernel(x=X)(X), lambda t: t.tune(x=X) and t(X)):
            np.testing.assert_array_equal(call(new(name="by_name")), X * 2)
        assert new(name="by_name").tune(x=X).best == Rows(8) and bench.sampled
        assert new(name="by_name").lower(x=X).name == "rows_8"
    with pytest.raises(kd.Error, match="'y' is not one of its inputs"):
        new()(y=X, interpret=True)
    late = new(lambda x: SPACE)
    with pytest.raises(kd.Error, match="the first call by position"):
        late(x=X, interpret=True)
    late(X, interpret=True)
    np.testing.assert_array_equal(late(x=X, interpret=True), X * 2)
    with pytest.raises(NoConfiguration, match="rows go by eight"):
        new([Rows(3)])(x=X, interpret=True)


def test_a_class_is_no_space() -> None:
    with pytest.raises(TuningSpace, match="list of its instances"):
        kd.tune(Rows)
