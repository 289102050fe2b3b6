"""The code of the README and of the pages runs, each page top to bottom; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.custom import nvrtc
from tests.conftest import ROOT, tracked

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMPARED = {"interpreter.md", "reference.md"}  # other tests run these and compare what is printed
HAND_WRITTEN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = [p for p in HAND_WRITTEN if re.search(r"(?m)^```python$", p.read_text()) and p.name not in COMPARED]
NEEDS = {
    "compiled-kernels": lambda: "" if find_ptxas() else "there is no ptxas",
    "other-kernels": nvrtc.unavailable,
}


@pytest.mark.parametrize("path", RUN, ids=lambda p: p.stem)
def test_code_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = NEEDS.get(path.stem, str)()
    if reason:
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)  # pages write files
    text = path.read_text()
    lines = [""] * text.count("\n")
    inside = False
    for number, line in enumerate(text.splitlines()):
        if line.startswith("```"):
            inside = line == "```python"
        elif inside:
            lines[number] = line
    # a file of its own, with the page's line numbers, so that bodies have source lines
    script = tmp_path / f"{path.stem}.py"
    script.write_text("\n".join(lines) + "\n")
    exec(compile(script.read_text(), str(script), "exec", dont_inherit=True), {"__name__": path.stem})


def test_links() -> None:
    for path in PAGES:
        text = re.sub(r"`[^`\n]*`", "", path.read_text())  # not what only looks like a link in code
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (path.parent / target).exists(), f"{path} links to {target}"


def test_rows_of_tables_are_lines() -> None:
    """A row that goes on in the next line becomes two."""
    for path in PAGES:
        text = re.sub(r"(?ms)^```.*?^```$", "", path.read_text())
        assert [line for line in text.splitlines() if line.startswith("| ") and not line.endswith("|")] == [], path


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_no_line_of_a_sentence_reads_as_an_item(path: Path) -> None:
    """A line that begins with "- ", "+ " or "8. " would be an item of a list on the site or on GitHub."""
    mark = re.compile(r"([-+*]|\d+[.)]) ")
    wrong: list[str] = []
    before, listed = "", False
    for line in re.sub(r"(?ms)^```.*?^```$", "", path.read_text()).split("\n"):
        item = mark.match(line) is not None
        if item and before and not before.startswith("#") and not listed:
            wrong.append(line)
        listed = item or (listed and line.startswith("  "))
        before = line
    assert wrong == []


def test_the_readme_begins_with_the_two_commands() -> None:
    commands = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert commands is not None
    assert commands[1].splitlines() == [
        "python -m pip install -e . && python examples/01_softmax.py",
        'python -m pip install -e ".[test]" && python -m pytest',
    ]


def test_the_figures_of_the_readme_are_those_of_the_pages() -> None:
    """A row of the table of speeds has its TFLOP/s and its ratio in one row of the kernel's page."""
    rows = re.findall(r"(?m)^\| (matmul|attention).*? \| (\d+) \| cu\w+: ([\d.]+) \|", (ROOT / "README.md").read_text())
    assert len(rows) == 5
    for kernel, speed, ratio in rows:
        page = (ROOT / "docs" / f"{kernel}.md").read_text().splitlines()
        figures = [re.findall(r"[\d.]+", line) for line in page if line.startswith("|")]
        assert any(speed in row and ratio in row for row in figures), (kernel, speed, ratio)


def _section(page: str, heading: str) -> str:
    return (ROOT / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_map_of_the_readme_is_whole() -> None:
    """Each page of `docs` has one link in the map, and each folder of the repository a row."""
    found = _section("README.md", "The map")
    linked = re.findall(r"\]\((docs/[^)#]+)\)", found)
    pages = [p for pattern in ("*.md", "*.ipynb") for p in (ROOT / "docs").glob(pattern)]
    assert sorted(linked) == sorted(["docs/errors/README.md", *(p.relative_to(ROOT).as_posix() for p in pages)])
    rows = re.findall(r"(?m)^\| (`.*?) \|", found)
    folders = {path.partition("/")[0] for path in tracked() if "/" in path}
    assert sorted(name for row in rows for name in re.findall(r"`([\w.]+)/`", row)) == sorted(folders)


def test_contributing_has_every_folder_of_tests() -> None:
    named = re.findall(r"`tests/(\w+)[/`]", _section("CONTRIBUTING.md", "Kinds of tests"))
    assert {path.split("/")[1] for path in tracked() if path.startswith("tests/") and path.count("/") > 1} <= set(named)


def test_paths_in_prose_exist() -> None:
    """Files that these pages name."""
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/files.md"):
        for found in re.findall(
            r"`((?:kernel_dsl|lowering|runtime|tests|docs|examples)/[\w./]+)`", (ROOT / name).read_text()
        ):
            assert (ROOT / found).exists(), f"{name} names {found}"


def test_names_in_prose_exist() -> None:
    """Names of `kd`, and files of ours that pages name without their folders."""
    files = {path.split("/")[-1] for path in tracked()} | {"runtime.py", "dlpack.h", "cuda_fp8.h"}  # a user's, others'
    for path in PAGES:
        prose = re.sub(r"(?s)```.*?```", "", path.read_text())
        for quoted in re.findall(r"`([^`\n]+)`", "" if path.name == "CHANGELOG.md" else prose):
            for found in re.findall(r"[\w/]+\.(?:py|h)\b", quoted):
                assert found.split("/")[-1] in files, f"{path} names {found}"
            for found in re.findall(r"\bkd((?:\.\w+)+)", quoted):
                thing: object = kd
                for name in found[1:].split("."):
                    assert hasattr(thing, name), f"{path} names kd{found}"
                    thing = getattr(thing, name)


def test_commands_are_there() -> None:
    """Modules and files of ours that commands of the pages run."""
    for path in PAGES:
        text = path.read_text()
        for module in re.findall(r"python -m ((?:benchmarks|examples|tests|kernel_dsl)[\w.]*)", text):
            place = ROOT / module.removeprefix("kernel_dsl.").replace(".", "/")
            assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), f"{path} runs {module}"
        for words in re.findall(r"python -m pytest ([^`\n|]*)", text):
            for name in words.split():
                assert not name.startswith("tests") or (ROOT / name).exists(), f"{path} tests {name}"


def test_architecture_is_short() -> None:
    assert (ROOT / "ARCHITECTURE.md").read_text().count("\n") < 120
