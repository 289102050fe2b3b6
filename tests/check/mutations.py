"""Mutations of PTX by its structure: operands, types, registers, labels, braces, guards and stretches of lines."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_INSTRUCTION = re.compile(r"^\s*(@!?%?\w+\s+)?([a-z][\w.:]*)\s+(.*);\s*$")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
_TYPES = [
    "u8",
    "s8",
    "b8",
    "u16",
    "s16",
    "b16",
    "u32",
    "s32",
    "b32",
    "u64",
    "s64",
    "b64",
    "f16x2",
    "f16",
    "bf16x2",
    "bf16",
    "f32",
    "f64",
    "pred",
    "tf32",
]
_TYPE = re.compile(rf"\.({'|'.join(_TYPES)})\b")
_LABEL = re.compile(r"\$L\w+")
_NUMBER = re.compile(r"(?<![\w%$.])-?(?:0x[0-9a-fA-F]+|\d+)\b")
_NUMBERS = [
    "0",
    "-1",
    "1",
    "3",
    "7",
    "33",
    "65",
    "4096",
    "2147483647",
    "-2147483648",
    "18446744073709551615",
    "0fffffffff",
    "0d7ff0000000000000",
    "1.5",
    "0x1p3",
    "08",
    "(1+2)*3",
    "1/0",
    "1%0",
    "1<<70",
]
_WORDS = [
    "v2",
    "v4",
    "sat",
    "ftz",
    "rn",
    "wide",
    "hi",
    "shared",
    "global",
    "local",
    "const",
    "param",
    "sync",
    "aligned",
    "cta",
    "gpu",
    "acquire",
    "release",
    "volatile",
    "nc",
    "x4",
    "trans",
    "to",
]
_HEADS = [
    "add",
    "mul",
    "ld",
    "st",
    "atom",
    "bar",
    "mov",
    "cvt",
    "setp",
    "bra",
    "ret",
    "exit",
    "call",
    "trap",
    "mbarrier",
    "wgmma",
    "mma",
    "cp",
    "fence",
    "shfl",
    "brx",
    "vote",
]

Lines = list[str]


def mutate(text: str, entry: str, rng: random.Random) -> str:
    """The text with one to three changes, most of them in or behind the entry; at times cut, doubled or for another target."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if re.search(rf"\.entry\s+{re.escape(entry)}\b", line)), 0)
    for _ in range(rng.randint(1, 3)):
        first = min(start, len(lines) - 1) if rng.random() < 0.93 else 0
        rng.choice(_CHANGES)(lines, rng.randrange(first, len(lines)), rng)
        if len(lines) < 3:
            break
    changed = "\n".join(lines)
    kind = rng.random()
    if kind < 0.03:
        return changed[: rng.randrange(len(changed) + 1)]
    if kind < 0.05:
        return changed[: rng.randrange(len(changed) + 1)] + "/*" + changed[-50:]
    if kind < 0.06:
        return changed + changed
    if kind < 0.07:
        return re.sub(
            r"sm_\w+", rng.choice(("sm_75", "sm_80", "sm_100a", "sm_120", "sm_1", "sm_90z")), changed, count=1
        )
    return changed


def _operands(lines: Lines, i: int, rng: random.Random) -> None:
    found = _INSTRUCTION.match(lines[i])
    operands = _OPERAND.findall(found[3]) if found else []
    if found and len(operands) > 1:
        a, b = rng.sample(range(len(operands)), 2)
        operands[a], operands[b] = operands[b], operands[a]
        lines[i] = f"{found[1] or ''}{found[2]} {', '.join(operands)};"


def _type(lines: Lines, i: int, rng: random.Random) -> None:
    found = list(_TYPE.finditer(lines[i]))
    if found:
        at = rng.choice(found)
        lines[i] = f"{lines[i][: at.start()]}.{rng.choice(_TYPES)}{lines[i][at.end() :]}"


def _declaration(lines: Lines, i: int, rng: random.Random) -> None:
    places = [n for n, line in enumerate(lines) if line.lstrip().startswith(".reg")]
    if not places:
        return
    i = rng.choice(places)
    if rng.random() < 0.7:
        _type(lines, i, rng)
    else:
        lines[i] = re.sub(r"<\d+>", f"<{rng.choice((0, 1, 2, 10**6, 10**9))}>", lines[i])


def _label(lines: Lines, i: int, rng: random.Random) -> None:
    places = [n for n, line in enumerate(lines) if _LABEL.search(line)]
    if not places:
        return
    i, other = rng.choice(places), _LABEL.findall(lines[rng.choice(places)])[0]
    kind = rng.randrange(4)
    if kind == 0:
        lines[i] = _LABEL.sub(lambda m: other, lines[i], count=1)
    elif kind == 1:
        lines[i] = _LABEL.sub("$Lnowhere", lines[i], count=1)
    else:
        lines.insert(i if kind == 2 else rng.randrange(len(lines)), lines[i] if kind == 2 else f"{other}:")


def _brace(lines: Lines, i: int, rng: random.Random) -> None:
    i, j = sorted((i, rng.randrange(len(lines))))
    opened, closed = rng.choice((("{", "}"), ("{" * 70, "}" * 70), ("{" * 5000, ""), ("{", ""), ("", "}")))
    lines.insert(j, closed)
    lines.insert(i, opened)


def _number(lines: Lines, i: int, rng: random.Random) -> None:
    found = list(_NUMBER.finditer(lines[i]))
    if found:
        at = rng.choice(found)
        lines[i] = lines[i][: at.start()] + rng.choice(_NUMBERS) + lines[i][at.end() :]


def _modifier(lines: Lines, i: int, rng: random.Random) -> None:
    found = _INSTRUCTION.match(lines[i])
    if not found:
        return
    words = found[2].split(".")
    kind, at = rng.randrange(4), rng.randrange(len(words))
    if kind == 0 and len(words) > 2:
        a, b = rng.sample(range(1, len(words)), 2)
        words[a], words[b] = words[b], words[a]
    elif kind == 1 and at:
        del words[at]
    elif kind == 2:
        words.insert(at + 1, rng.choice(_WORDS))
    else:
        words[at] = rng.choice(_HEADS)
    lines[i] = f"{found[1] or ''}{'.'.join(words)} {found[3]};"


def _guard(lines: Lines, i: int, rng: random.Random) -> None:
    found = _INSTRUCTION.match(lines[i])
    if found:
        lines[i] = f"@{rng.choice(('', '!'))}%p{rng.randrange(6)} {found[2]} {found[3]};"


def _register(lines: Lines, i: int, rng: random.Random) -> None:
    kinds = ("rd", "rs", "r", "f", "fd", "p", "rq")
    lines[i] = re.sub(
        r"%(?:rd|rs|r|f|fd|p)(?=\d)", lambda m: f"%{rng.choice(kinds)}" if rng.random() < 0.3 else m[0], lines[i]
    )


def _delete(lines: Lines, i: int, rng: random.Random) -> None:
    del lines[i : i + rng.randint(1, 12)]


def _repeat(lines: Lines, i: int, rng: random.Random) -> None:
    lines[i:i] = lines[i : i + rng.randint(1, 8)]


def _swap(lines: Lines, i: int, rng: random.Random) -> None:
    j = rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]


def _shuffle(lines: Lines, i: int, rng: random.Random) -> None:
    some = lines[i : i + 10]
    rng.shuffle(some)
    lines[i : i + 10] = some


_CHANGES: tuple[Callable[[Lines, int, random.Random], None], ...] = (
    _operands, _type, _declaration, _label, _brace, _number, _modifier, _guard, _register, _delete, _repeat, _swap, _shuffle,
)  # fmt: skip
