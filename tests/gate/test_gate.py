"""Code, results and reports are the committed ones; and the gate sees what it is there to see."""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.kernels import CASES

from . import code, outputs, steps
from .__main__ import main
from .entries import FOLDER, Gate, compare, read, write
from .kernels import kernels
from .runs import ENDLESS, EXACT, PARTIAL, SCHEDULES, Result, Run, bits
from .runs import runs as all_runs

GATES = (code.GATE, outputs.GATE, steps.GATE)


@pytest.mark.parametrize("sampled", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["sample", "all"])
@pytest.mark.parametrize("gates", [(code.GATE,), (outputs.GATE, steps.GATE)], ids=["code", "runs"])
def test_nothing_changed(gates: tuple[Gate, ...], sampled: bool) -> None:
    """All of it is what `python -m tests.gate` compares. Outputs and steps are of the same runs, so in one process."""
    for gate in gates:
        differ = list(gate.changes(sampled))
        assert not differ, "\n".join([f"if this is meant: python -m tests.gate --renew {gate.name}", *differ])


def test_files_are_as_they_are_written(tmp_path: Path) -> None:
    """Nobody edited them by hand: writing what was read gives the same bytes."""
    for gate in GATES:
        write(tmp_path / "again.txt", gate.head, read(gate.path), gate.width)
        assert (tmp_path / "again.txt").read_text() == gate.path.read_text()


# --- what is held ----------------------------------------------------------------------------------


def _decorated(path: Path) -> dict[str, range]:
    """The functions that `kd.kernel` decorates, and their lines."""
    found: dict[str, range] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            names = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
            if "kd.kernel" in names:
                found[f"{path.name}:{node.lineno} {node.name}"] = range(node.lineno, (node.end_lineno or 0) + 1)
    return found


def test_every_kernel_of_the_examples_is_held() -> None:
    seen: dict[str, set[int]] = {}
    for name, kernel in kernels().items():
        if name.startswith("example."):
            for op in kernel.lower(kernel.targets[0]).ir.walk():
                seen.setdefault(Path(op.loc.file).name, set()).add(op.loc.line)
    bodies = {path: _decorated(path) for path in sorted((ROOT / "examples").glob("*.py"))}
    assert sum(map(len, bodies.values())) > 15
    for path, functions in bodies.items():
        assert [name for name, lines in functions.items() if not seen.get(path.name, set()).intersection(lines)] == []


def _library() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "kernel_dsl" / "library").rglob("*.py"))}


def _last_name(called: ast.expr) -> str:
    """`f` of `f` and of `a.f`; other texts take long."""
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


@cache
def _calls(tree: ast.Module) -> dict[str, list[ast.Call]]:
    """The calls in a module, by the last name of the function."""
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found.setdefault(_last_name(node.func), []).append(node)
    return found


def _passed(function: ast.FunctionDef, parameter: str, trees: list[ast.Module]) -> set[str]:
    """The strings that calls of a function give a parameter: by place, or by name where it has no place."""
    places = [a.arg for a in function.args.args if a.arg != "self"]
    found: set[str] = set()
    for node in (call for tree in trees for call in _calls(tree).get(function.name, ())):
        if ast.unparse(node.func) != "kd.kernel":
            by_name = [k.value for k in node.keywords if k.arg == parameter]
            given = node.args[places.index(parameter) :][:1] if parameter in places else by_name
            strings = [n.value for value in given for n in ast.walk(value) if isinstance(n, ast.Constant)]
            found |= {text for text in strings if isinstance(text, str)}
    return found


def _names(name: ast.expr, function: ast.FunctionDef | None, here: ast.Module, trees: list[ast.Module]) -> set[str]:
    """What the `name=` of a kernel can be, as patterns with [0-9] for a number of devices, from the text of the library."""
    if isinstance(name, ast.Constant):
        return {str(name.value)}
    found = {""}
    parts = name.values if isinstance(name, ast.JoinedStr) else [ast.FormattedValue(name, -1)]
    constants = {
        ast.unparse(n.targets[0]): ast.literal_eval(n.value)
        for n in here.body
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)
    }
    for part in parts:
        word = ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else ""
        if isinstance(part, ast.Constant):
            texts = {part.value}
        elif word in constants:
            texts = {constants[word]}
        elif function is not None and word in (a.arg for a in (*function.args.args, *function.args.kwonlyargs)):
            texts = _passed(function, word, trees if function.args.args[0].arg == "self" else [here])
        else:
            texts = {"[0-9]"}
        found = {first + str(text) for first in found for text in texts}
    return found


def _of_library() -> set[str]:
    """The names of the library's kernels."""
    trees = _library()
    found: set[str] = set()
    for tree in trees.values():
        kernels_made = _calls(tree).get("kernel", [])
        inside = {
            call: function
            for function in (ast.walk(tree) if kernels_made else ())
            if isinstance(function, ast.FunctionDef)
            for call in ast.walk(function)
            if isinstance(call, ast.Call)
        }  # a call's innermost function comes last
        for node in kernels_made:
            if ast.unparse(node.func) in ("kd.kernel", "walk.kernel"):
                (given,) = [k.value for k in node.keywords if k.arg == "name"]
                found |= _names(given, inside.get(node), tree, list(trees.values()))
    return found


def test_every_kernel_of_the_library_is_held() -> None:
    named = _of_library() - {"attention_score_probe"}  # it is traced to see what a function does, and never launched
    patterns = {name for name in named if "[0-9]" in name}
    groups = ("matmul.", "attention.", "collective.", "product.", "ring.")
    held = {kernel.name for name, kernel in kernels().items() if name.startswith(groups)}
    on_meshes = {name for name in held if any(fnmatch(name, pattern) for pattern in patterns)}
    assert held - on_meshes == named - patterns and len(named - patterns) == 80
    assert [p for p in patterns if not any(fnmatch(name, p) for name in on_meshes)] == [] and len(patterns) == 18


def test_every_kernel_of_the_suite_is_held() -> None:
    assert set(CASES) <= set(kernels()) and set(CASES) <= set(all_runs())
    assert EXACT | PARTIAL | set(ENDLESS) <= set(CASES)


# --- it can fail -----------------------------------------------------------------------------------


def test_another_entry_is_named(tmp_path: Path) -> None:
    old = {"a sm_80": "1 2 3 4", "b sm_80": "1 2 3 4", "c": "two\n  lines\n\nof text", "d": ""}
    write(tmp_path / "x.txt", "head\nof two lines", old, width=9)
    assert read(tmp_path / "x.txt") == old
    new = {"a sm_80": "1 5 3 4", "c": old["c"], "d": "", "e": "0"}
    told = list(compare("x", old, new, lambda a, b: "" if a == b else f"{a} became {b}"))
    assert told == ["x: a sm_80: 1 2 3 4 became 1 5 3 4", "x: b sm_80: is gone", "x: e: is new"]
    assert code.difference("1 2 3 4", "1 5 3 6") == "another LLVM, launch"


def test_code_that_changes_is_seen() -> None:
    """An instruction, a place in SMEM, a name of the IR; and not the line that something stands at."""
    texts = code.texts("through_smem", "sm_90a")
    assert code.digest(texts["PTX"]) != code.digest(texts["PTX"].replace("bar.sync", "bar.arrive", 1))
    assert "SmemRegion(name='buffer'" in texts["launch"] and "float32[64,64]" in texts["IR"]
    for target in ("sm_80", "sm_90a"):
        for part, text in code.texts("debugging", target).items():
            for word in (str(ROOT), ROOT.as_posix().encode().hex().upper(), ".loc\t", "!dbg", "DIFile", "callseq"):
                assert word not in text, (part, word)
        assert code.texts("debugging", target) == code.texts("debugging", target)  # whatever was compiled before


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16", "float8_e4m3fn"])
def test_a_unit_in_the_last_place(dtype: str) -> None:
    from kernel_dsl.dtypes import as_dtype

    numpy = as_dtype(dtype).numpy
    values = (bits(1000, 3) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1
    values = np.where(abs(values) < 2.0**-4, 0.5, values).astype(numpy)
    places = values.view(f"u{numpy.itemsize}")
    kept = outputs.stored(values, exact=False)

    def moved(distance: int, where: slice) -> str:
        other = places.copy()
        other[where] += np.array(distance, other.dtype)
        return outputs.difference(kept, outputs.stored(other.view(numpy), exact=False))

    assert moved(0, slice(None)) == "" and moved(1, slice(None, None, 2)) == ""
    assert "values differ" in moved(2, slice(None))
    unseen = sorted(set(range(1000)) - set(np.argsort(bits(1000, 78), kind="stable")[: outputs.SAMPLE]))
    other = values.copy()
    other[unseen[0]] = -96 if dtype != "float8_e4m3fn" else -448  # further than a unit in the last place of all of them
    assert "signed sum" in outputs.difference(kept, outputs.stored(other, exact=False))
    other[unseen[0]] = np.nan
    assert "became" in outputs.difference(kept, outputs.stored(other, exact=False))


def test_exact_outputs_are_the_same_to_the_bit() -> None:
    a = np.linspace(0, 1, 7, dtype=np.float32)
    b = np.nextafter(a, np.float32(2))
    assert outputs.difference(outputs.stored(a, exact=False), outputs.stored(b, exact=False)) == ""
    assert outputs.difference(outputs.stored(a, exact=True), outputs.stored(b, exact=True))
    assert outputs.difference(outputs.stored(a, exact=False), outputs.stored(-a, exact=False))
    zeros = np.zeros(3, np.float32)
    assert outputs.difference(outputs.stored(zeros, exact=False), outputs.stored(-zeros, exact=False))
    nothing = outputs.stored(zeros[:0], exact=False)
    assert outputs.difference(nothing, nothing) == ""


def test_a_schedule_with_another_result_has_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    ones, twos = (np.full(2, n, np.int32) for n in (1, 2))
    told = {
        "late": Result((ones,), 5),
        "eager": Result((twos,), 6),
        "random0": Result(hazard="[hazard] race: x\n --> y"),
    }
    monkeypatch.setattr(outputs, "results", lambda: {"kernel": told})
    monkeypatch.setattr(steps, "results", lambda: {"kernel": told})
    monkeypatch.setattr(steps, "_planted", list)
    assert set(outputs.entries()) == {"kernel 0 late", "kernel 0 eager"}
    assert steps.entries() == {"steps kernel": "late 5, eager 6", "report kernel": "random0:\n[hazard] race: x"}


def test_a_sample_is_compared_with_its_part_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed entries of all schedules against some: what they say of others is left out, and nothing else."""
    words = ("late", "random0")
    told = {
        "a": {word: Result((np.full(2, n, np.int32),), n) for n, word in enumerate(SCHEDULES, 1)},
        "b": {word: Result((np.ones(2, np.int32),), 7) for word in SCHEDULES},
        "c": {word: Result((), 9, f"[hazard] race: {word == 'late'}\n --> y") for word in SCHEDULES},
        "d": {word: Result((), 9, "" if word == "late" else "[hazard] race: x") for word in SCHEDULES},
    }
    some = {name: {word: by[word] for word in words} for name, by in told.items()}
    for module in (outputs, steps):
        monkeypatch.setattr(module, "results", lambda: told)
        monkeypatch.setattr(module, "runs", lambda: {name: Run(print, ()) for name in told})
        monkeypatch.setattr(module, "sampled_schedules", lambda name: words)
        monkeypatch.setattr(module, "sampled_results", lambda: some)
    monkeypatch.setattr(steps, "_planted", list)
    for module in (outputs, steps):
        kept, new = module.sample(module.entries())
        assert kept == new and len(new) >= 4
    some["a"]["random0"] = Result((np.zeros(2, np.int32),), 99)
    del some["b"]
    for module in (outputs, steps):
        kept, new = module.sample(module.entries())
        assert len(list(compare("x", kept, new, module.difference))) >= 2


def test_reports_have_no_folders_and_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text("first\n    out[...] = x\n")
    report = f"[hazard] race: x\n  at {path}:2 (PTX line 7: st.global)\n  in kernel 'k'\n  --> {path}:2\n   |\n 2 | out"
    assert steps.plain(report) == "[hazard] race: x\n  at user.py `out[...] = x` (st.global)\n  in kernel 'k'"
    assert steps.plain("  at PTX line 7: st.global") == "  at PTX line 7: st.global"  # of a text that is not generated
    assert steps.difference("5", "6") == "5 became 6"
    assert steps.difference("a\nb", "a\nc") == "\n- b\n+ c"


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel's texts are shown, and compared with those of another checkout: here with this one's."""
    assert main(["copy_wide", "--target", "sm_80"]) == 0
    shown = capsys.readouterr().out
    assert all(f"--- {part} of copy_wide for sm_80" in shown for part in code.PARTS) and ".target sm_80" in shown
    assert main(["copy_wide", "--against", str(ROOT)]) == 0
    assert capsys.readouterr().out == ""
    for wrong in (["copy_wade"], ["--renew", "copy_wide"]):
        with pytest.raises(SystemExit):
            main(wrong)
    assert "copy_wide" in capsys.readouterr().err


# --- other machines --------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_process_and_another_order() -> None:
    """Digests depend on no hash seed, and on nothing that was compiled before."""
    program = """
from tests.gate import code, kernels
found = kernels.kernels()
order = dict(reversed(found.items()))
code.kernels = lambda: order
import sys
sys.exit("\\n".join(code.GATE.changes()) or 0)
"""
    environment = {**os.environ, "PYTHONHASHSEED": "4242"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names the vector units of x86-64")
def test_a_machine_with_other_vector_units() -> None:
    """NumPy and OpenBLAS take other ways: outputs agree as far as the gate asks."""
    features = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR AVX2 FMA3"
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": features, "OPENBLAS_CORETYPE": "Nehalem"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.gate", "outputs"]
    done = subprocess.run(command, cwd=FOLDER.parents[1], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
