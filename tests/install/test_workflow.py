"""The workflow for hosted checks: its structure, that what it runs is there, and that it covers what the support policy names."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import Any

import pytest

from tests.conftest import ROOT

FILE = ROOT / ".github" / "workflows" / "checks.yml"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Lines:
    """The part of YAML that a workflow needs: mappings, lists, `[a, b]`, quotes, `|` and comments. All scalars are text."""

    def __init__(self, text: str) -> None:
        self.lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        assert "\t" not in text
        self.at = 0

    def block(self) -> Any:
        """The mapping or list that begins at the next line."""
        indent = self.indent()
        found: Any = [] if self.is_item() else {}
        while self.at < len(self.lines) and self.indent() == indent:
            assert self.is_item() == isinstance(found, list), self.lines[self.at]
            if isinstance(found, list):
                self.lines[self.at] = self.lines[self.at].replace("- ", "  ", 1)
                found.append(self.block() if self.key() else self.scalar(self.next().strip()))
                continue
            match = self.key()
            assert match, self.lines[self.at]
            name, rest = match.groups()
            assert name not in found, f"{name} is there twice"
            self.next()
            found[name] = self.value(rest or "", indent)
        assert self.at == len(self.lines) or self.indent() < indent, self.lines[self.at]
        return found

    def value(self, rest: str, indent: int) -> Any:
        if rest == "|":
            first, text = self.at, []
            while self.at < len(self.lines) and self.indent() > indent:
                text.append(self.next())
            margin = min(len(line) - len(line.lstrip()) for line in self.lines[first : self.at])
            return "\n".join(line[margin:] for line in text) + "\n"
        if rest:
            return self.scalar(rest)
        assert self.at < len(self.lines) and self.indent() > indent, "a key without a value"
        return self.block()

    def scalar(self, text: str) -> Any:
        if text.startswith("["):
            assert text.endswith("]")
            return [self.scalar(part.strip()) for part in text[1:-1].split(",")]
        if text.startswith('"'):
            assert re.fullmatch(r'"[^"\\]*"', text), text
            return text[1:-1]
        assert not re.search(r"^[&*!|>%@`'{]|: | #", text), f"{text} needs more of YAML than is read here"
        return text

    def indent(self) -> int:
        return len(self.lines[self.at]) - len(self.lines[self.at].lstrip())

    def is_item(self) -> bool:
        return self.lines[self.at].lstrip().startswith("- ")

    def key(self) -> re.Match[str] | None:
        return re.fullmatch(r" *([\w-]+):(?: +(.*))?", self.lines[self.at])

    def next(self) -> str:
        self.at += 1
        return self.lines[self.at - 1]


def read(text: str) -> Any:
    lines = Lines(text)
    found = lines.block()
    assert lines.at == len(lines.lines)
    return found


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    return read(FILE.read_text())["jobs"]


def scripts(jobs: dict[str, Any]) -> list[str]:
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_the_reader() -> None:
    text = 'a:\n  b: [x, "3.10"]\n  # no\n  c:\n    - d: 1\n      e: |\n        f: g\n          h\n    - i\nj: k\n'
    assert read(text) == {"a": {"b": ["x", "3.10"], "c": [{"d": "1", "e": "f: g\n  h\n"}, "i"]}, "j": "k"}


@pytest.mark.parametrize(
    "text",
    [
        "a: b\na: c\n",
        "a:\n  b: c\n d: e\n",
        "a:\n",
        "a: [b\n",
        'a: "b\n',
        "a\n",
        "a: b\n  c: d\n",
        "a: b: c\n",
        "a: b\n- c\n",
    ],
)
def test_the_reader_refuses(text: str) -> None:
    with pytest.raises(AssertionError):
        read(text)


def test_the_reader_reads_as_others_do() -> None:
    """Where there is PyYAML, as beside the `site` extra."""
    yaml = pytest.importorskip("yaml")
    assert read(FILE.read_text()) == yaml.load(FILE.read_text(), yaml.BaseLoader)


def test_structure(jobs: dict[str, Any]) -> None:
    whole = read(FILE.read_text())
    assert whole.keys() == {"name", "on", "permissions", "concurrency", "jobs"}
    assert whole["on"] == ["push", "pull_request"]
    assert whole["permissions"] == {"contents": "read"}
    for name, job in jobs.items():
        assert job.keys() - {"strategy"} == {"runs-on", "timeout-minutes", "steps"}, name
        assert 1 <= int(job["timeout-minutes"]) <= 60
        assert job["steps"][0]["uses"].startswith("actions/checkout@") and job["steps"][1]["uses"].startswith(
            "actions/setup-python@"
        )
        for step in job["steps"]:
            assert step.keys() <= {"uses", "with"} if "uses" in step else step.keys() == {"name", "run"}
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v1"))
        used = set(re.findall(r"\$\{\{ matrix\.(\w+) \}\}", str(job)))
        assert used == job.get("strategy", {}).get("matrix", {}).keys(), name


def test_it_covers_the_support_policy(jobs: dict[str, Any]) -> None:
    """Python from the least that is required to the last that has wheels; Linux, on x86-64 and aarch64, and nothing else."""
    policy = (ROOT / "docs" / "support.md").read_text()
    assert "Linux on x86-64 and aarch64" in policy and "Python 3.11 to 3.14" in policy
    for name in ("suite", "wheel"):
        matrix = jobs[name]["strategy"]["matrix"]
        assert matrix["python"] == [f"3.{minor}" for minor in range(11, 15)]
        assert SETTINGS["requires-python"] == f">={matrix['python'][0]}"
        named = [c.rpartition(" ")[2] for c in SETTINGS["classifiers"] if "Python :: 3." in c]
        assert named == matrix["python"]
        assert matrix["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]


def test_what_it_runs_is_there(jobs: dict[str, Any]) -> None:
    text = "\n".join(scripts(jobs))
    assert "PYTHON=python .ci/run" in text and "python -m tests.docs.site" in text and "pip wheel" in text
    for script in scripts(jobs):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0, script
    for path in re.findall(r"(?<![\w/$])(?:\.ci|examples)/[\w.]+", text):
        assert (ROOT / path).is_file(), path
    for module in re.findall(r"-m (tests[\w.]+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module
    for extra in re.findall(r'"\.\[(\w+)\]"', text):
        assert extra in SETTINGS["optional-dependencies"], extra


def test_it_names_no_host() -> None:
    assert not re.search(r"://|\b[\w-]+\.(com|org|io|net|dev)\b", FILE.read_text())
