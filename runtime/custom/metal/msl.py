"""The few places where Metal Shading Language is not C++ as NVRTC reads it, rewritten token by token.

- Address spaces: `device` and `thread` go, `constant` is `const`, and `threadgroup` is `__shared__`
  on a variable and nothing on what a pointer or reference points to.
- Literals: 1.0 is a float in Metal (there is no double), 1.0h a half, 1.0bf a bfloat.
- `c ? a : b` of a 16-bit float and another number: C++ has no answer where Metal has one (see
  `branch` in kd_metal.h).
- Elements of inputs: `x[i]` outside the array is 0. Kernels written for Metal count on such reads doing no harm.

Lines stay lines, so that the compiler's line numbers are the user's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache

_TOKEN = re.compile(
    r"""
    (?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<space>\s+)
  | (?P<mark>::|->|\#\#|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN = {"(": ")", "[": "]", "{": "}"}
_CLOSE = frozenset(_OPEN.values())
_MAX_COPY = 4000  # characters of a branch that is copied into its own type


def translate(text: str, ternaries: bool, checked: Collection[str] = ()) -> str:
    """MSL as CUDA C++ for use within namespace metal.

    `ternaries`: the kernel has 16-bit floats. `checked`: arrays whose elements are read with bounds.
    """
    tokens = [match.group() for match in _TOKEN.finditer(text)]
    tokens = [_literal(token) for token in tokens]
    tokens = _address_spaces(tokens)
    if checked:
        _check(tokens, checked)
    if ternaries:
        _meet(tokens)
    return "".join(tokens)


def _blank(token: str) -> bool:
    """Whether a token is white space or a comment."""
    return not token or token.isspace() or token.startswith(("//", "/*"))


def _literal(token: str) -> str:
    if not re.match(r"\.?\d", token) or token[:2] in ("0x", "0X", "0b", "0B"):
        return token
    found = re.fullmatch(r"((?:[\d']+\.?[\d']*|\.[\d']+)(?:[eE][+-]?[\d']+)?)(h|H|bf|BF|f|F)?", token)
    if found is None:
        return token
    number, suffix = found.group(1).replace("'", ""), (found.group(2) or "").lower()
    if suffix in ("h", "bf"):
        if number.isdigit():
            number += ".0"
        return f"{'half' if suffix == 'h' else 'bfloat'}({number}f)"
    return f"{number}f" if not suffix and not number.isdigit() else token


def _address_spaces(tokens: Sequence[str]) -> list[str]:
    out: list[str] = []
    parentheses = 0
    for i, token in enumerate(tokens):
        parentheses += (token == "(") - (token == ")")
        if token in ("device", "thread"):
            out.append("")
        elif token == "constant":
            out.append("const")
        elif token == "threadgroup":
            # A parameter written as an array is a pointer, too.
            declares = parentheses == 0 and _declares(tokens, i + 1)
            out.append("__shared__" if declares else "")
        else:
            out.append(token)
    return out


def _declares(tokens: Sequence[str], at: int) -> bool:
    """Whether the tokens after `threadgroup` declare a variable in SMEM, and not the type of a pointer."""
    angles = words = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if _blank(token):
            continue
        if token == "<":
            angles += 1
        elif token == ">":
            angles -= 1
        elif angles > 0:
            continue
        elif token in ("*", "&", "(", ")", ">"):
            return False
        elif token in (";", "[", "=", "{", ","):
            return words >= 2
        elif token != "::":
            words += 1
    return False


# --- elements of inputs ------------------------------------------------------------------------------


@cache
def reads(text: str, name: str) -> bool:
    """Whether `translate` finds reads of elements of `name`."""
    tokens = [match.group() for match in _TOKEN.finditer(text)]
    return bool(_places(tokens, (name,)))


def _check(tokens: list[str], names: Collection[str]) -> None:
    """`x[i]` as `metal::detail::reader(x, kd_x_bounds)[i]`, in place."""
    for at in _places(tokens, names):
        tokens[at] = f"metal::detail::reader({tokens[at]}, {bounds_name(tokens[at])})"


def bounds_name(name: str) -> str:
    """The parameter that holds an input's bounds."""
    return f"kd_{name}_bounds"


def _places(tokens: Sequence[str], names: Collection[str]) -> list[int]:
    """The positions of arrays' names that an index follows."""
    skip = {at for directive in _directives(tokens) for at in directive}
    found: list[int] = []
    solid = [i for i, token in enumerate(tokens) if not _blank(token)]
    for place, at in enumerate(solid[:-1]):
        if tokens[at] not in names or tokens[solid[place + 1]] != "[" or at in skip:
            continue
        if not _names_place([tokens[i] for i in solid[max(place - 2, 0) : place]]):
            found.append(at)
    return found


def _names_place(before: Sequence[str]) -> bool:
    """Whether `x[i]` after these tokens is a declaration, a member or an operand of unary &."""
    last = before[-1] if before else ""
    if last in (".", "->", "::"):
        return True
    if last == "&":
        left = before[-2] if len(before) > 1 else ""
        return not (left in ("&", ")", "]") or (re.fullmatch(r"\w+", left) and left != "return"))
    return re.fullmatch(r"[A-Za-z_]\w*", last) is not None and last not in ("return", "else", "do", "case")


# --- the conditional operator ---------------------------------------------------------------------


def _meet(tokens: list[str]) -> None:
    """Wrap both sides of every `c ? a : b` so that they have one type, in place.

    The replacement text of a macro counts as separate code; other directives stay.
    """
    code = list(range(len(tokens)))
    for directive in _directives(tokens):
        code = [i for i in code if i not in directive]
        words = [i for i in directive if not _blank(tokens[i])]
        if len(words) > 1 and tokens[words[1]] == "define":
            _meet_in(tokens, directive)
    _meet_in(tokens, code)


def _meet_in(tokens: list[str], places: Sequence[int]) -> None:
    """`_meet` for the tokens at `places`, as if they were next to each other."""
    read = [tokens[i] for i in places]
    done = list(read)
    for at in range(len(read) - 1, -1, -1):
        if read[at] != "?":
            continue
        colon = _colon(read, at + 1)
        end = _end(read, colon + 1) if colon else 0
        if not end:
            continue
        left, right = _plain(done[at + 1 : colon]), _plain(done[colon + 1 : end])
        sides = left + right
        if not left or not right or "{" in sides or "throw" in sides or len(sides) > _MAX_COPY:
            continue
        head = f"metal::branch<decltype({left}), decltype({right})>("
        done[at] = f"? {head}"
        done[colon] = f"): {head}"
        done[end - 1] += ")"
    for place, token in zip(places, done, strict=True):
        tokens[place] = token


def _directives(tokens: Sequence[str]) -> list[range]:
    """The tokens of each preprocessor directive, from its # to the end of its last line."""
    found: list[range] = []
    fresh, start = True, -1
    for i, token in enumerate(tokens):
        if start >= 0:
            if token.isspace() and "\n" in token and tokens[i - 1] != "\\":
                found.append(range(start, i))
                fresh, start = True, -1
        elif token == "#" and fresh:
            start = i
        elif token.isspace() and "\n" in token:
            fresh = True
        elif not _blank(token):
            fresh = False
    return found if start < 0 else [*found, range(start, len(tokens))]


def _colon(tokens: Sequence[str], at: int) -> int:
    """The `:` that belongs to the `?` before `at`, or 0."""
    depth = nested = 0
    for i in range(at, len(tokens)):
        token = tokens[i]
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
            if depth < 0:
                return 0
        elif token == ";":
            return 0
        elif depth == 0 and token == "?":
            nested += 1
        elif depth == 0 and token == ":":
            if nested == 0:
                return i
            nested -= 1
    return 0


def _end(tokens: Sequence[str], at: int) -> int:
    """The end of the expression after a `:`: past its last token that is no blank. 0 if it is unclear."""
    depth = nested = last = 0
    i = at
    while i < len(tokens):
        token = tokens[i]
        if depth == 0 and (token in (";", ",") or token in _CLOSE or (token == ":" and nested == 0)):
            break
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
        elif depth == 0 and token == "?":
            nested += 1
        elif depth == 0 and token == ":":
            nested -= 1
        elif token == "<" and depth == 0:
            i = _skip_template(tokens, i) - 1
        if not _blank(tokens[i]):
            last = i + 1
        i += 1
    return last if i < len(tokens) or depth == 0 else 0


def _skip_template(tokens: Sequence[str], at: int) -> int:
    """Past the `>` of template arguments that open at `at`; past the `<` itself if it is a comparison."""
    depth = 0
    for i in range(at, len(tokens)):
        token = tokens[i]
        if token == "<":
            depth += 1
        elif token == ">":
            depth -= 1
            if depth == 0:
                following = next((t for t in tokens[i + 1 :] if not _blank(t)), "")
                return i + 1 if following in ("(", "{", "::") else at + 1
        elif not (_blank(token) or token in ("::", ",", "*", "&") or re.fullmatch(r"\w+", token)):
            return at + 1
    return at + 1


def _plain(tokens: Sequence[str]) -> str:
    """Tokens on one line, without comments and the ends of continued lines."""
    return "".join(" " if _blank(t) or t == "\\" else t for t in tokens).strip()
