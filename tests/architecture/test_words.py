"""The dictionary of CONTRIBUTING.md: no file has a word of its last column."""

from __future__ import annotations

import re

from tests.conftest import ROOT, tracked

_ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def dictionary() -> dict[str, list[str]]:
    """The words not to write, by the word to write instead."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Words")[2].partition("\n## ")[0]
    rows = {word.strip(): [x.strip() for x in wrong.split(",")] for word, wrong in _ROW.findall(text)}
    return {word: wrong for word, wrong in rows.items() if word not in ("word", "---") and wrong != ["-"]}


def test_the_dictionary_has_rows() -> None:
    assert dictionary()["fast path"] == ["short way", "fast way"]


def test_words_that_are_not_ours() -> None:
    wrong = [word.lower() for words in dictionary().values() for word in words]
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, wrong))})s?\b")
    found: list[str] = []
    for name in tracked():
        path = ROOT / name
        if (
            path.suffix not in (".py", ".md")
            or name in ("CONTRIBUTING.md", "tests/architecture/test_words.py")
            or not path.is_file()
            or path.is_symlink()
        ):
            continue
        text = path.read_text().lower()
        if any(word in text for word in wrong):  # the pattern takes ten times as long
            found += [f"{name}:{text.count(chr(10), 0, m.start()) + 1}: {m[0]}" for m in pattern.finditer(text)]
    assert found == []
