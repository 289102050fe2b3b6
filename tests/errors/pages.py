"""`python -m tests.errors.pages` writes `docs/errors`: one page for each class of error, from the class and its cases."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import kernel_dsl as kd
from kernel_dsl.runtime.errors import RunError
from tests.conftest import ROOT
from tests.errors.fixes import FIXES
from tests.errors.harness import BUILTINS, CASES

FOLDER = ROOT / "docs" / "errors"


_OWN_CODE = re.compile(r'^    code(: \w+)? = "', re.MULTILINE)
_INDEX = """# Errors

Every error derives from `kd.Error` and from the builtin that NumPy would raise. The word in brackets that its text begins with is its code.
These have a page each, with an example of a wrong program and its fix:

| error | when |
|---|---|
{rows}

These are about devices, files, tools and what a run finds, and have no page. Their text says what to do:

| error | class | when |
|---|---|---|
{more}
"""


def classes() -> dict[str, type[kd.Error]]:
    """Every class that a user can meet, by name: those of the language, and those of the runtime that have a fix."""
    import kernel_dsl
    from kernel_dsl.runtime import errors

    modules = [
        importlib.import_module(f"kernel_dsl.{m.name}")
        for m in pkgutil.iter_modules(kernel_dsl.__path__)
        if m.name.startswith("errors")
    ]
    found: dict[str, type[kd.Error]] = {}
    for module in (*modules, errors):
        for name, cls in vars(module).items():
            own = isinstance(cls, type) and issubclass(cls, kd.Error) and cls.__module__ == module.__name__
            if own and name in FIXES:
                found[name] = cls
    return found


def others() -> dict[str, type[kd.Error]]:
    """The classes that have no page, by code: no few lines show them wrong and right."""
    paged = {cls.code for cls in classes().values()}
    found: dict[str, type[kd.Error]] = {}
    for folder in ("kernel_dsl", "runtime", "lowering"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not _OWN_CODE.search(path.read_text()):
                continue
            parts = ("kernel_dsl", *path.relative_to(ROOT).with_suffix("").parts)
            for cls in vars(importlib.import_module(".".join(dict.fromkeys(parts)))).values():
                if (
                    isinstance(cls, type)
                    and issubclass(cls, kd.Error)
                    and cls.code not in paged
                    and "code" in vars(cls)
                ):
                    found[cls.code] = cls
    del found[RunError.code], found[kd.Error.code]  # none is raised itself
    return found


def fixed(name: str) -> str:
    """The source of a class's case, made right."""
    case, wrong, right = FIXES[name]
    source = (CASES / f"{case}.py").read_text()
    assert wrong in source, f"{case} does not hold {wrong!r}"
    return source.replace(wrong, right)


_COMMON = "x = np.ones((4, 8), np.float32)\n"


def _body(source: str) -> str:
    """A case without the lines that all cases begin with: the imports, and the array that most of them have."""
    last = next(line for line in (_COMMON, "import numpy as np\n", "import kernel_dsl as kd\n") if line in source)
    return source.partition(last)[2].strip().removeprefix("import kernel_dsl as kd\n").strip()


def page(name: str, cls: type[kd.Error]) -> str:
    case = FIXES[name][0]
    builtin = next(b.__name__ for b in BUILTINS if issubclass(cls, b))
    source = (CASES / f"{case}.py").read_text()
    given = "where `x` is a float32 array of shape (4, 8):" if _COMMON in source else "says:"
    message = (CASES / f"{case}.err").read_text().partition("\n")[2].rstrip()
    return f"""# {cls.code}

`{name}`, a `{builtin}`. {inspect.cleandoc(cls.__doc__ or "").partition(chr(10) * 2)[0]}

## Wrong

```python
{_body(source)}
```

{given}

```text
{message}
```

## Right

```python
{_body(fixed(name))}
```
"""


def pages() -> dict[Path, str]:
    """Every page, and the index."""
    made = {FOLDER / f"{cls.code}.md": page(name, cls) for name, cls in classes().items()}
    rows = [
        f"| [{cls.code}]({cls.code}.md) | {_first_line(cls)} |"
        for _, cls in sorted(classes().items(), key=lambda item: item[1].code)
    ]
    more = [f"| {code} | `{cls.__name__}` | {_first_line(cls)} |" for code, cls in sorted(others().items())]
    made[FOLDER / "README.md"] = _INDEX.format(rows="\n".join(rows), more="\n".join(more))
    return made


def _first_line(cls: type[kd.Error]) -> str:
    return inspect.cleandoc(cls.__doc__ or "").splitlines()[0]


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in FOLDER.glob("*.md"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.write_text(text)
    print(f"{len(made)} pages in {FOLDER}")


if __name__ == "__main__":
    main()
