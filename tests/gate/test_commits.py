"""Messages of commits since this file came: a subject that fits a line, and a body that says why."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

LONGEST = 72  # characters of a subject
_TRAILER = re.compile(r"[A-Z][a-z]+(-[a-z]+)*-by: ")


def faults(subject: str, body: str) -> list[str]:
    """What is wrong with a message."""
    said = [line for line in body.splitlines() if line.strip() and not _TRAILER.match(line)]
    wrong = [] if 0 < len(subject) <= LONGEST else [f"a subject of {len(subject)} characters, over {LONGEST}"]
    return wrong if said else [*wrong, "no body that says why"]


def _git(*arguments: str) -> str:
    """What git says; the test is skipped where this is no checkout of its own."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        pytest.skip("no git")
    if done.returncode:
        pytest.skip(f"not a git checkout: {done.stderr.strip()}")
    return done.stdout.strip()


def test_messages() -> None:
    if Path(_git("rev-parse", "--show-toplevel")).resolve() != ROOT:
        pytest.skip("part of another project's checkout")
    own = Path(__file__).relative_to(ROOT).as_posix()
    came = _git("log", "--follow", "--diff-filter=A", "--format=%H", "--", own).split()
    if not came:
        pytest.skip("this file is not committed yet")
    first = came[-1]
    # what was begun before this file came, and is merged later, is not asked
    form = "--format=%h%n%s%n%b%x00"
    later = _git("log", "--no-merges", "--ancestry-path", form, f"{first}..HEAD")
    wrong: list[str] = []
    for message in (_git("log", "--max-count=1", form, first) + later).split("\0")[:-1]:
        commit, subject, body = [*message.lstrip("\n").split("\n", 2), ""][:3]
        wrong += [f"{commit} {subject!r}: {fault}" for fault in faults(subject, body)]
    assert wrong == []


def test_it_can_fail() -> None:
    assert faults("Hold the code of every kernel", "So that a refactoring shows what it changed.") == []
    assert len(faults("x" * 73, "")) == 2
    assert faults("Fix it", "\nSigned-off-by: A <a@b>\nCo-authored-by: C <c@d>\n") == ["no body that says why"]
