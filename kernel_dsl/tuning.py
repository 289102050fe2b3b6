"""`kd.tuning`: what was tuned, shipped from one machine to another as a file. `kd.tune` measures."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from .boundary import public
from .errors_tuning import TuningFile
from .tuning_file import BadFile, merge_into, read_text, results_of, tuned_results
from .tuning_table import Tuning, TuningRow

__all__ = ["Tuning", "TuningRow", "load", "save"]


def _errors() -> Any:
    return import_module("kernel_dsl.runtime.errors")


@public
def load(path: str | Path) -> int:
    """Add the results of a file that `save` wrote, for this process.

    Returns the number of lines. Calls use them if GPU, kernel, its source and key are the same. If a key was tuned
    twice, the later run counts. Raises `TuningFile` for a file that is damaged, of another kind or of another version;
    FileError if it can't be read.
    """
    place = Path(path)
    try:
        found = results_of(read_text(place))
    except BadFile as error:
        raise TuningFile(path=place.name, what=error.what, hint=error.hint) from None
    except (OSError, ValueError) as error:
        raise _errors().file_error(place, "read", error) from None
    tuned_results().add(found, keep=False)
    return sum(map(len, found.values()))


@public
def save(path: str | Path) -> int:
    """Add all known results to a file.

    Returns its number of lines. Known are the results that this process measured and loaded, and those that this user's
    processes kept beside the disk cache. The file is replaced in one step. Raises `TuningFile` for an existing file
    that `load` refuses; FileError if it can't be written.
    """
    place = Path(path)
    try:
        whole = merge_into(place, tuned_results().everything(), lenient=False)
    except BadFile as error:
        raise TuningFile(path=place.name, what=error.what, hint=error.hint) from None
    except (OSError, ValueError) as error:
        raise _errors().file_error(place, "written", error) from None
    return sum(map(len, whole.values()))
