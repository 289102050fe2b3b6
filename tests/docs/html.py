"""What a built page holds, beside its Markdown: blocks that were lost, links that lead nowhere, files of other hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

BLOCKS = {
    "pre": "blocks of code",
    "table": "tables",
    "tr": "rows",
    "h": "headings",
    "li": "items",
    "ol": "numbered lists",
}


class Page(HTMLParser):
    """The blocks of a page's article, its anchors, all that it links to and loads, and texts in tables with a `\\|`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.blocks: Counter[str] = Counter()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.escaped: list[str] = []
        self._inside = False
        self._table = 0
        self._output = 0  # how many `div`s deep in what a notebook's cell showed, which no Markdown stands for
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])
        self._inside = self._inside or tag == "article"
        self._table += tag == "table"
        self._output += tag == "div" and (self._output > 0 or given.get("class") == "cell-output")
        kind = "h" if re.fullmatch("h[1-6]", tag) else tag
        if self._inside and not self._output and kind in BLOCKS:
            self.blocks[kind] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._inside = False
        self._table -= tag == "table"
        self._output -= tag == "div" and self._output > 0

    def handle_data(self, data: str) -> None:
        if self._table and "\\|" in data:
            self.escaped.append(data)


def written(text: str) -> Counter[str]:
    """How many blocks of each kind a page of Markdown has, without what cells of a notebook showed as HTML."""
    text = re.sub(r'(?ms)^<div class="cell-output">$.*?^</div>$\n(?=\n|\Z)', "", text)
    blocks: Counter[str] = Counter()
    fenced = listed = False
    before = ""
    for line in text.splitlines():
        bare = line.lstrip()
        item = re.match(r"([-*]|\d+\.) ", bare)
        separator = re.fullmatch(r"\|[-:| ]+\|", line) and "-" in line
        if bare.startswith("```"):
            fenced = not fenced
            blocks["pre"] += fenced
        elif not fenced:
            listed = bool(item) or (listed and line[:1] in ("", " "))
            blocks["pre"] += line.startswith("    ") and not before and not listed
            blocks["h"] += bool(re.match(r"#{1,6} ", line))
            blocks["table"] += bool(separator)
            blocks["tr"] += line.startswith("| ") and not separator
            blocks["li"] += bool(item)
            blocks["ol"] += bare.startswith("1. ")
        before = line
    return blocks


def place(page: str) -> str:
    """The folder of a page's HTML: that of `docs/calls.md` is `docs/calls`, that of `docs/errors/README.md` `docs/errors`."""
    path = PurePosixPath(page).with_suffix("")
    return str(path.parent if path.name == "README" else path)


def problems(texts: Mapping[str, str], site: Path) -> list[str]:
    """What is wrong with the built pages, a line each."""
    built = {place(name): Page((site / place(name) / "index.html").read_text()) for name in texts}
    wrong: list[str] = []
    for name, text in texts.items():
        page = built[place(name)]
        expected = written(text)
        wrong += [
            f"{name}: {expected[kind]} {words} are {page.blocks[kind]} in the HTML"
            for kind, words in BLOCKS.items()
            if expected[kind] != page.blocks[kind]
        ]
        wrong += [f"{name} shows {code}" for code in page.escaped]
        wrong += [f"{name} loads {url}" for url in page.loads if urlsplit(url).netloc]
        for url in {*page.links, *page.loads}:
            if not urlsplit(url).scheme and not urlsplit(url).netloc and not _leads(url, place(name), site, built):
                wrong.append(f"{name} links to {url}")
    return wrong


def _leads(url: str, home: str, site: Path, built: Mapping[str, Page]) -> bool:
    """Whether a file is there for a link on the page in the folder `home`, and on its page the anchor."""
    parts = urlsplit(url)
    target = (site / home / unquote(parts.path)).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.exists() or not parts.fragment:
        return target.exists()
    folder = target.parent.relative_to(site.resolve()).as_posix()
    return folder not in built or unquote(parts.fragment) in built[folder].anchors
