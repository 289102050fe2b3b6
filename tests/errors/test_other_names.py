"""Names of other array languages: the errors say what to write, by names that exist."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.other_names import WORDS


def test_the_help_names_what_exists() -> None:
    for text in WORDS.values():
        for path in re.findall(r"kd\.(\w+(?:\.\w+)*)", text):
            found: object = kd
            for part in path.split("."):
                found = getattr(found, part)


@pytest.mark.parametrize("name", sorted(WORDS))
def test_every_name_is_told(name: str) -> None:
    """As a function, and as a method of a value and of a Ref, unless these have it."""
    if not hasattr(kd, name):
        with pytest.raises(AttributeError, match=re.escape(f"`kernel_dsl` has no '{name}'")) as told:
            getattr(kd, name)
        assert WORDS[name] in str(told.value)

    def body(x: Any, out: Any) -> None:
        for handle in (x, x[...]):
            if hasattr(type(handle), name):
                continue
            with pytest.raises(AttributeError, match="unknown-name") as error:
                getattr(handle, name)
            assert "= help: " in str(error.value)
        out[...] = x[...]

    kd.kernel(body, out_type=lambda x: x).lower(np.ones(4, np.float32))


def test_methods_of_numpy_that_are_functions_here() -> None:
    """Of a Ref and of a value, each method of a NumPy array exists or has an error that says what to write."""
    names = [name for name in dir(np.ndarray) if name in kd.__all__]

    def body(x: Any, out: Any) -> None:
        for name in names:
            for handle in (x, x[...]):
                if not hasattr(type(handle), name):
                    with pytest.raises(AttributeError, match="unknown-name"):
                        getattr(handle, name)
        out[...] = x[...]

    assert len(names) > 10
    kd.kernel(body, out_type=lambda x: x).lower(np.ones(4, np.float32))


def test_misspelled_methods_are_told() -> None:
    """Each with a close name; other names, too. Private names, which libraries ask for, are Python's error."""

    def body(x: Any, out: Any) -> None:
        for handle in (x, x[...]):
            for name in ("transpose", "reshape", "shape", "dtype"):
                with pytest.raises(AttributeError, match=rf"unknown-name(.|\n)*`\.{name}`"):
                    getattr(handle, name[0] + name)
            with pytest.raises(AttributeError, match="unknown-name"):
                handle.zzyzx  # noqa: B018
            with pytest.raises(AttributeError, match="object has no attribute '_private'"):
                handle._private  # noqa: B018
            assert not hasattr(handle, "zzyzx")
        out[...] = x[...]

    kd.kernel(body, out_type=lambda x: x).lower(np.ones(4, np.float32))
