"""One folder of the disk cache, used and cleared by many processes and threads at once, and when interrupted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernel_dsl.runtime.disk_cache import DiskCache
from tests.conftest import ROOT

from .test_cache import KEYS, made

pytestmark = pytest.mark.usefixtures("nothing_hangs")

WRITER = """
import json, logging, random, sys
from kernel_dsl.runtime.disk_cache import DiskCache
from tests.assemble.test_cache import KEYS, made
logging.basicConfig(level=logging.WARNING)
random.seed(int(sys.argv[2]))
disk = DiskCache(sys.argv[1])
disk.put(KEYS[0], made(3000, 0))  # the last one to begin may find every entry
for _ in range(400):
    i = random.randrange(12)
    found = disk.get(KEYS[i])
    if found is None:
        disk.put(KEYS[i], made(3000, i))
    else:
        assert found[0] == made(3000, i), i
assert disk._usable and disk._keeps, disk.counters
# An entry may come into a folder that was removed and made again meanwhile: it has the seal of the one before.
assert not disk.counters.corrupt or sys.argv[3] == "remove", disk.counters
print(json.dumps([disk.counters.hits, disk.counters.stored]))
"""

CLEARER = """
import random, shutil, sys, time
from pathlib import Path
from kernel_dsl.runtime.disk_cache import DiskCache
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    DiskCache(sys.argv[1]).clear()
    if sys.argv[3] == "remove":
        shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(random.random() / 50)
"""


@pytest.mark.parametrize(
    "how", ["remove", pytest.param("clear", marks=pytest.mark.slow)]
)  # one that removes clears first
def test_some_clear_while_others_write(tmp_path: Path, how: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(*words: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-c", *words]
        return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    folder, stop = str(tmp_path / "cache"), tmp_path / "stop"
    clearer = start(CLEARER, folder, str(stop), how)
    try:
        assert clearer.stdout is not None and clearer.stdout.readline() == "ready\n"
        writers = [start(WRITER, folder, str(seed), how) for seed in range(3)]
        said = [writer.communicate(timeout=300) for writer in writers]
    finally:
        stop.touch()
        _, err = clearer.communicate(timeout=300)
    assert clearer.returncode == 0, err
    for writer, (out, err) in zip(writers, said, strict=True):
        assert writer.returncode == 0, err
        assert "WARNING" not in err.replace("WARNING:kernel_dsl:removing cache entry", ""), err
        assert json.loads(out)[1] > 0
    DiskCache(folder).clear()
    assert not list(tmp_path.rglob("*.kd"))


def test_threads_of_one_cache(tmp_path: Path) -> None:
    disk, wrong = DiskCache(tmp_path, max_bytes=40_000), []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(40):
            number = choose.randrange(8)
            act = choose.randrange(10)
            if act == 0:
                disk.clear()
            elif act < 5:
                disk.put(KEYS[number], made(3000, number))
            else:
                found = disk.get(KEYS[number])
                if found is not None and found[0] != made(3000, number):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and not disk.counters.corrupt and disk.usable()
    assert disk.stats().bytes <= disk.max_bytes + 8 * 10_000


def test_a_signal_while_an_entry_is_written_leaves_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskCache(tmp_path)
    disk.put(KEYS[0], made())
    replace = os.replace

    def interrupted(*args: object, **more: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        disk.put(KEYS[1], made())
    monkeypatch.setattr(os, "replace", replace)
    assert not list(tmp_path.rglob("*.part"))
    disk.put(KEYS[1], made())
    assert disk.get(KEYS[1]) is not None
