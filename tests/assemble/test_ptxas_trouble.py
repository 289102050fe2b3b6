"""A ptxas that hangs, is killed, says nonsense or is another program: an error that says so, in time, and nothing left running."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import kernel_dsl as kd
from kernel_dsl.__main__ import main
from kernel_dsl.runtime import assemble as module
from kernel_dsl.runtime.assemble import AssemblerOptions, assemble, assembler_identity, find_ptxas
from kernel_dsl.runtime.build import tools
from kernel_dsl.runtime.build.problems import AssemblerError, ToolFailed, ToolMissing
from kernel_dsl.runtime.build.sass import sass
from tests.conftest import ROOT

from .kernels import axpy

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")


@pytest.fixture(autouse=True)
def forget() -> None:
    for known in (tools.find, tools.version, tools.identity):
        known.cache_clear()


def program(folder: Path, text: str, name: str = "ptxas") -> Path:
    """A script in the assembler's place."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


# What a program in ptxas' place may do, and what is said of it.
SCRIPTS = {
    "hangs": ("#!/bin/sh\nsleep 1000\n", "had not ended after 1 seconds, and was stopped"),
    "hangs and holds its pipes": ("#!/bin/sh\nsleep 1000 &\nsleep 1000\n", "had not ended after 1 seconds"),
    "ends and leaves another at its pipes": ("#!/bin/sh\nsleep 1000 &\n", "had not ended after 1 seconds"),
    "never reads": ("#!/bin/sh\nexec sleep 1000 </dev/null\n", "had not ended after 1 seconds"),
    "ignores signals": ("#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 1; done\n", "had not ended after 1 seconds"),
    "is killed": ("#!/bin/sh\nkill -9 $$\n", "was ended by SIGKILL, for example because memory ran out"),
    "crashes": ("#!/bin/sh\nkill -SEGV $$\n", "was ended by SIGSEGV"),
    "says nonsense": ("#!/bin/sh\necho hello\n", r"no ptxas that works: what it made is no machine code, as its 6 bytes begin with b'hello\\n'"),
    "says nothing": ("#!/bin/sh\nexit 0\n", "its 0 bytes begin with b''"),
    "fails": ("#!/bin/sh\nexit 3\n", "status 3"),
    "fails with words": ("#!/bin/sh\necho 'no such thing' >&2\nexit 1\n", "no such thing"),
    "gives the text back": ("#!/bin/sh\ncat\n", "no machine code"),
    "says too much": ("#!/bin/sh\nexec cat /dev/zero\n", "said more than 256 MiB|had not ended"),
    "says too much of it": ("#!/bin/sh\nexec cat /dev/zero >&2\n", "said more than 256 MiB|had not ended"),
    "closes its output": ("#!/bin/sh\nexec >&- 2>&-\ncat >/dev/null\n", "its 0 bytes"),
    "has no interpreter": ("#!/nowhere/sh\n", "cannot be run"),
    "is no program": ("\x7fELF but not really", "cannot be run"),
    "is empty": ("", "cannot be run"),
}  # fmt: skip


@pytest.mark.parametrize("what", SCRIPTS)
def test_what_is_wrong_with_a_ptxas_is_said(tmp_path: Path, what: str) -> None:
    text, words = SCRIPTS[what]
    path = program(tmp_path, text)
    seconds = 0.6 if "had not ended" in words else 60  # told as 1; to start a shell takes longer on a busy machine
    with pytest.raises((ToolFailed, AssemblerError), match=words) as caught:
        assemble(axpy(), options=AssemblerOptions(ptxas=str(path), seconds=seconds))
    assert str(path) in str(caught.value) and "'axpy'" in str(caught.value) and isinstance(caught.value, kd.Error)
    if isinstance(caught.value, ToolFailed):
        assert "KERNEL_DSL_PTXAS" in str(caught.value)


@pytest.mark.parametrize("what", ["hangs and holds its pipes", "ignores signals"])
def test_nothing_is_left_running(tmp_path: Path, what: str) -> None:
    mark = f"{time.time_ns() % 10**6}.25"
    path = program(tmp_path, SCRIPTS[what][0].replace("1000", mark).replace("sleep 1;", f"sleep {mark};"))
    with pytest.raises(ToolFailed):
        assemble(axpy(), options=AssemblerOptions(ptxas=str(path), seconds=0.5))
    for _ in range(100):  # what was killed goes in its own time on a busy machine
        left = [words for words in running() if f"sleep\0{mark}".encode() in words]
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"left running: {left}")


def running() -> list[bytes]:
    """The command lines of all processes. Some may end meanwhile."""
    found: list[bytes] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


@pytest.mark.parametrize(
    "place",
    ["/nowhere/ptxas", "/", "/dev/null", "/dev/zero", "/proc/self/mem", "a\0b", "x" * 300, "/" + "x/" * 3000, "~nosuch/ptxas", "\udcff", "relative/ptxas", "/usr/../etc/passwd"],
    ids=lambda place: ascii(place)[:30],
)  # fmt: skip
def test_a_place_where_there_is_no_ptxas(tmp_path: Path, place: str) -> None:
    for _ in range(2):  # also from what is known of it
        with pytest.raises(ToolMissing, match="where the options say it is"):
            assemble(axpy(), options=AssemblerOptions(ptxas=place))


def test_odd_files_are_no_ptxas(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder" / "ptxas").mkdir(parents=True)
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    for name in ("fifo", "loop", "folder", "folder/ptxas", "plain"):
        with pytest.raises(ToolMissing):
            find_ptxas(AssemblerOptions(ptxas=str(tmp_path / name)))


def test_the_environment_may_name_what_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the public calls, at the user's line."""
    double = kd.kernel(lambda x, o: o.__setitem__(..., x[...] * 2), out_type=lambda x: x)
    stages = double.lower(kd.ShapeDtypeStruct((64,), kd.float32))
    monkeypatch.setattr(module, "_LEAST_SECONDS", 0.1)
    for what in ("hangs", "says nonsense", "is killed", "is no program"):
        tools.find.cache_clear()
        monkeypatch.setenv("KERNEL_DSL_PTXAS", str(program(tmp_path, SCRIPTS[what][0])))
        with pytest.raises(kd.Error, match=r"was not assembled") as caught:
            stages.compile()
        assert caught.traceback[-1].path == Path(__file__)
        assert main(["ptx", f"{ROOT}/tests/assemble/one_kernel.py", "--arg", "f32[64]", "--stage", "resources"]) == 1
        assert "was not assembled" in capsys.readouterr().err
    monkeypatch.setattr(tools, "_VERSION_SECONDS", 0.1)
    monkeypatch.setenv("KERNEL_DSL_CACHE", "off")
    assert main(["doctor"]) == 1
    assert "Traceback" not in capsys.readouterr().out


def test_time_goes_by_the_text() -> None:
    assert module._LEAST_SECONDS >= 20 and module._SECONDS_A_BYTE * 1_000_000 >= 60


@needs_ptxas
def test_a_large_text_passes_through_pipes_that_are_small(tmp_path: Path) -> None:
    real = find_ptxas()
    kernel = replace(axpy(), ptx=axpy().ptx + "// " + "x" * 3_000_000 + "\n")
    slow = program(tmp_path, f'#!/bin/sh\nsleep 0.2\nhead -c 5000000 /dev/zero | tr "\\0" " " >&2\nexec {real} "$@"\n')
    assert assemble(kernel, options=AssemblerOptions(ptxas=str(slow))).cubin == assemble(axpy()).cubin


@needs_ptxas
def test_an_interrupt_ends_the_assembler(tmp_path: Path) -> None:
    path = program(tmp_path, "#!/bin/sh\nsleep 1000\n")
    timer = threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    timer.start()
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        assemble(axpy(), options=AssemblerOptions(ptxas=str(path)))
    assert time.perf_counter() - started < 20


@needs_ptxas
def test_a_ptxas_that_goes_away(tmp_path: Path) -> None:
    path = program(tmp_path, "#!/bin/sh\n")
    options = AssemblerOptions(ptxas=str(path))
    assert find_ptxas(options) == path
    path.unlink()
    assert assembler_identity(options) == "ptxas gone"
    with pytest.raises(ToolFailed, match=r"cannot be run: .*No such file"):
        assemble(axpy(), options=options)


def test_a_version_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_VERSION_SECONDS", 0.1)  # those that end give no version, either
    for number, (text, _) in enumerate(SCRIPTS.values()):
        assert tools.version(program(tmp_path, text, f"ptxas{number}")) == ""


def test_an_nvdisasm_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_dsl.runtime.build.sass._SECONDS", 0.1)
    for what in ("hangs", "is killed", "is no program"):
        path = program(tmp_path, SCRIPTS[what][0], "nvdisasm")
        with pytest.raises(ToolFailed, match=str(path)):
            sass(b"\x7fELF", nvdisasm=str(path))


@needs_ptxas
@pytest.mark.parametrize("seed", range(3))
def test_programs_that_do_things_in_any_order(tmp_path: Path, seed: int) -> None:
    """Random scripts: each ends in an error of ours or in the right code."""
    real = find_ptxas()
    choose = random.Random(seed)
    right = assemble(axpy()).cubin
    acts = ["sleep 0.05", "cat >/dev/null", "head -c 100", "echo words", "echo words >&2", "exec >&-", "exec 2>&-", "exec <&-", "kill -9 $$",
            "exit 0", "exit 7", "yes | head -c 300000", "yes | head -c 300000 >&2", "sleep 0.3 &", f'{real} "$@"', f'exec {real} "$@"']  # fmt: skip
    for number in range(12):
        lines = [choose.choice(acts) for _ in range(choose.randrange(1, 6))]
        path = program(tmp_path, "\n".join(["#!/bin/sh", *lines, ""]), f"p{number}")
        try:
            made = assemble(axpy(), options=AssemblerOptions(ptxas=str(path), seconds=5))
        except (ToolFailed, AssemblerError) as error:
            assert str(path) in str(error)
        else:
            assert made.cubin == right, lines


def test_children_of_threads_do_not_mix(tmp_path: Path) -> None:
    """Many programs at once, some of which hang."""
    echo, hang = program(tmp_path, "#!/bin/sh\ncat\n", "echo"), program(tmp_path, "#!/bin/sh\nsleep 100\n", "hang")
    wrong: list[object] = []

    def work(number: int) -> None:
        text = bytes([number]) * (1000 * number)
        try:
            if (
                tools.run(
                    [hang if number % 8 == 7 else echo], seconds=20 if number % 8 != 7 else 0.5, given=text
                ).output
                != text
            ):
                wrong.append(number)
        except ToolFailed as error:
            if number % 8 != 7:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_runs_leave_no_file_open() -> None:
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    for _ in range(20):
        tools.run(["/bin/cat"], seconds=20, given=b"x")
    after = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    assert after <= before


def test_an_interrupt_in_the_wait_for_a_program_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's `wait` with a time limit takes a lock; an interrupt between that and the `try` behind it leaves it locked."""
    wait = subprocess.Popen.wait
    seen: list[BaseException] = []

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        process._waitpid_lock.acquire()
        raise KeyboardInterrupt

    def work() -> None:
        try:
            tools.run(["sh", "-c", "exec >&- 2>&- <&-; sleep 1000"], seconds=60)
        except BaseException as error:
            seen.append(error)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits forever"
    assert list(map(type, seen)) == [KeyboardInterrupt]
