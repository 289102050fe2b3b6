"""A kernel object made again costs a trace and no compile, and its reports name its own lines."""

from __future__ import annotations

import linecache
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import loading
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.build.cache import KernelCache
from kernel_dsl.runtime.disk_cache import DiskCache
from kernel_dsl.runtime.errors import LoadError
from kernel_dsl.stages import Stages
from kernel_dsl.target import DEFAULT


@pytest.fixture
def compiles(kernels_apart: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels that are lowered from now on."""
    seen: list[str] = []
    plain = Stages.for_any.func

    def lower(self):
        seen.append(self.name)
        return plain(self)

    monkeypatch.setattr(Stages, "for_any", property(lower))
    return seen


def make(step: float):
    @kd.kernel(out_type=lambda x: x, interpret=True, name="remade")
    def body(x, out):
        out[...] = x[...] + step

    return body


def test_the_same_kernel_again_is_not_compiled_again(compiles: list[str]) -> None:
    x = np.arange(37, dtype=np.float32)
    for step in (1.5, 1.5, 2.5, 1.5):
        np.testing.assert_array_equal(make(step)(x), x + np.float32(step))
    assert compiles == ["remade", "remade"]


def test_the_same_kernel_at_another_line_reports_that_line() -> None:
    @kd.kernel(out_type=lambda x: x, interpret=True, name="reporting")
    def first(x, out):
        value = out[...]  # holds nothing yet
        out[...] = x[...] + value

    @kd.kernel(out_type=lambda x: x, interpret=True, name="reporting")
    def second(x, out):
        value = out[...]  # holds nothing yet
        out[...] = x[...] + value

    x = np.ones(37, np.float32)
    assert str(first.lower(x).key_text) == str(second.lower(x).key_text)
    places = []
    for kernel in (first, second, first):
        with pytest.raises(kd.HazardError) as caught:
            kernel(x)
        places.append((str(caught.value), kernel.__wrapped__.__code__.co_firstlineno + 3))
    for message, line in places:
        assert f"test_remade.py:{line}" in message, message


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")
def test_a_kernel_from_the_disk_names_its_own_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a second process would find it, whose file has gained a line in between."""
    source = """import kernel_dsl as kd
@kd.kernel(out_type=lambda x: x, name="moved")
def body(x, out):
    out[...] = x[...] * 3
"""
    found = []
    for text in (source, "# a line more\n" + source):
        monkeypatch.setattr(loading, "kernel_cache", lambda: KernelCache(DiskCache(tmp_path / "cache")))
        (tmp_path / "model.py").write_text(text)
        linecache.clearcache()
        scope: dict[str, object] = {}
        exec(compile(text, str(tmp_path / "model.py"), "exec"), scope)
        stages = scope["body"].lower(kd.ShapeDtypeStruct((64,), kd.float32))
        found.append(loading.load(stages, NoDevice()).kernel)
    first, second = found
    assert first.ptx == second.ptx
    assert 4 in {line.line for line in first.lines.values()}
    for (number, before), (same, after) in zip(first.lines.items(), second.lines.items(), strict=True):
        assert (number, before.line + 1) == (same, after.line)
    assert first.source.line + 1 == second.source.line
    assert DiskCache(tmp_path / "cache").stats().entries == 1


class NoDevice:
    """Takes the place of a GPU: an assembled kernel is all that is asked for."""

    kind, index, target = "cuda", 0, DEFAULT

    def load(self, assembled):
        return assembled


class Settling(NoDevice):
    """One whose kernels are settled for each call."""

    def load(self, assembled):
        made = SimpleNamespace(kernel=assembled.kernel)
        made.settled = lambda kernel: SimpleNamespace(kernel=kernel)
        return made


def was_traced(kernel: Any) -> bool:
    return all(made._stages is not None for made in kernel.specialisations())


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")
def test_a_kernel_that_the_device_does_not_take_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it came from the disk; one that was just compiled is an error."""

    class Refusing(NoDevice):
        def __init__(self, good: bytes) -> None:
            self.good, self.loads = good, 0

        def load(self, assembled):
            self.loads += 1
            if assembled.cubin != self.good:
                raise LoadError("as the driver says")
            return assembled

    stages = make(4.5).lower(kd.ShapeDtypeStruct((32,), kd.float32))
    right = stages.assembled().cubin
    disk = DiskCache(tmp_path / "cache")
    kept = KernelCache(disk)
    monkeypatch.setattr(loading, "kernel_cache", lambda: kept)
    loading.load(stages, NoDevice())
    (path,) = (tmp_path / "cache").rglob("*.kd")
    key = path.stem
    disk.put(key, replace(stages.assembled(), cubin=right[:-1]), loading._places(stages))
    monkeypatch.setattr(loading, "kernel_cache", lambda: again)
    again = KernelCache(DiskCache(tmp_path / "cache"))
    device = Refusing(right)
    assert loading.load(stages, device).cubin == right and device.loads == 2
    assert loading.load(stages, device).cubin == right and device.loads == 3
    again = KernelCache(DiskCache(tmp_path / "cache"))
    assert loading.load(stages, device).cubin == right and device.loads == 4
    none = Refusing(b"another")
    again = KernelCache(None)
    with pytest.raises(LoadError, match="as the driver says"):
        loading.load(stages, none)
    assert none.loads == 1


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")
def test_a_kernel_from_the_cache_warns_as_a_fresh_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel_dsl.runtime.build import ptxas_log

    said = ptxas_log.messages("ptxas info    : (C7510) Potential Performance Loss: something is serialized")
    monkeypatch.setattr("kernel_dsl.runtime.assemble.messages", lambda log: said)
    for _ in range(2):
        monkeypatch.setattr(loading, "kernel_cache", lambda: KernelCache(DiskCache(tmp_path / "cache")))
        with pytest.warns(RuntimeWarning, match="C7510") as caught:
            loading.load(make(1.5).lower(kd.ShapeDtypeStruct((32,), kd.float32)), NoDevice())
        assert [w.filename for w in caught] == [__file__]
    assert DiskCache(tmp_path / "cache").stats().entries == 1


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")
def test_a_kernel_of_the_library_is_found_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what decides its trace, with the line of today's call; one with a function of the user's is traced."""
    from kernel_dsl.library.product_kernels.persistent_matmul import Problem, matmul_kernel
    from kernel_dsl.library.products.matmul_config import MatmulConfig

    monkeypatch.setattr("kernel_dsl.runtime.devices.devices.pick_device", lambda interpret, views: Settling())
    a = np.zeros((128, 64), kd.bfloat16.numpy)
    problem = Problem(128, 128, 64, kd.bfloat16, kd.bfloat16, kd.bfloat16, b_transposed=True)
    small = MatmulConfig(tile_m=128, tile_n=64, stages=2, epilogue_n=32)

    def fresh(config: MatmulConfig, activation: Any = None) -> Any:
        """As a process of its own would make it."""
        matmul_kernel.cache_clear()
        monkeypatch.setattr(loading, "kernel_cache", lambda: KernelCache(DiskCache(tmp_path / "cache")))
        return matmul_kernel(problem, config, 1, activation)

    def lines(kernel: Any) -> set[int]:
        return {line.line for line in kernel.lines.values() if line.file == __file__ and line.line}

    traced, found = fresh(small), fresh(small)
    first = traced._prepare((a, a), None, None).kernel
    second = found._prepare((a, a), None, None).kernel
    assert was_traced(traced) and not was_traced(found) and second.ptx == first.ptx
    assert len(lines(first)) == 1 and lines(second) == {line + 1 for line in lines(first)}
    for kernel in (fresh(replace(small, stages=3)), fresh(small, kd.exp), fresh(small, kd.exp)):
        assert kernel._prepare((a, a), None, None).kernel.ptx != first.ptx and was_traced(kernel)
