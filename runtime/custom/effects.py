"""Effects of a body in CUDA C++ or Metal beyond its outputs, found in its text, so that both devices agree."""

from __future__ import annotations

import re
from functools import lru_cache

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*$", re.MULTILINE)
_BRACES = re.compile(r"\{[^{}]*\}")
# Code that prints, stops, runs PTX, allocates, keeps a variable for the next launch, or makes an input writable.
_WORDS = re.compile(
    r"\b(?:printf|assert|__trap|__brkpt|__assert_fail|__assertfail|trap|asm|__asm__|__asm|malloc|free|new|delete|static|extern|volatile"
    r"|__managed__|const_cast)\b"
    r"|\breinterpret_cast\s*<\s*(?!const\b)"
    r"|\(\s*(?!const\b)(?:\w+\s*::\s*)*\w[\w\s:<>,]*\*\s*\)"
)
# Statements at file scope that make no variable.
_HARMLESS = re.compile(
    r"^(?:using|typedef|struct|class|enum|union|template|namespace|constexpr|inline\s+constexpr|const|static_assert|\[\[|$)"
)
_FUNCTION = re.compile(r"\(\s*(?![\d.\"'-])")


@lru_cache(256)
def may_have_effects(header: str, source: str) -> bool:
    """Whether the body may have an effect beside writing its outputs. True in doubt."""
    plain = [_COMMENT.sub(" ", text) for text in (header, source)]
    if any(_WORDS.search(text) for text in plain):
        return True
    scope = _DIRECTIVE.sub("", plain[0])
    while _BRACES.search(scope):
        scope = _BRACES.sub(";", scope)
    return not all(_HARMLESS.match(words.strip()) or _FUNCTION.search(words) for words in scope.split(";"))
