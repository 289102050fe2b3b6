"""Files of named entries, sorted, a line each where the text has one line: a change is a line of a diff."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_SEPARATOR = " | "
_INDENT = "    "


def read(path: Path) -> dict[str, str]:
    """The entries of a file; none where there is no file."""
    found: dict[str, str] = {}
    key = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(_INDENT):
            found[key] = f"{found[key]}\n{line.removeprefix(_INDENT)}".lstrip("\n")
        elif line and not line.startswith("#"):
            name, _, text = f"{line} ".partition(_SEPARATOR)
            key = " ".join(name.split())
            found[key] = text.strip()
    return found


def write(path: Path, head: str, entries: Mapping[str, str], width: int = 0) -> None:
    """Write entries below a heading. Keys take `width` characters at least; texts of several lines are indented."""
    lines = [f"# {line}" for line in head.splitlines()]
    for key, text in sorted(entries.items()):
        first, _, rest = key.partition(" ")
        name = f"{first:{width}} {rest:7}".rstrip(" ") if width and rest else key
        if "\n" in text:
            lines += [f"{name}{_SEPARATOR}".rstrip(), *(f"{_INDENT}{line}" for line in text.split("\n"))]
        else:
            lines.append(f"{name}{_SEPARATOR}{text}")
    path.write_text("\n".join(lines) + "\n")


def compare(
    name: str, old: Mapping[str, str], new: Mapping[str, str], difference: Callable[[str, str], str]
) -> Iterator[str]:
    """What differs, an entry each; `name` stands before it."""
    for key in sorted({*old, *new}):
        if key not in new:
            yield f"{name}: {key}: is gone"
        elif key not in old:
            yield f"{name}: {key}: is new"
        elif text := difference(old[key], new[key]):
            yield f"{name}: {key}: {text}"


@dataclass(frozen=True)
class Gate:
    """One committed file. `make` computes its entries; `difference` says how a new text differs from the committed one.

    `difference` is empty where the two are the same for the gate's purposes.
    """

    name: str
    head: str
    make: Callable[[], dict[str, str]]
    difference: Callable[[str, str], str]
    width: int = 0  # of the names' column
    # of the committed entries, those that a sample is compared with, and the sample's own
    sample: Callable[[Mapping[str, str]], tuple[dict[str, str], dict[str, str]]] | None = None

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.txt"

    def changes(self, sampled: bool = False) -> Iterator[str]:
        """What differs from the committed file, a name each. `sampled` takes the part that the default run has."""
        old = read(self.path)
        old, new = self.sample(old) if sampled and self.sample else (old, self.make())
        yield from compare(self.name, old, new, self.difference)

    def renew(self) -> Iterator[str]:
        """Write the file anew, and say what changed. Texts that differ by what is allowed stay as they are."""
        old, new = read(self.path), self.make()
        kept = {k: old[k] if k in old and not self.difference(old[k], text) else text for k, text in new.items()}
        write(self.path, self.head, kept, self.width)
        yield from compare(self.name, old, new, self.difference)
