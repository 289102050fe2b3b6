"""Entries and files whose checksum is right and whose content is hostile: refused in words, and made again."""

from __future__ import annotations

import ast
import functools
import logging
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_dsl.compiled import Assembled, OutputSpec, Resources
from kernel_dsl.runtime.assemble import assemble, find_ptxas
from kernel_dsl.runtime.build import elf
from kernel_dsl.runtime.build.aot import load_compiled, save
from kernel_dsl.runtime.build.cache import KernelCache
from kernel_dsl.runtime.build.marked_folder import MARKER
from kernel_dsl.runtime.disk_cache import DiskCache
from kernel_dsl.runtime.errors import ArgumentTypeError
from kernel_dsl.serialize import UNSEALED, ArtifactError, pack, seal, unpack
from kernel_dsl.well_formed import problem
from tests.conftest import ROOT
from tests.kernels import CASES, lowered

from . import hostile
from .kernels import axpy

KEY = "0123456789abcdef" * 4
KERNELS = ("copies", "matmul", "branches", "semaphores", "softmax", "debugging")


@functools.cache
def real() -> list[Assembled]:
    """Kernels with every kind of parameter, with machine code where there is an assembler."""
    found = [axpy(), *(lowered(name).kernel for name in KERNELS)]
    if find_ptxas() is not None:
        return [assemble(kernel) for kernel in found]
    return [Assembled(kernel, b"", Resources(20, 0, 0, 0, 0, 16)) for kernel in found]


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_the_compiler_makes_is_well_formed(name: str) -> None:
    kernel = lowered(name).kernel
    assert problem(kernel) == ""
    assert unpack(pack(kernel))[0] == kernel


def look_at(data: bytes) -> str:
    """What becomes of a file: "refused", "ill-formed" or "a kernel". Anything else is raised."""
    started = time.process_time()
    try:
        value, meta = unpack(data)
        assert type(meta) is dict
        result = "ill-formed" if problem(value) else "a kernel"
        assert str(value.kernel if isinstance(value, Assembled) else value)
    except ArtifactError as error:
        assert len(str(error)) < 2000
        result = "refused"
    assert time.process_time() - started < 5
    return result


def alter_and_look(seed: int, count: int) -> dict[str, int]:
    choose, seen = random.Random(seed), dict[str, int]()
    packed = [pack(kernel, {"seal": UNSEALED, "key": KEY, "places": ""}) for kernel in real()]
    assert {look_at(data) for data in packed} == {"a kernel"}
    for _ in range(count):
        kind, data = hostile.altered(choose.choice(packed), choose)
        result = look_at(data)
        seen[f"{kind} {result}"] = seen.get(f"{kind} {result}", 0) + 1
    return seen


def test_altered_files_are_refused_in_words() -> None:
    seen = alter_and_look(seed=1, count=1200)
    assert seen["value refused"] > 100 and seen["value ill-formed"] > 10
    # A name, a line or a flag may be any other of its type; nothing else passes.
    assert sum(n for what, n in seen.items() if what.endswith("a kernel")) < 1200 / 3, seen
    assert not any(what in seen for what in ("short a kernel", "lengths a kernel", "magic a kernel", "text a kernel"))


@pytest.mark.slow
def test_many_altered_files_are_refused_in_words() -> None:
    for seed in range(2, 30):
        alter_and_look(seed, count=2000)


@pytest.mark.parametrize("sealed", [False, True], ids=["by others", "by ourselves"])
def test_altered_entries_are_removed_and_made_again(
    tmp_path: Path, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`sealed`: as an older version of ours, or a bug, would have stored them; else nobody could."""
    caplog.set_level(logging.CRITICAL)
    choose = random.Random(5)
    disk = DiskCache(tmp_path)
    disk.put(KEY, real()[0])
    path = disk._path(KEY)
    stored = path.read_bytes()
    secret = bytes.fromhex((path.parent / MARKER).read_text().split()[-1])
    good = 0
    for _ in range(250):
        source = stored if choose.random() < 0.6 else pack(choose.choice(real()), unpack(stored)[1])
        _, data = hostile.altered(source, choose)
        if sealed and len(data) > 200:
            data = seal(data, secret)
        if data == stored:  # two equal values changed places
            continue
        path.write_bytes(data)
        before = disk.counters.corrupt
        found = disk.get(KEY)
        if found is None:
            assert disk.counters.corrupt == before + 1 and not path.exists()
            built = KernelCache(disk).get_or_build(KEY, lambda: real()[0])
            assert built is real()[0] and path.read_bytes() == stored
        else:
            good += 1
            assert isinstance(found[0], Assembled) and problem(found[0]) == ""
    assert sealed or not good
    assert disk.usable()


def test_another_kernel_under_the_key_is_not_taken(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path)
    other = "f" * 64
    disk.put(KEY, real()[0])
    disk.put(other, real()[1])
    header, ptx, cubin = hostile.parts(disk._path(other).read_bytes())
    header["meta"]["key"] = KEY
    disk._path(KEY).write_bytes(hostile.file(header, ptx, cubin))
    assert disk.get(KEY) is None
    disk._path(other).rename(disk._path(KEY))
    assert disk.get(KEY) is None


def test_an_entry_of_another_folder_is_not_taken(tmp_path: Path) -> None:
    one, other = DiskCache(tmp_path / "one"), DiskCache(tmp_path / "other")
    for disk in (one, other):
        disk.put(KEY, real()[0])
    one._path(KEY).write_bytes(other._path(KEY).read_bytes())
    assert one.get(KEY) is None and one.counters.corrupt == 1


@pytest.mark.parametrize(
    "key", ["../../escape", "/etc/passwd", "a\0b", "", ".", "k" * 5000, "\ud800", "KEY" + "0" * 61, "\n"]
)
def test_a_key_is_never_a_path(tmp_path: Path, key: str) -> None:
    disk = DiskCache(tmp_path / "cache")
    disk.put(key, real()[0])
    assert disk.get(key) == (real()[0], ()) or key == "\ud800"
    assert [p.name for p in tmp_path.iterdir()] == ["cache"]
    names = {p.name for p in disk._path(key).parent.iterdir()}
    assert MARKER in names and all(len(name) == 67 for name in names - {MARKER})
    assert disk.clear() == len(names) - 1


def test_files_that_tell_of_other_kernels_than_can_be_launched(tmp_path: Path) -> None:
    good = axpy()
    for wrong in (
        {"target": "sm_1"}, {"entry": "other"}, {"entry": "a b"}, {"entry": ""}, {"inputs": 3}, {"inputs": -1}, {"params": good.params[:2]},
        {"outputs": ()}, {"outputs": (OutputSpec((1025,), good.outputs[0].dtype),)}, {"overlaps": ((0, 2),)}, {"output_tree": 1},
        {"output_tree": (0, "x")}, {"max_registers": 1000}, {"launch": replace(good.launch, grid=(0, 1, 1))},
        {"launch": replace(good.launch, block=(2048, 1, 1))}, {"launch": replace(good.launch, cluster=(0, 1, 1))},
        {"launch": replace(good.launch, dynamic_smem=-1)}, {"arrays": (replace(good.arrays[0], shape=(-1,)), good.arrays[1])},
        {"outputs": (replace(good.outputs[0], alias=1),)}, {"arrays": (replace(good.arrays[0], alignment=3), good.arrays[1])},
        {"arrays": (replace(good.arrays[0], shape=(2**40, 2**40)), good.arrays[1])}, {"lines": {0: next(iter(good.lines.values()))}},
    ):  # fmt: skip
        save(replace(good, **wrong), tmp_path / "k")
        with pytest.raises(ArtifactError, match="holds no kernel that can be launched: "):
            load_compiled(tmp_path / "k")
    save(Assembled(good, good.ptx.encode(), Resources(1, 0, 0, 0, 0, 1)), tmp_path / "k")
    with pytest.raises(ArtifactError, match="machine code is none"):
        load_compiled(tmp_path / "k")


def test_nothing_that_reads_files_can_run_what_is_in_them() -> None:
    """No pickle, marshal or eval anywhere near."""
    for name in (
        "kernel_dsl/serialize.py",
        "kernel_dsl/well_formed.py",
        "runtime/disk_cache.py",
        "runtime/build/aot.py",
        "runtime/build/cache.py",
    ):
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            named = {a.name for a in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            called = {node.func.id} if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else set()
            assert not (named | called) & {"pickle", "marshal", "shelve", "eval", "exec", "__import__", "compile"}, name


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")
def test_machine_code_that_was_cut_or_altered_is_seen_before_the_driver_has_it() -> None:
    choose = random.Random(3)
    for cubin in (kernel.cubin for kernel in real()):
        assert elf.problem(cubin) == ""
        for length in [*range(0, 200, 3), *(choose.randrange(len(cubin)) for _ in range(60)), len(cubin) - 1]:
            assert elf.problem(cubin[:length])
        for _ in range(300):  # of any bytes: words, or nothing where what changed is no place of the file
            data = bytearray(cubin)
            for _ in range(4):
                data[choose.randrange(64) if choose.random() < 0.7 else choose.randrange(len(data))] = choose.randrange(
                    256
                )
            assert isinstance(elf.problem(bytes(data)), str)


def test_paths_that_hold_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, words in {"fifo": "it is no file", "empty": "does not begin with", "huge": "bytes"}.items():
        with pytest.raises(ArtifactError, match=rf"{name} cannot be loaded: .*{words}"):
            load_compiled(tmp_path / name)
    for place in (tmp_path / "nothing", tmp_path / "loop", tmp_path / "empty" / "x", tmp_path / ("x" * 300), tmp_path):
        with pytest.raises((OSError, ArtifactError)):
            load_compiled(place)
    for odd in (None, 3.5, b"a\0b", "a\0b", object(), ["x"]):
        with pytest.raises(ArgumentTypeError, match="takes the path of a file"):
            load_compiled(odd)  # type: ignore[arg-type]
    if os.path.exists("/dev/zero"):
        with pytest.raises(ArtifactError, match="it is no file"):
            load_compiled("/dev/zero")
