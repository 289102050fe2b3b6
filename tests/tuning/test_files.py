"""Files of tuned results: what is written is read, two together are the later run, writers do not lose each other's lines."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernel_dsl as kd
from kernel_dsl import tuning_file
from kernel_dsl.errors_tuning import TuningFile
from kernel_dsl.runtime.errors import FileError, MissingFileError
from kernel_dsl.tuning_file import (  # fmt: skip
    FORMAT,
    HEADER,
    NAME,
    Results,
    TunedLine,
    TunedResults,
    merge_into,
    merged,
    results_of,
    text_of,
    tuned_results,
    written,
)

LINE = TunedLine(
    "GPU", "matmul", "ab", "(64, 64)", "C(n=1)", 1e-3, "", "2026-01-01T00:00:00.000000Z", "0.1.0", "ptxas 13.0.88"
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@st.composite
def some_results(draw: Any) -> Results:
    found: Results = {}
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.tuples(st.sampled_from(["A", "B"]), st.sampled_from(["k", "m"]), st.just(""), TEXT))
        seconds = draw(st.one_of(st.none(), st.floats(1e-9, 10)))
        when = f"2026-01-0{draw(st.integers(1, 3))}"
        line = TunedLine(*place, draw(TEXT), seconds, "" if seconds else "spills", when, "0.1", draw(TEXT))
        found = merged(found, {place: (line,)})
    return found


@given(some_results(), some_results(), some_results())
def test_merging(one: Results, other: Results, third: Results) -> None:
    assert results_of(text_of(one)) == one
    assert merged(one, one) == one and merged(one, {}) == one
    assert merged(one, other) == merged(other, one)
    assert merged(merged(one, other), third) == merged(one, merged(other, third))
    for place, lines in merged(one, other).items():
        assert {line.when for line in lines} == {
            max(line.when for line in (*one.get(place, ()), *other.get(place, ())))
        }


@given(st.recursive(st.one_of(st.integers(), st.booleans(), TEXT, st.none(), st.just(kd.float32)), lambda x: st.one_of(
    st.tuples(x), st.tuples(x, x), st.lists(x, max_size=3), st.dictionaries(TEXT, x, max_size=2)
), max_leaves=6))  # fmt: skip
def test_keys_as_text_tell_values_apart(value: Any) -> None:
    assert written(value) == written(value) and "\n" not in written(value)
    assert written((value,)) != written(value) != written([value])


@pytest.mark.parametrize("value", [object(), lambda: 0, [object()]])
def test_what_has_no_text(value: Any) -> None:
    with pytest.raises(ValueError, match="no text"):
        written(value)
    nest: list[Any] = []
    nest.append(nest)
    with pytest.raises(ValueError, match="holds itself"):
        written(nest)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    monkeypatch.setenv("KERNEL_DSL_CACHE", str(tmp_path / "cache"))
    tuned_results.cache_clear()
    yield tmp_path
    tuned_results.cache_clear()


def text(**fields: Any) -> str:
    """A file of one line with fields changed."""
    return json.dumps({HEADER: FORMAT}) + "\n" + json.dumps({**asdict(LINE), **fields}) + "\n"


def test_a_file_is_read_in_time_linear_in_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are put together once, and not once for each line."""
    merges: list[int] = []
    monkeypatch.setattr(tuning_file, "merged", lambda one, other: merges.append(1) or merged(one, other))
    lines = [replace(LINE, key=f"({n},)", config=str(i)) for n in range(20) for i in range(3)]
    whole: Results = {}
    for line in lines:
        whole = merged(whole, {line.place: (line,)})
    assert results_of(text_of(whole)) == whole
    assert len(merges) == 1


def test_save_and_load(folder: Path) -> None:
    tuned_results().add({LINE.place: (LINE,)})
    assert (folder / "cache" / NAME).read_text() == text(), "one line a configuration"
    assert kd.tuning.save(folder / "shipped.jsonl") == 1
    tuned_results.cache_clear()
    (folder / "cache" / NAME).unlink()
    assert not tuned_results().find(LINE.place)
    assert kd.tuning.load(folder / "shipped.jsonl") == 1
    assert tuned_results().find(LINE.place) == (LINE,)
    assert not (folder / "cache" / NAME).exists(), "what is loaded is this process's"
    later = replace(LINE, config="C(n=2)", when="2027")
    (folder / "more.jsonl").write_text(text_of({later.place: (later,)}))
    assert kd.tuning.load(str(folder / "more.jsonl")) == 1 and tuned_results().find(LINE.place) == (later,)
    assert kd.tuning.load(folder / "shipped.jsonl") == 1 and tuned_results().find(LINE.place) == (later,), (
        "an earlier run"
    )
    other = replace(LINE, gpu="Other")
    (folder / "shipped.jsonl").write_text(text_of({other.place: (other,)}))
    assert kd.tuning.save(folder / "shipped.jsonl") == 2, "put together with what it has"


@pytest.mark.parametrize(("content", "why"), [
    ("", "no file of tuned results"), ("{}\n", "no file of tuned results"), ("[]", "no file of tuned results"),
    (json.dumps({HEADER: FORMAT + 1}) + "\n", "version 2"), (text(seconds=-1.0), "line 2 is damaged: its seconds"),
    (text(seconds=True), "its seconds"), (text(seconds="1"), "its seconds"), (text(gpu=1), "its 'gpu' is no text"),
    (text(seconds=None), "neither a time nor a reason"), (text(dropped="spills"), "neither a time nor a reason, or both"),
    (text()[:-20], "line 2 is damaged: it is no JSON"), (text() + "[]\n", "line 3 is damaged"),
    (text() + "[" * 100_000, "line 3 is damaged"),
])  # fmt: skip
def test_files_that_are_refused(content: str, why: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(TuningFile, match=why):
        kd.tuning.load(path)
    tuned_results().add({LINE.place: (LINE,)}, keep=False)
    with pytest.raises(TuningFile):
        kd.tuning.save(path)
    assert path.read_text() == content and os.listdir(folder) == ["bad.jsonl", "bad.jsonl.lock"]
    own = TunedResults(path)  # the user's own file: what is good of it is used, and nothing raises
    assert set(own.everything()) <= {LINE.place} and caplog.records
    own.add({LINE.place: (LINE,)})
    assert results_of(path.read_text()) == {LINE.place: (LINE,)}


def test_files_that_can_not_be_read(folder: Path) -> None:
    with pytest.raises(MissingFileError):
        kd.tuning.load(folder / "none.jsonl")
    with pytest.raises(FileError):
        kd.tuning.load(folder)
    with pytest.raises(FileError):
        kd.tuning.save(folder / "no folder" / "x.jsonl")
    with pytest.raises(FileError):
        kd.tuning.load("\0")
    (folder / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(TuningFile, match="no text"):
        kd.tuning.load(folder / "binary")


def test_the_disk_is_no_trouble(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "cache").write_text("a file where the folder should be")
    tuned_results().add({LINE.place: (LINE,)})
    assert tuned_results().find(LINE.place) == (LINE,) and "not kept" in caplog.text


def test_without_a_cache_results_are_this_process_s(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("KERNEL_DSL_CACHE", "off")
    tuned_results.cache_clear()
    tuned_results().add({LINE.place: (LINE,)})
    assert tuned_results().find(LINE.place) and not list(folder.iterdir())


def test_another_process_s_results_are_seen(folder: Path) -> None:
    one, other = TunedResults(folder / NAME), TunedResults(folder / NAME)
    assert not one.find(LINE.place)
    other.add({LINE.place: (LINE,)})
    assert one.find(LINE.place) == (LINE,)


def test_writers_of_one_file_lose_nothing(folder: Path) -> None:
    """Processes, and threads of each, that write at once; readers meanwhile see whole files."""
    path, writers, each = folder / NAME, 3, 6

    def write(writer: int, thread: int) -> None:
        for i in range(each):
            line = replace(LINE, key=f"{writer} {thread} {i}")
            merge_into(path, {line.place: (line,)}, lenient=False)

    children = []
    for writer in range(writers):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                threads = [threading.Thread(target=write, args=(writer, n)) for n in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    while children:
        if path.exists():
            results_of(path.read_text())
        pid, status = os.waitpid(children[0], os.WNOHANG)
        if pid:
            assert status == 0
            children.pop(0)
    assert len(results_of(path.read_text())) == writers * 2 * each
    assert sorted(os.listdir(folder)) == [NAME, f"{NAME}.lock"]
