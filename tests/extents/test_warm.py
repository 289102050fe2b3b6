"""Compiling ahead: in children, into the disk cache, with their errors as ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl import ahead, loading
from kernel_dsl.errors import ShapeMismatch
from kernel_dsl.errors_dims import WarmFailed
from kernel_dsl.runtime.build.cache import KernelCache
from kernel_dsl.runtime.disk_cache import DiskCache

Spec = kd.ShapeDtypeStruct


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A disk cache of its own, and nothing in the process's."""
    monkeypatch.setenv("KERNEL_DSL_CACHE", str(tmp_path))
    monkeypatch.setattr(loading, "kernel_cache", lambda: KernelCache(DiskCache(tmp_path)))
    return tmp_path


@kd.kernel(out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], 32),), shapes={"x": (kd.Dim("M"),)})
def double(x: Any, out: Any) -> None:
    part = kd.ds(kd.program_id(0) * 32, 32)
    out[part] = x[part] * 2


def entries(folder: Path) -> set[str]:
    return {str(p) for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 1000}


def test_what_is_warm_is_found_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kd.warm([(double, Spec((64,), kd.float32)), (double, (Spec((64,), kd.float16),))], jobs=2) == 2
    made = entries(folder)
    assert len(made) == 2 and double.specialisations() == []
    assert double.warm((Spec((9000,), kd.float32),), (Spec((8,), kd.float16),)) == 2
    assert double.warm(Spec((96,), kd.float32)) == 1
    assert entries(folder) == made  # of any size
    monkeypatch.setattr("kernel_dsl.runtime.assemble.assemble", lambda *_, **__: pytest.fail("it is there"))
    found = loading.assembled(double.lower(Spec((1000,), kd.float32)))
    assert found.cubin and found.kernel.arrays[0].shape == (1000,)


def test_the_error_of_a_child_is_ours(folder: Path) -> None:
    @kd.kernel(out_type=lambda x: x)
    def wrong(x: Any, out: Any) -> None:
        out[...] = x[...] + kd.zeros((3,), kd.float32)

    with pytest.raises(ShapeMismatch) as caught:
        kd.warm([(wrong, Spec((8,), kd.float32))])
    assert caught.value.loc.file == __file__ and "kd.zeros" in str(caught.value)
    assert entries(folder) == set()


class NoMode(Exception):
    """An exception of a user's, which pickle can't make again."""

    def __init__(self, mode: str, known: list[str]) -> None:
        super().__init__(f"{mode} is none of {known}")


@pytest.mark.parametrize("given", [ValueError("no such mode"), NoMode("x", ["y"]), KeyError("q"), SystemExit(3)])
def test_an_exception_of_a_body_is_the_users(folder: Path, given: BaseException) -> None:
    """Of a body, and of a function of shapes: as `lower` raises it, with the traceback that ends at the user's line."""

    @kd.kernel(out_type=lambda x: x)
    def raises(x: Any, out: Any) -> None:
        raise given

    def no_shape(x: Any) -> Any:
        raise given

    for kernel in (raises, kd.kernel(out_type=no_shape)(lambda x, out: None)):
        for call in (kernel.warm, lambda spec, k=kernel: kd.warm([(double, spec), (k, spec)])):
            with pytest.raises(BaseException) as caught:
                call(Spec((8,), kd.float32))
            assert caught.value is given and caught.traceback[-1].path == Path(__file__)


def test_an_exception_of_a_child_alone(folder: Path) -> None:
    here = os.getpid()

    def elsewhere() -> Any:
        if os.getpid() != here:
            raise ValueError("only in a child")

    with pytest.raises(WarmFailed, match=r"ValueError\('only in a child'\)"):
        ahead._compile([elsewhere], 1)  # pyright: ignore[reportPrivateUsage]


def test_a_child_that_dies(folder: Path) -> None:
    def end() -> Any:
        os._exit(7)

    with pytest.raises(WarmFailed, match="exit status 7"):
        ahead._compile([end], 1)  # pyright: ignore[reportPrivateUsage]
    assert entries(folder) == set()


def test_without_a_disk_cache_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_DSL_CACHE", "off")
    assert kd.warm([(double, Spec((64,), kd.float32))]) == 0
