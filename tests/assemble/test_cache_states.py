"""Folders in any state: a cache in them works, or is off with one line; nothing of the user's is touched, nothing hangs."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import loading, options
from kernel_dsl.__main__ import main
from kernel_dsl.runtime.build import marked_folder
from kernel_dsl.runtime.build.marked_folder import MARKER, OpenFolder
from kernel_dsl.runtime.disk_cache import FOLDER, DiskCache
from tests.conftest import ROOT

from .cache_states import ROOTED, belongings, own_state, parent_state, use, user_files
from .test_cache import KEYS, entries, made

pytestmark = pytest.mark.usefixtures("nothing_hangs")
NOBODY = 54321  # a user that has no name


# --- generated states -----------------------------------------------------------------------------


def try_states(place: Path, seeds: range, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> int:
    """How many of the states had a cache that works."""
    # A cache pauses before it looks again, as another process may be removing the folder: here there is none.
    monkeypatch.setattr(marked_folder, "_PAUSE", 0)
    working = 0
    for seed in seeds:
        choose = random.Random(seed)
        here = place / str(seed)
        here.mkdir()
        folder = parent_state(here, choose)
        there = os.path.isdir(folder)
        if there:
            own_state(folder, here, choose)
        mode = folder.stat().st_mode if there else None
        before = belongings(here)
        caplog.clear()
        monkeypatch.setattr(
            "kernel_dsl.__main__.environment", lambda folder=folder: options.Environment(folder, False, None, None)
        )
        use(folder)
        assert belongings(here) == before, seed
        if mode is not None:
            assert folder.stat().st_mode == mode, seed
        for told in ("no disk cache", "keeps no more"):
            # `use` makes four caches, of which one is only looked at
            assert sum(told in record.message for record in caplog.records) <= 3, (seed, caplog.text)
        working += os.path.isfile(folder / FOLDER / MARKER)
    return working


def test_caches_in_folders_of_any_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert try_states(tmp_path, range(70), monkeypatch, caplog) > 8


@pytest.mark.slow
@pytest.mark.parametrize("first", range(150, 5000, 485))
def test_caches_in_folders_of_many_states(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert try_states(tmp_path, range(first, first + 485), monkeypatch, caplog) > 50


# --- the user's folder ----------------------------------------------------------------------------


def test_a_folder_of_the_users_gets_one_folder_of_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    user_files(tmp_path, random.Random(0))
    before = belongings(tmp_path), {p.name for p in tmp_path.iterdir()}
    disk = DiskCache(tmp_path)
    disk.put(KEYS[0], made())
    assert disk.get(KEYS[0]) == (made(), ())
    assert {p.name for p in tmp_path.iterdir()} - before[1] == {FOLDER}
    assert disk.clear() == 1
    assert belongings(tmp_path) == before[0] and tmp_path.stat().st_mode & 0o777 == 0o755
    assert [p.name for p in (tmp_path / FOLDER).iterdir()] == [MARKER]


def test_looking_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNEL_DSL_CACHE", str(tmp_path / "cache"))
    for action in ("show", "list", "clear"):
        assert main(["cache", action]) == 0
    assert "removed 0 kernels" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_sticky_folder_of_all_users_is_used_and_another_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o1777)
    assert DiskCache(tmp_path).usable()
    tmp_path.chmod(0o777)
    assert not DiskCache(tmp_path).usable()
    assert "others can write" in caplog.text


def test_a_folder_put_in_the_place_of_ours_is_not_taken(tmp_path: Path) -> None:
    """Between two uses: what is looked at is what is used."""
    disk = DiskCache(tmp_path)
    disk.put(KEYS[0], made())
    ours = tmp_path / FOLDER
    ours.rename(tmp_path / "aside")
    ours.symlink_to(tmp_path / "aside")
    assert disk.get(KEYS[0]) is None and disk.clear() == 0
    ours.unlink()
    (tmp_path / "aside").rename(ours)
    assert disk.get(KEYS[0]) is not None
    ours.chmod(0o770)
    assert disk.get(KEYS[0]) is None


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = DiskCache(tmp_path / "cache")
    for victim in (tmp_path / "cache", tmp_path / "cache" / FOLDER):
        disk.put(KEYS[0], made())
        subprocess.run(["rm", "-rf", victim], check=True)
        assert disk.get(KEYS[0]) is None
        disk.put(KEYS[1], made())
        assert disk.get(KEYS[1]) == (made(), ())
    (tmp_path / "cache" / FOLDER / MARKER).unlink()
    (tmp_path / "cache" / FOLDER / "notes.txt").write_text("the user's")
    disk.put(KEYS[2], made())  # it may be anybody's now
    assert disk.get(KEYS[2]) is None and len(entries(tmp_path)) == 1
    assert not DiskCache(tmp_path / "cache").usable() and "holds files and no" in caplog.text
    (tmp_path / "cache" / FOLDER / "notes.txt").unlink()
    disk.put(KEYS[2], made())
    assert disk.get(KEYS[2]) == (made(), ())
    assert disk.get(KEYS[1]) is None  # sealed by the secret that is gone


# --- disks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["ENOSPC", "EDQUOT", "EROFS", "EIO", "EACCES", "EMFILE"])
def test_a_disk_that_takes_no_more_still_gives(
    tmp_path: Path, number: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import errno

    disk = DiskCache(tmp_path)
    disk.put(KEYS[0], made())

    def full(self: OpenFolder, name: str, data: bytes, settled: bool = False) -> None:
        raise OSError(getattr(errno, number), "as the test says")

    monkeypatch.setattr(OpenFolder, "_fill", full)
    for key in KEYS[1:5]:
        disk.put(key, made())
    assert disk.get(KEYS[0]) == (made(), ()) and not disk.usable()
    assert caplog.text.count("keeps no more kernels") == 1
    assert not list(tmp_path.rglob("*.part"))


SMALL = """
import resource, signal, sys
from kernel_dsl.runtime.disk_cache import DiskCache
from tests.assemble.test_cache import KEYS, made
disk = DiskCache(sys.argv[1])
disk.put(KEYS[0], made(500))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
for key in KEYS[1:4]:
    disk.put(key, made(50_000))
assert disk.get(KEYS[0]) == (made(500), ())
assert disk.stats().entries == 1, disk.stats()
"""


def run(script: str, *arguments: str, **more: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more.pop("env", {})}  # type: ignore[dict-item]
    line = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def test_files_cannot_grow(tmp_path: Path) -> None:
    assert run(SMALL, str(tmp_path)).count("the disk is full") == 1


@pytest.fixture
def nobodys(tmp_path: Path) -> Path:
    """A folder of a user without a name."""
    if not ROOTED:
        pytest.skip("needs to become another user")
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    os.chown(folder, NOBODY, NOBODY)
    for above in folder.parents:
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    return folder


def as_nobody(act: Callable[[], None], folder: Path) -> str:
    """What `act` logs and says as that user, in a child that has imported all there is. Raises what it raises."""
    said = folder.parent / "said"
    said.write_text("")
    said.chmod(0o666)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            signal.alarm(100)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.chdir(folder)
            sys.stdout = sys.stderr = said.open("a")
            logging.getLogger("kernel_dsl").addHandler(logging.StreamHandler(sys.stderr))
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said.read_text()[-3000:]
    return said.read_text()


def test_a_folder_that_is_read_only(nobodys: Path) -> None:
    def act() -> None:
        disk = DiskCache(nobodys)
        disk.put(KEYS[0], made())
        assert disk.usable()
        for path in (nobodys / FOLDER, nobodys):
            path.chmod(0o500)
        other = DiskCache(nobodys)
        assert other.get(KEYS[0]) == (made(), ()), "what is there is read"
        assert not other.usable()
        other.put(KEYS[1], made())
        assert other.get(KEYS[1]) is None and other.get(KEYS[0]) is not None
        missing = DiskCache(nobodys / "inside")
        missing.put(KEYS[0], made())
        assert missing.get(KEYS[0]) is None and not missing.usable()

    assert as_nobody(act, nobodys).count("no disk cache") == 1


@pytest.mark.parametrize(
    "given",
    [{}, {"HOME": "/nonexistent"}, {"HOME": "/proc/1"}, {"HOME": "/etc"}, {"HOME": "\udcff"}, {"KERNEL_DSL_CACHE": "~nosuchuser/x"},
     {"KERNEL_DSL_CACHE": "/dev/null/x"}, {"KERNEL_DSL_CACHE": "/etc/x"}, {"KERNEL_DSL_CACHE": "x" * 9000}],
    ids=lambda given: str(given)[:60],
)  # fmt: skip
def test_a_user_without_a_home_or_a_name(nobodys: Path, given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    k = kd.kernel(lambda x, o: o.__setitem__(..., x[...] * 2), out_type=lambda x: x)
    x = np.ones(64, np.float32)
    monkeypatch.setenv("KERNEL_DSL_CACHE", "off")
    main(["doctor"])  # imports what there is
    for name in ("HOME", "KERNEL_DSL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    def act() -> None:
        loading.kernel_cache.cache_clear()
        assert (k(x, interpret=True) == 2).all()
        assert k.lower(x, target="sm_90a").ptx
        disk = loading.kernel_cache().disk
        for key in KEYS[:3]:
            disk.put(key, made())
            assert disk.get(key) is None
        assert [main(["cache", action]) for action in ("show", "list", "clear")] == [0, 0, 0]
        main(["doctor"])

    said = as_nobody(act, nobodys)
    assert sum(line.startswith("no disk cache: ") for line in said.splitlines()) == 2, (
        said
    )  # the process' own, and the doctor's
    assert not list(nobodys.iterdir())


def test_the_default_is_not_in_the_home_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNEL_DSL_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert options.environment().cache_dir == tmp_path / ".cache" / "kernel_dsl"
    if ROOTED:
        os.chown(tmp_path, 12345, 12345)
        assert options.environment().cache_dir is None


def test_relative_folders_and_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disk = DiskCache("cache")
    assert disk.directory == tmp_path / "cache"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    disk.put(KEYS[0], made())
    assert len(entries(tmp_path / "cache")) == 1
    (tmp_path / "gone").rmdir()
    lost = DiskCache("cache")
    lost.put(KEYS[0], made())
    assert lost.get(KEYS[0]) is None and not lost.usable() and lost.clear() == 0


def test_messages_go_to_our_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").write_text("")
    DiskCache(tmp_path / "cache").usable()
    assert [(r.name, r.levelno) for r in caplog.records] == [("kernel_dsl", logging.WARNING)]
