"""The caches of assembled kernels.

What is kept, what is trusted, and what many users of one folder see.
"""

from __future__ import annotations

import importlib.metadata
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_dsl import rooms
from kernel_dsl.compiled import Assembled, Remark, Resources, SmemRegion, SourceLine
from kernel_dsl.runtime.build import cache as cache_module
from kernel_dsl.runtime.build import sources
from kernel_dsl.runtime.build.cache import KernelCache, cache_key, relocate, sources_hash
from kernel_dsl.runtime.disk_cache import DiskCache

from .kernels import axpy

KEYS = [f"{i:02x}" * 32 for i in range(64)]


def made(size: int = 100, seed: int = 0) -> Assembled:
    code = bytes((seed + i) % 251 for i in range(size))
    return Assembled(axpy(), b"\x7fELF" + code, Resources(20, 0, 0, 0, 0, 16))


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kd"))


# --- keys -----------------------------------------------------------------------------------------

BASE = {"target": "sm_90a", "options": "O(3)", "assembler": "ptxas 13.0.88"}


def test_each_part_of_the_key_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        cache_key("ir", **BASE),
        cache_key("ir2", **BASE),
        cache_key("ir", **{**BASE, "target": "sm_90"}),
        cache_key("ir", **{**BASE, "options": "O(2)"}),
        cache_key("ir", **{**BASE, "assembler": "ptxas 13.5"}),
        cache_key("irO(3)", **{**BASE, "options": ""}),  # no part runs into the next
    ]
    monkeypatch.setattr(cache_module, "_llvmlite_version", lambda: "0.0")
    keys.append(cache_key("ir", **BASE))
    monkeypatch.setattr(cache_module, "sources_hash", lambda: "other")
    keys.append(cache_key("ir", **BASE))
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 64 and int(key, 16) >= 0 for key in keys)


def test_the_key_is_the_same_in_another_process() -> None:
    code = (
        "from kernel_dsl.runtime.build.cache import cache_key;"
        "print(cache_key('ir', target='sm_90a', options='O(3)', assembler='ptxas 13.0.88'))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == cache_key("ir", **BASE)


def test_a_changed_source_of_ours_changes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("lowering/rules", "runtime/build"):
        (tmp_path / "kernel_dsl" / folder).mkdir(parents=True)
    for name in ("assemble.py", "build/ptxas_log.py", "build/occupancy.py"):
        (tmp_path / "kernel_dsl" / "runtime" / name).write_text(name)
    rule = tmp_path / "kernel_dsl" / "lowering" / "rules" / "add.py"
    rule.write_text("a = 1\n")
    monkeypatch.setattr(rooms, "HERE", str(tmp_path / "kernel_dsl"))
    monkeypatch.setattr(rooms, "folder_of", lambda part: str(tmp_path / "kernel_dsl" / part))

    def digest() -> str:
        sources.looked_at.cache_clear()  # as a new process
        return sources_hash.__wrapped__()

    try:
        before = digest()
        assert digest() == before
        rule.write_text("a = 2\n")
        assert digest() != before
    finally:
        sources.looked_at.cache_clear()


def test_the_digest_of_our_sources_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read from the folder while no file changes; what others write there is not believed."""
    folder = tmp_path / "package"
    files = [folder / "a.py", folder / "inner" / "b.py"]
    for file in (*files, folder / "kernel.txt", folder / "__pycache__" / "a.py", folder / "other" / "c.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a = 1\n")
    (folder / ".#a.py").symlink_to("nobody@nowhere")  # an editor's lock
    read: list[int] = []
    plain = sources._digest
    look = lambda: [sources._modules(str(folder), ["other"])]  # noqa: E731
    monkeypatch.setattr(sources, "_compiler_files", look)
    monkeypatch.setattr(sources, "_digest", lambda found: (read.append(len(found)), plain(found))[1])

    def digest() -> tuple[str, int]:
        read.clear()
        return sources.noted_hash(DiskCache(tmp_path / "cache"), look()), len(read)

    listed = sources._modules(str(folder), ["other"])
    assert listed.names == ["a.py", "inner/b.py"] and len(listed.numbers) == 10
    first = plain([listed])
    assert digest() == digest() == (first, 1)  # files of this very moment: another write may leave the same times
    monkeypatch.setattr(sources, "_SETTLED", -1)
    assert digest() == (first, 1) and digest() == digest() == (first, 0)
    files[1].write_text("a = 2\n")
    second, count = digest()
    assert second != first and count == 1 and digest() == (second, 0)
    os.utime(files[1], ns=(0, 0))  # as an installation of an old file: the text decides
    assert digest() == (second, 1) and digest() == (second, 0)
    note = next((tmp_path / "cache").rglob("kernel_dsl.sources"))
    assert note.stat().st_mode & 0o777 == 0o600 and len(note.read_text().splitlines()) == 3
    note.write_text(note.read_text().replace(second, first))  # its seal is of another digest
    assert digest() == (second, 1) and digest() == (second, 0)
    note.write_bytes(b"\xff" * 100)
    assert digest() == (second, 1) and digest() == (second, 0)
    assert DiskCache(tmp_path / "cache").clear() == 0 and not note.exists()


def test_another_llvmlite_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.metadata.version("llvmlite") in cache_module._llvmlite_version()
    before = cache_key("ir", **BASE)
    monkeypatch.setattr(cache_module, "_llvmlite_version", lambda: "0.0.0")
    assert cache_key("ir", **BASE) != before


# --- the folder -----------------------------------------------------------------------------------


def test_what_is_stored_comes_back_in_another_cache(tmp_path: Path) -> None:
    place = SourceLine("/home/me/a\tb.py", 3, "body")
    first = DiskCache(tmp_path / "cache")
    assert first.get(KEYS[0]) is None
    first.put(KEYS[0], made(), [place])
    second = DiskCache(tmp_path / "cache")
    assert second.get(KEYS[0]) == (made(), (place,))
    assert second.get(KEYS[1]) is None
    assert (second.counters.hits, second.counters.misses) == (1, 1)
    stats = second.stats()
    assert stats.entries == 1
    assert stats.bytes == entries(tmp_path)[0].stat().st_size
    assert second.clear() == 1
    assert second.stats().entries == 0
    assert second.get(KEYS[0]) is None


def test_folder_and_files_are_the_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        DiskCache(tmp_path / "cache").put(KEYS[0], made())
    finally:
        os.umask(old)
    for path in (tmp_path / "cache").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, caplog) -> None:
    DiskCache(tmp_path / "cache").put(KEYS[0], made())
    (tmp_path / "cache").chmod(0o777)
    open_to_all = DiskCache(tmp_path / "cache")
    assert open_to_all.get(KEYS[0]) is None
    open_to_all.put(KEYS[1], made())
    assert len(entries(tmp_path)) == 1
    assert "others can write" in caplog.text


def test_a_file_that_others_can_write_to_is_not_read(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEYS[0], made())
    entries(tmp_path)[0].chmod(0o666)
    assert disk.get(KEYS[0]) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEYS[0], made())
    path = entries(tmp_path)[0]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert disk.get(KEYS[0]) is None


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "other key"])
def test_a_damaged_entry_is_removed_and_built_again(tmp_path: Path, damage: str) -> None:
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEYS[0], made())
    path = entries(tmp_path)[0]
    data = path.read_bytes()
    if damage == "other key":
        disk.put(KEYS[1], made(seed=9))
        other = next(p for p in entries(tmp_path) if p != path)
        path.write_bytes(other.read_bytes())
    else:
        flipped = bytearray(data)
        flipped[-5] ^= 1
        path.write_bytes({"cut": data[:-9], "flip": bytes(flipped), "empty": b"", "text": b"#!"}[damage])
    built: list[int] = []

    def build() -> Assembled:
        built.append(1)
        return made()

    kernels = KernelCache(disk)
    assert kernels.get_or_build(KEYS[0], build) == made()
    assert built == [1]
    assert disk.counters.corrupt == 1
    assert DiskCache(tmp_path / "cache").get(KEYS[0]) == (made(), ())


def test_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    probe = DiskCache(tmp_path / "probe")
    probe.put(KEYS[0], made(20_000))
    size = probe.stats().bytes
    disk = DiskCache(tmp_path / "cache", max_bytes=5 * size + size // 2)
    now = time.time()
    for i in range(5):
        disk.put(KEYS[i], made(20_000))
        os.utime(disk._path(KEYS[i]), (now - 100 + i, now - 100 + i))
    assert disk.get(KEYS[0]) is not None  # used now: entry 1 is the oldest
    disk.put(KEYS[5], made(20_000))
    kept = {i for i in range(6) if disk.get(KEYS[i]) is not None}
    assert 0 in kept and 5 in kept and 1 not in kept and 2 not in kept
    assert disk.stats().bytes <= disk.max_bytes
    assert disk.counters.evicted == 6 - len(kept)


def test_an_entry_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path / "cache", max_bytes=10_000)
    disk.put(KEYS[0], made(20_000))
    assert disk.stats().entries == 0


def test_a_disk_that_cannot_be_written_is_no_error(tmp_path: Path, caplog) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEYS[0], made())
    assert disk.get(KEYS[0]) is None
    assert disk.stats().entries == 0
    assert disk.clear() == 0
    assert caplog.text.count("no disk cache") == 1


def test_leftovers_of_a_dead_writer_are_swept(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEYS[0], made())
    ours = entries(tmp_path)[0].parent
    left, fresh = (ours / f"{KEYS[0]}.{digit * 16}.part" for digit in "12")
    for path in (left, fresh):
        path.write_bytes(b"half")
    os.utime(left, (0, 0))
    DiskCache(tmp_path / "cache").put(KEYS[1], made())
    assert not left.exists() and fresh.exists()


WORKER = """
import random, sys
from pathlib import Path
from kernel_dsl.runtime.disk_cache import DiskCache
from tests.assemble.test_cache import KEYS, made
folder, seed, cap = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
disk = DiskCache(folder, max_bytes=cap)
for _ in range(150):
    i = random.randrange(12)
    found = disk.get(KEYS[i])
    if found is None:
        disk.put(KEYS[i], made(30_000, i))
    else:
        assert found[0] == made(30_000, i), i
assert disk.counters.corrupt == 0, disk.counters
assert disk.usable(), disk._trouble
print(disk.counters.hits)
"""


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_many_processes_share_a_folder_that_is_too_small_for_them(processes: int, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    folder, cap = tmp_path / "cache", 6 * 34_000
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder), str(seed), str(cap)],
            cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for seed in range(processes)
    ]  # fmt: skip
    for worker in workers:
        out, err = worker.communicate(timeout=300)
        assert worker.returncode == 0, err
        assert int(out) > 0
    assert not list(folder.rglob("*.part"))


# --- memory ---------------------------------------------------------------------------------------


def test_memory_comes_before_disk_and_disk_before_building(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path / "cache")
    built: list[str] = []

    def build() -> Assembled:
        built.append("built")
        return made()

    first = KernelCache(disk)
    one = first.get_or_build(KEYS[0], build)
    assert first.get_or_build(KEYS[0], build) is one
    assert KernelCache(DiskCache(tmp_path / "cache")).get_or_build(KEYS[0], build) == one
    assert built == ["built"]
    assert KernelCache(None).get_or_build(KEYS[0], build) == one
    assert built == ["built", "built"]


def test_threads_that_want_one_kernel_build_it_once() -> None:
    kernels, built, results = KernelCache(), [], []
    start = threading.Barrier(8)

    def build() -> Assembled:
        built.append(1)
        time.sleep(0.05)
        return made()

    def work() -> None:
        start.wait()
        results.append(kernels.get_or_build(KEYS[0], build))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert len(results) == 8 and all(r is results[0] for r in results)


def test_a_failed_build_is_passed_on_and_tried_again() -> None:
    kernels = KernelCache()

    def fail() -> Assembled:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kernels.get_or_build(KEYS[0], fail)
    assert kernels.get_or_build(KEYS[0], made) == made()
    assert not kernels._building


def test_memory_is_bounded() -> None:
    kernels = KernelCache(capacity=3)
    for key in KEYS[:3]:
        kernels.get_or_build(key, made)
    kernels.get_or_build(KEYS[0], made)
    kernels.get_or_build(KEYS[3], made)
    assert len(kernels) == 3
    misses = kernels.counters.misses
    kernels.get_or_build(KEYS[0], made)  # used last, so still there
    assert kernels.counters.misses == misses
    kernels.get_or_build(KEYS[1], made)
    assert kernels.counters.misses == misses + 1


# --- lines ----------------------------------------------------------------------------------------


def at(line: int, file: str = "/home/me/model.py") -> SourceLine:
    return SourceLine(file, line, "axpy")


def test_a_kernel_from_the_cache_speaks_of_the_lines_of_today(tmp_path: Path) -> None:
    kernel = axpy()
    kernel = replace(
        kernel,
        lines={5: at(12), 7: at(13), 9: at(99)},
        source=at(10),
        names=replace(kernel.names, smem=(SmemRegion("t", 0, 4, (1,), None, line=at(12)),)),
    )
    stored = replace(made(), kernel=kernel, remarks=(Remark("C7510", "info", at(13)),))
    old, new = (at(10), at(12), at(12), at(13)), (at(20), at(22), at(23), at(24))
    KernelCache(DiskCache(tmp_path / "cache")).get_or_build(KEYS[0], lambda: stored, old)

    def never() -> Assembled:
        raise AssertionError("built again")

    kernels = KernelCache(DiskCache(tmp_path / "cache"))
    for _ in range(2):  # from disk, then from memory
        found = kernels.get_or_build(KEYS[0], never, new)
        assert found.kernel.source == at(20)
        assert found.kernel.lines == {5: at(22), 7: at(24), 9: at(99)}
        assert found.kernel.names.smem[0].line == at(22)
        assert found.remarks[0].line == at(24)
    assert kernels.get_or_build(KEYS[0], never, old) == stored


def test_places_that_do_not_match_leave_the_kernel_alone() -> None:
    assert relocate(made(), (at(1),), (at(2), at(3))) == made()
