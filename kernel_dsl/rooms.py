"""The folders of the package: `lowering` and `runtime` are folders of `kernel_dsl` once it is installed.

A checkout keeps them beside `kernel_dsl` and links them into it. Checkouts without symbolic links (Windows makes text files of
them) and zip files have no such folders; there a finder answers for the two names. `import runtime` never means ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

PARTS = ("lowering", "runtime")
HERE = os.path.dirname(os.path.abspath(__file__))
_BESIDE = os.path.dirname(HERE)


def folders() -> list[str]:
    """The folders with this project's code: the package, and each part that lies beside it."""
    return [HERE, *(folder_of(part) for part in PARTS if not _is_inside(part))]


def folder_of(part: str) -> str:
    """The folder of a part."""
    return os.path.join(HERE if _is_inside(part) else _BESIDE, part)


def _is_inside(part: str) -> bool:
    return os.path.isfile(os.path.join(HERE, part, "__init__.py"))


class PartsBeside:
    """A finder for the parts of a package that lie beside it. Folders inside the package come first, if they hold anything."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, part = name.rpartition(".")
        if package != __package__ or part not in PARTS:
            return None
        inside = PathFinder.find_spec(name, path)
        # a zip file may hold an empty folder in place of a link, which would be a namespace without an origin
        return inside if inside is not None and inside.origin else PathFinder.find_spec(name, [_BESIDE])


def give_way(name: str, file: str) -> None:
    """Import the user's module of this name in place of our folder, which a checkout on `sys.path` offers.

    Raises: ModuleNotFoundError: there is no other. None of our files becomes a module under a second name.
    """
    from importlib.util import module_from_spec  # takes time to import

    ours = os.path.dirname(os.path.dirname(os.path.abspath(file)))
    others = [p for p in sys.path if os.path.abspath(p) != ours and not os.path.isdir(os.path.join(p, "kernel_dsl"))]
    spec = PathFinder.find_spec(name, others)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}; ours is kernel_dsl.{name}", name=name)
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


if not all(_is_inside(part) for part in PARTS):
    # before the finders of editable installs, which would give the parts of another checkout, and before that of paths
    sys.meta_path.insert(sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0, PartsBeside())
