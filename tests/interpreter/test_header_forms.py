"""The instructions that CUDA's headers write: ptxas and the interpreter take the same, for several targets.

Headers have forms that no row of ours has, so the forms that `forms.py` makes from rows can't find them. The headers are those
of the wheel `nvidia-cuda-runtime`, and of a toolkit, which has CCCL's wrappers of each PTX instruction too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kernel_dsl.runtime.assemble import find_ptxas

from . import forms
from .test_targets import compared

_TOOLKIT = Path("/usr/local/cuda/include")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ASM = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_OPERAND = re.compile(r'(?:"([=+]?&?\w+)"|__\w*PTR\w*)\s*\(')
_LETTERS = {"r": "r", "h": "h", "l": "d", "f": "f", "d": "g", "q": "w"}
# Not interpreted, with an error that says so; and a form of asm for 32-bit addresses
_OUT = re.compile(
    r"tcgen05\.(cp|shift)\b|\.cp_mask|cvt\.rs|swizzle_atomicity\S* \[\w+\], [1-3]|\.kind::mxf4nvf4|argument"
)
REGISTERS = 300


@cache
def folders() -> list[Path]:
    """The folders of headers that are here."""
    spec = find_spec("nvidia")
    wheels = [Path(p) / "cu13" / "include" for p in (spec.submodule_search_locations or [])] if spec else []
    return [p for p in (*wheels, _TOOLKIT) if p.is_dir()]


def sections(text: str, at: int) -> list[str]:
    """The parts of an asm statement from behind its parenthesis on: text, outputs, inputs, clobbers."""
    found, depth, begin = [""], 1, at
    while at < len(text):
        string = _STRING.match(text, at) if text[at] == '"' else None
        if string is not None:
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            break
        scope = text[at : at + 2] == "::" and (text[at - 1].isalnum() or text[at - 1] == "_")
        if depth == 1 and text[at] == ":" and not scope:
            found[-1] = text[begin:at]
            found.append("")
            begin = at + 1
        at += 2 if scope else 1
    found[-1] = text[begin:at]
    return found


def instructions(text: str, rng: random.Random) -> Iterator[str]:
    """The PTX of each asm statement, with registers for its operands, in braces of its own."""
    for start in _ASM.finditer(text):
        body, *others = sections(text, start.end())
        if _STRING.sub("", body).strip():
            continue  # parts of it are macros
        code = re.sub(r"//[^\n]*", "", "".join(_STRING.findall(body)).encode().decode("unicode_escape"))
        kinds = [(found[1] or "l").lstrip("=+&") for part in others[:2] for found in _OPERAND.finditer(part)]
        if not code.strip() or any(k not in _LETTERS and k != "n" for k in kinds):
            continue
        names = [
            rng.choice(("1", "16", "32")) if k == "n" else f"{_LETTERS[k]}{at % REGISTERS}"
            for at, k in enumerate(kinds)
        ]
        filled = code.replace("%%", "%")
        for at in reversed(range(30)):
            filled = filled.replace(f"%{at}", names[at] if at < len(names) else "r1")
        line = " ".join(filled.split())
        yield f"{{ {line}{'' if line[-1] in ';}' else ';'} }}"


@cache
def written() -> list[str]:
    """All of these, each once."""
    rng = random.Random(0)
    found: dict[str, None] = {}
    for folder in folders():
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".hpp", ".cuh", ".inl") and p.is_file()):
            text = path.read_text(errors="replace")
            if "asm" in text:
                found |= dict.fromkeys(instructions(text, rng))
    return [line for line in found if not _OUT.search(line)]


@pytest.mark.skipif(find_ptxas() is None or not folders(), reason="ptxas or CUDA's headers are not installed")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_instructions_of_headers(target: str, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    lines = written()
    if not request.config.getoption("--slow"):
        lines = random.Random(target).sample(lines, min(len(lines), 300))
    monkeypatch.setattr(forms, "HEAD", forms.HEAD.replace("<12>", f"<{REGISTERS}>"))
    refused, differ = compared(lines, target, monkeypatch)
    assert differ == [] and refused < len(lines) * 3 / 4
