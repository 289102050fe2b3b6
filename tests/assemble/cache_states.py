"""Generated states of a cache's folder and of the folders above it, and a use of a cache in them."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

from kernel_dsl.__main__ import main
from kernel_dsl.runtime.build.cache import KernelCache
from kernel_dsl.runtime.build.marked_folder import MARKER
from kernel_dsl.runtime.disk_cache import FOLDER, DiskCache

from .test_cache import KEYS, made

ROOTED = os.geteuid() == 0

State = Callable[[Path, random.Random], None]


def user_files(folder: Path, choose: random.Random) -> None:
    """Files that look like ours, and are not."""
    for name in (
        "thesis.tex",
        "kernel.kd",
        f"{KEYS[1]}.kd",
        f"{KEYS[1]}.{'0' * 16}.part",
        "tmp/x",
        "v1/00/y.kd",
        MARKER,
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the user's")
        old = choose.choice([1.0, 1e9])
        os.utime(path, (old, old))


def bind_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def put_odd(path: Path, elsewhere: Path, choose: random.Random) -> None:
    """Something that is no regular file of ours, in a file's place."""
    if path.exists():
        path.unlink()
    kind = choose.choice(
        ["fifo", "directory", "full directory", "socket", "link", "loop", "open", "other's", "device", "huge", "empty"]
    )
    if kind == "fifo":
        os.mkfifo(path)
    elif kind in ("directory", "full directory"):
        path.mkdir()
        if kind == "full directory":
            (path / "inside").write_text("the user's")
    elif kind == "socket":
        bind_socket(path)
    elif kind in ("link", "loop"):
        path.symlink_to(elsewhere if kind == "link" else path)
    elif kind == "device" and ROOTED:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    else:
        path.write_bytes(b"")
        if kind == "open":
            path.chmod(0o666)
        if kind == "huge":
            os.truncate(path, 1 << 40)
        if kind == "other's" and ROOTED:
            os.chown(path, 12345, 12345)


def parent_state(place: Path, choose: random.Random) -> Path:
    """A folder to be named to a cache, in some state; made in `place`."""
    folder = place / "cache"
    kind = choose.choice(
        [
            "missing",
            "deep",
            "there",
            "open",
            "sticky",
            "file",
            "fifo",
            "link",
            "dangling",
            "loop",
            "in a file",
            "long",
            "nul",
        ]
    )
    if kind == "deep":
        return folder / "a" / "b"
    if kind in ("there", "open", "sticky"):
        folder.mkdir()
        user_files(folder, choose)
        folder.chmod({"there": choose.choice([0o755, 0o700, 0o775]), "open": 0o777, "sticky": 0o1777}[kind])
    elif kind == "file":
        folder.write_text("the user's")
    elif kind == "fifo":
        os.mkfifo(folder)
    elif kind == "link":
        (place / "real").mkdir()
        user_files(place / "real", choose)
        folder.symlink_to(place / "real")
    elif kind == "dangling":
        folder.symlink_to(place / "nowhere")
    elif kind == "loop":
        folder.symlink_to(folder)
    elif kind == "in a file":
        (place / "file").write_text("the user's")
        return place / "file" / "cache"
    elif kind == "long":
        return place / ("x" * choose.choice([300, 5000]))
    elif kind == "nul":
        return Path(f"{place}/a\0b")
    return folder


def own_state(folder: Path, place: Path, choose: random.Random) -> None:
    """What is where our own folder would be."""
    ours = folder / FOLDER
    kind = choose.choice(
        ["missing", "empty", "user's", "file", "fifo", "link", "open", "other's", "used", "used", "used", "used"]
    )
    if kind == "missing":
        return
    if kind == "file":
        ours.write_text("the user's")
    elif kind == "fifo":
        os.mkfifo(ours)
    elif kind == "link":
        (place / "linked").mkdir()
        user_files(place / "linked", choose)
        ours.symlink_to(place / "linked")
    elif kind in ("empty", "user's", "open"):
        ours.mkdir(mode=0o700)
        if kind == "user's":
            user_files(ours, choose)
        if kind == "open":
            ours.chmod(0o777)
    else:
        disk = DiskCache(folder)
        for number in range(4):
            disk.put(KEYS[number], made(500, number))
        if not ours.is_dir():
            return
        if kind == "other's" and ROOTED:
            os.chown(ours, 12345, 12345)
        secret = place / "secret.txt"
        secret.write_text("the user's")
        for number in range(4):
            if choose.random() < 0.5:
                put_odd(disk._path(KEYS[number]), secret, choose)
        (ours / "notes.txt").write_text("the user's")
        (ours / "sub").mkdir()
        (ours / "sub" / f"{KEYS[0]}.kd").write_text("the user's")
        marker = choose.choice(["good", "good", "good", "gone", "cut", "empty", "odd"])
        if marker == "gone":
            (ours / MARKER).unlink()
        elif marker in ("cut", "empty"):
            (ours / MARKER).write_text((ours / MARKER).read_text()[: 40 if marker == "cut" else 0])
        elif marker == "odd":
            put_odd(ours / MARKER, secret, choose)


def belongings(place: Path) -> dict[str, tuple[str, float, int]]:
    """The user's files: text, time and mode of each, and the modes of folders that were there."""
    found = {}
    for path in sorted(place.rglob("*")):
        if (
            not path.is_symlink()
            and path.is_file()
            and path.stat().st_size < 1000
            and path.read_bytes() == b"the user's"
        ):
            found[str(path)] = ("", path.stat().st_mtime, path.stat().st_mode)
    return found


def use(folder: Path) -> None:
    """All that a cache can be asked, and a command at the end. The right kernel, or none."""
    for _ in range(2):
        disk = DiskCache(folder)
        for number in range(4):
            found = disk.get(KEYS[number])
            assert found is None or found[0] in (made(500, number), made(500)), number
        usable = disk.usable()
        assert KernelCache(disk).get_or_build(KEYS[0], lambda: made(500)) in (made(500), made(500, 0))
        for number in range(4):
            disk.put(KEYS[number], made(500, number))
            found = disk.get(KEYS[number])
            assert found is None or found[0] == made(500, number)
        if usable:
            disk.put(KEYS[9], made(700))
            assert disk.get(KEYS[9]) == (made(700), ())
        disk.stats()
        disk.listing()
    assert main(["cache", "list"]) == 0
    assert main(["cache", "clear"]) == 0
    assert DiskCache(folder).stats().entries == 0
