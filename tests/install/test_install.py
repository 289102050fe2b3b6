"""Every way to install: one top-level name, which runs beside a user's own modules of our folders' names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest

import kernel_dsl as kd
from kernel_dsl.rooms import PARTS
from tests.conftest import ROOT

PROGRAM = Path(__file__).parent / "program.py"


@pytest.fixture(autouse=True)
def no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkout and environment is run once or twice: what would be written is never read. `checkout` brings what there is."""
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


def checkout(folder: Path, links: bool) -> Path:
    """A copy of what is in the repository. Without links they are text files that name their target, as on Windows."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git checkout, which tells what is in the repository")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        source, target = ROOT / name, folder / name
        if name.startswith(("tests/", "benchmarks/", "docs/")) or not (source.is_symlink() or source.is_file()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and not links:
            target.write_text(os.readlink(source))
        else:
            shutil.copy2(source, target, follow_symlinks=False)
            bring_bytecode(source, target)
    return folder


def bring_bytecode(source: Path, target: Path) -> None:
    """Copy what Python compiled of a module, if it did, so that a run of a copy need not compile it again.

    Python compares it with the time and size of the source. This run may have imported a module by the link to its folder.
    """
    for path in (source, ROOT / "kernel_dsl" / source.relative_to(ROOT)):
        compiled = Path(cache_from_source(str(path)))
        if source.suffix == ".py" and compiled.exists():
            copy = target.parent / "__pycache__" / compiled.name
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(compiled, copy)
            return


def users_folder(folder: Path) -> Path:
    """A program beside a module and a package with the names of our folders."""
    (folder / "lowering").mkdir(parents=True)
    (folder / "lowering" / "__init__.py").write_text('MINE = "a package"\n')
    (folder / "runtime.py").write_text('MINE = "a module"\n')
    shutil.copy(PROGRAM, folder)
    return folder


def run(python: str, folder: Path, *path: Path, name: str = "16_sum") -> str:
    """What the user's program prints with this example, a short one, run with these folders on PYTHONPATH."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "KERNEL_DSL_CACHE": "off"}
    example = ROOT / "examples" / f"{name}.py"
    command = [python, str(folder / "program.py"), str(example)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LINKS = [pytest.param(True, id="links"), pytest.param(False, id="no links", marks=pytest.mark.slow)]


@pytest.mark.parametrize("links", LINKS)
def test_a_checkout_on_the_path(links: bool, tmp_path: Path) -> None:
    place = checkout(tmp_path / "checkout", links)
    assert str(place) in run(sys.executable, users_folder(tmp_path / "user"), place)


@pytest.mark.parametrize("folders", [pytest.param("text", marks=pytest.mark.slow), "empty", "copies"])
def test_a_zip_file_on_the_path(folders: str, tmp_path: Path) -> None:
    """Programs that make zip files write a link as text, as an empty folder, or as a copy of what it points to."""
    place = checkout(tmp_path / "checkout", False)
    for part in PARTS:
        inside = place / "kernel_dsl" / part
        if folders != "text":
            inside.unlink()
        if folders == "empty":
            inside.mkdir()
        elif folders == "copies":
            shutil.copytree(place / part, inside)
    archive = Path(shutil.make_archive(str(tmp_path / "checkout"), "zip", place))
    assert str(archive) in run(sys.executable, users_folder(tmp_path / "user"), archive)


def test_a_users_module_after_a_checkout_on_the_path(tmp_path: Path) -> None:
    """Whatever the order, `import runtime` is the user's, and where he has none there is none."""
    place = checkout(tmp_path / "checkout", True)
    user = users_folder(tmp_path / "user")
    apart = tmp_path / "apart"
    apart.mkdir()
    shutil.move(user / "program.py", apart)
    run(sys.executable, apart, place, user)
    code = "import sys\nfor name in sys.argv[1:]:\n    try: __import__(name)\n    except ModuleNotFoundError as e: print(e)"
    done = subprocess.run(
        [sys.executable, "-c", code, "runtime", "lowering.module"],
        cwd=apart, env={**os.environ, "PYTHONPATH": str(place)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "No module named 'runtime'; ours is kernel_dsl.runtime",
        "No module named 'lowering'; ours is kernel_dsl.lowering",
    ]


def environment(folder: Path) -> str:
    """The Python of a fresh environment that has our dependencies, and not us."""
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", query], capture_output=True, text=True, check=True).stdout.strip()
    others = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    (Path(site) / "dependencies.pth").write_text("\n".join(others))  # whose own .pth files are not read
    return str(python)


def pip(*arguments: str | Path, python: str = sys.executable) -> None:
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("pip")
    command = [sys.executable, "-m", "pip", "--python", python, *map(str, arguments), "--no-deps", "--no-index"]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([*command, "--no-build-isolation"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_editable_install(tmp_path: Path) -> None:
    """It also leaves another checkout on the path alone, whose parts are its own."""
    place, python = checkout(tmp_path / "checkout", True), environment(tmp_path / "env")
    pip("install", "-e", place, python=python)
    user = users_folder(tmp_path / "user")
    assert str(place) in run(python, user)
    for part in PARTS:
        (place / part / "__init__.py").write_text("raise ImportError(__file__)\n")
    for links in (True, False):
        other = checkout(tmp_path / f"links {links}", links)
        assert str(other) in run(python, user, other)


@pytest.mark.slow
def test_an_editable_install_that_editors_read(tmp_path: Path) -> None:
    """A folder of links on the path, which type checkers follow, with the one name."""
    place, python = checkout(tmp_path / "checkout", True), environment(tmp_path / "env")
    pip("install", "-e", place, "--config-settings", "editable_mode=strict", python=python)
    (links,) = (place / "build").iterdir()
    assert [entry.name for entry in links.iterdir()] == ["kernel_dsl"]
    assert (links / "kernel_dsl" / "py.typed").exists() and (links / "kernel_dsl" / "lowering" / "llvm.py").exists()
    assert str(links) in run(python, users_folder(tmp_path / "user"))


def wheel(place: Path, folder: Path) -> Path:
    """The wheel of a checkout, made by the build backend as pip calls it."""
    pytest.importorskip("setuptools", minversion="77")
    folder.mkdir()
    code = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, folder], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_a_wheel(tmp_path: Path) -> None:
    place, python = checkout(tmp_path / "checkout", True), environment(tmp_path / "env")
    made = wheel(place, tmp_path / "wheel")
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert {n.partition("/")[0] for n in names} == {"kernel_dsl", f"kernel_dsl-{kd.__version__}.dist-info"}
    ours = [
        p for part in ("kernel_dsl", *PARTS) for p in (ROOT / part).rglob("*") if p.suffix in (".py", ".h", ".typed")
    ]
    assert sum(not n.startswith("kernel_dsl-") for n in names) == len({os.path.realpath(p) for p in ours})
    for line in (f"Version: {kd.__version__}", "License-Expression: Apache-2.0", "Classifier: Typing :: Typed"):
        assert re.search(f"^{line}$", metadata, re.MULTILINE), metadata
    pip("install", "--no-compile", made, python=python)
    assert "site-packages" in run(python, users_folder(tmp_path / "user"), name="01_softmax")


@pytest.mark.slow
def test_wheels_are_the_same_from_an_sdist_and_without_links(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    place, linked = checkout(tmp_path / "checkout", False), checkout(tmp_path / "linked", True)
    code = "from setuptools import build_meta; import sys; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=linked, capture_output=True, check=True)
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    found = []
    for name, tree in (("linked", linked), ("not", place), ("sdist", unpacked)):
        with zipfile.ZipFile(wheel(tree, tmp_path / f"wheel {name}")) as archive:
            found.append(sorted(n for n in archive.namelist() if "dist-info" not in n))
    assert found[0] == found[1] == found[2]
