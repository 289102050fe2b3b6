"""`python -m tests.docs.site` builds the site: `build/site/html/index.html`. It needs the `site` extra.

The pages are those of the repository, one for each example with what it prints in the interpreter now, and one for each group
of the reference. A warning, a broken link and a page that lost a table, a list or a block of code are errors.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.docs import html, reference

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "site"
TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

# `font = false`: pages load nothing from elsewhere.
SETTINGS = """[project]
site_name = "kernel-dsl"
site_description = "A Pallas-like kernel language in plain Python that compiles to PTX"
docs_dir = "source"
site_dir = "html"
nav = {nav}

[project.theme]
font = false
features = ["content.code.copy", "navigation.footer", "navigation.indexes", "navigation.top", "search.highlight"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to light"

[project.markdown_extensions]
attr_list = {{}}
tables = {{}}
toc.permalink = true
pymdownx.highlight = {{}}
pymdownx.superfences = {{}}
"""

# The pages that are written by hand, in the order to read them.
NAV = {
    "Start": ("README", "docs/quickstart", "docs/tutorial", "docs/programming-model"),
    "Coming from": ("docs/from-triton", "docs/from-pallas", "docs/from-cutlass"),
    "Guides": (
        "docs/calls",
        "docs/extents",
        "docs/graphs",
        "docs/many-gpus",
        "docs/interpreter",
        "docs/checker",
        "docs/testing",
        "docs/gallery",
        "docs/compiled-kernels",
        "docs/hosts",
        "docs/decoder",
        "docs/other-kernels",
    ),
    "Speed": (
        "docs/profiling",
        "docs/tuning",
        "docs/layouts",
        "docs/hopper",
        "docs/matmul",
        "docs/attention",
        "docs/scale",
    ),
    "Comparisons": (
        "docs/math-accuracy",
        "docs/promotion",
        "docs/ptx-coverage",
        "docs/instruction-differential",
    ),
    "Project": ("CHANGELOG", "docs/support", "SECURITY", "ARCHITECTURE", "docs/files", "CONTRIBUTING"),
}


def examples() -> list[Path]:
    """The examples in the order of their numbers."""
    return sorted((ROOT / "examples").glob("[0-9]*.py"))


def title(example: Path) -> str:
    """`01_softmax` as "1. Softmax"."""
    number, _, words = example.stem.partition("_")
    return f"{int(number)}. {words.replace('_', ' ').capitalize()}"


def run(example: Path, pictures: Path) -> str:
    """What an example prints where there is no GPU. It is given the name of a picture, which moves to a folder if it is drawn."""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        picture = f"{example.stem}.png"
        command = [sys.executable, str(example), picture]
        done = subprocess.run(command, cwd=folder, env=hidden, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{example.name} failed:\n{done.stdout}{done.stderr}")
        if (drawn := Path(folder) / picture).exists():
            pictures.mkdir(parents=True, exist_ok=True)
            shutil.move(drawn, pictures)
    return done.stdout


def tutorial(example: Path, printed: str, drawn: bool = False) -> str:
    """A page: the docstrings of an example as prose, its code between them, and what it prints."""
    source = example.read_text()
    lines = source.splitlines()
    module = ast.parse(source)
    parts = [f"# {title(example)}", "", ast.get_docstring(module) or "", ""]
    code: list[str] = []
    after = module.body[0].end_lineno or 0  # the docstring

    def flush() -> None:
        text = "\n".join(code).strip("\n")
        parts.extend(["```python", text, "```", ""] if text else [])
        code.clear()

    for node in module.body[1:]:
        if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None:
            continue
        start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        prose = node.body[0]
        code += lines[after : start - 1]
        flush()
        parts += [f"## `{node.name}`", "", ast.get_docstring(node) or "", ""]
        code += [*lines[start - 1 : prose.lineno - 1], *lines[prose.end_lineno : node.end_lineno]]
        after = node.end_lineno or 0
    code += lines[after:]
    flush()
    parts += ["## What it prints", "", "```text", printed.rstrip("\n"), "```", ""]
    parts += [f"![What {example.name} draws]({example.stem}.png)\n"] * drawn
    return "\n".join(parts)


def tutorials() -> str:
    """The list of tutorials."""
    head = "# Tutorials\n\nEach page is an example of the repository, with what it prints in the interpreter.\n\n"
    rows = []
    for example in examples():
        summary = (ast.get_docstring(ast.parse(example.read_text())) or "").split("\n\n")[0].replace("\n", " ")
        rows.append(f"| [{title(example)}]({example.stem}.md) | {summary} |\n")
    return f"{head}| tutorial | what it shows |\n|---|---|\n{''.join(rows)}"


def read(notebook: Path) -> dict[str, Any]:
    """A notebook as it is committed: without outputs."""
    return json.loads(notebook.read_text())


def executed(notebook: Path) -> dict[str, Any]:
    """A notebook with what its cells show, run by Jupyter where there is no GPU; as it is where `nbclient` is not installed."""
    try:
        nbclient, nbformat = import_module("nbclient"), import_module("nbformat")
    except ImportError:
        print(f"without nbclient: {notebook.name} is shown without outputs")
        return read(notebook)
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    made = nbformat.read(notebook, 4)
    nbclient.NotebookClient(made, timeout=300, kernel_name="python3").execute(env=hidden)
    return made


def notebook_page(notebook: Mapping[str, Any]) -> str:
    """The page: prose, code, and what cells print or show: pictures and tables where they have them, else text."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts += [source.rstrip("\n"), ""]
            continue
        parts += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            parts += _shown(output)
    return "\n".join(parts)


def _shown(output: Mapping[str, Any]) -> list[str]:
    """What a cell shows. Nothing of where the build ran: the notes on standard error, the files that cells are for Python."""
    data = output.get("data", {})
    for kind in ("text/html", "image/svg+xml"):
        if kind in data:
            lines = [line for line in "".join(data[kind]).splitlines() if line.strip()]  # one block of HTML
            return ['<div class="cell-output">', *lines, "</div>", ""]
    text = "" if output.get("name") == "stderr" else "".join(output.get("text") or data.get("text/plain") or "")
    text = re.sub(r"\S*/ipykernel_\d+/\d+\.py", "cell", text).rstrip()
    return ["```text", text, "```", ""] if text else []


def slug(group: str) -> str:
    """The file name of a group of the reference."""
    return re.sub(r"\W+", "-", group.lower())


def _heading(found: re.Match[str]) -> str:
    """A name as the heading, which stays short on a phone, with the signature below it."""
    level, name, arguments = found[1][1:], found[2], found[3]
    anchor = f" {{#{name}}}" if name.startswith("kd.") else ""
    if arguments is None:
        return f"{level} {name}{anchor}"
    if len(name + arguments) > 72:  # a line each
        split = re.split(r", (?![^(\[]*[)\]])", arguments[1:-1])
        arguments = "".join(["(\n", *(f"    {each},\n" for each in split), ")"])
    return f"{level} {name}{anchor}\n\n```python\n{name}{arguments}\n```"


def reference_pages() -> dict[str, str]:
    """The reference as a page for each group, and a page that lists them."""
    pages: dict[str, str] = {}
    index = [reference.HEAD]
    for group, entries in reference.groups().items():
        text = re.sub(r"(?m)^(###+) `([\w.]+)(\(.*\))?`$", _heading, "\n".join(entries))
        pages[f"docs/reference/{slug(group)}.md"] = f"# {group}\n\n{text}"
        names = re.findall(r"(?m)^## (.*) \{#", text)
        links = ", ".join(f"[{name.removeprefix('kd.')}](reference/{slug(group)}.md#{name})" for name in names)
        index.append(f"## {group}\n\n{links}\n")
    pages["docs/reference.md"] = "\n".join(index)
    return pages


def plain(text: str) -> str:
    """A page as Python-Markdown reads it.

    A notebook is a page there. It knows no second word of ```` ```python no-run ````, which is for the tests, and takes a `|` in a table's code as it is.
    """
    text = re.sub(r"(?m)^( *```\w+) .*$", r"\1", text).replace(".ipynb)", ".md)")
    return re.sub(r"(?m)^\|.*$", lambda row: re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), row[0]), text)


def pages(
    printed: Callable[[Path], str], drawn: Collection[str] = (), run_notebook: Callable[[Path], dict[str, Any]] = read
) -> dict[str, str]:
    """The Markdown of every page by its path; `printed` gives an example's output, `drawn` names those with a picture."""
    found = [ROOT / name for name in TOP] + sorted((ROOT / "docs").rglob("*.md"))
    texts = {p.relative_to(ROOT).as_posix(): plain(p.read_text()) for p in found} | reference_pages()
    for notebook in sorted((ROOT / "docs").glob("*.ipynb")):
        texts[f"docs/{notebook.stem}.md"] = notebook_page(run_notebook(notebook))
    texts["tutorials/README.md"] = tutorials()
    for example in examples():
        texts[f"tutorials/{example.stem}.md"] = tutorial(example, printed(example), example.stem in drawn)
    return texts


def navigation() -> dict[str, list[str]]:
    """The menu: the pages of each part. Pages of single errors are reached from the list of errors."""
    parts = {part: [f"{name}.md" for name in names] for part, names in NAV.items()}
    made = {
        "Tutorials": ["tutorials/README.md", *(f"tutorials/{e.stem}.md" for e in examples())],
        "Reference": [
            "docs/reference.md",
            *(f"docs/reference/{slug(group)}.md" for group in reference.groups()),
            "docs/errors/README.md",
        ],
    }
    order = ("Start", "Tutorials", "Coming from", "Guides", "Speed", "Reference", "Comparisons", "Project")
    return {part: (parts | made)[part] for part in order}


def _toml(menu: Mapping[str, list[str]]) -> str:
    return "[" + ", ".join(f"{{ {json.dumps(part)} = {json.dumps(names)} }}" for part, names in menu.items()) + "]"


def lay_out() -> dict[str, str]:
    """Write the pages and the settings below `BUILD`, running every example; the pages' texts by their paths."""
    source = BUILD / "source"
    shutil.rmtree(BUILD, ignore_errors=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        printed = dict(zip(examples(), pool.map(lambda e: run(e, source / "tutorials"), examples()), strict=True))
    texts = pages(printed.__getitem__, [picture.stem for picture in source.glob("tutorials/*.png")], executed)
    for name, text in texts.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    shutil.copytree(ROOT / "docs" / "pictures", source / "docs" / "pictures")
    (BUILD / "zensical.toml").write_text(SETTINGS.format(nav=_toml(navigation())))
    return texts


def main() -> None:
    """Build the site, and look for what a page lost on the way."""
    texts = lay_out()
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=BUILD, check=False)
    if done.returncode:
        raise SystemExit("the site was not built")
    wrong = html.problems(texts, BUILD / "html")
    if wrong:
        raise SystemExit("\n".join(wrong))
    print(f"{BUILD / 'html' / 'index.html'}: {len(texts)} pages")


if __name__ == "__main__":
    main()
