"""`python -m kernel_dsl`: checks the machine, shows the stages of a kernel, runs a file, tunes, and manages the disk cache."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import dtypes
from .command_words import CommandError, dtype_named
from .diagnostics import Error
from .memory import ShapeDtypeStruct
from .options import environment
from .version import __version__

_STAGES = ("ir", "llvm", "ptx", "resources", "sass")
_ARRAY = re.compile(r"^\s*(\w+)\s*\[([\d\s,]*)\]\s*$")


# --- arguments ------------------------------------------------------------------------------------


def parse_argument(text: str) -> Any:
    """`f32[1024,1024]` as a struct; `f32[]` has rank 0; `i64` a scalar of that dtype; `3`, `2.5`, `True` themselves."""
    array = _ARRAY.match(text)
    if array:
        extents = [int(n) for n in array.group(2).split(",") if n.strip()]
        return ShapeDtypeStruct(tuple(extents), dtype_named(array.group(1), f"--arg {text!r}"))
    if re.fullmatch(r"[A-Za-z]\w*", text.strip()) and text.strip() not in ("True", "False"):
        return dtype_named(text.strip(), f"--arg {text!r}")(1)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if not isinstance(value, (bool, int, float)):
        raise CommandError(f"--arg {text!r} is not an argument: write f32[1024,1024], i64, 3, 2.5 or True")
    return value


def find_kernel(place: str) -> Any:
    """The kernel that `FILE:KERNEL` names; `FILE` alone if it holds just one.

    KERNEL is a name, a dotted name, or any expression of the file's names that gives a kernel: `rows_kernel(4)`.
    """
    file, _, name = place.partition(".py:") if ".py:" in place else place.rpartition(":")
    file = f"{file}.py" if ".py:" in place else file or name
    name = "" if file == place else name
    if not Path(file).is_file():
        raise CommandError(f"there is no file {file!r}")
    sys.path.insert(0, str(Path(file).resolve().parent))
    found = runpy.run_path(file, run_name="__kernels__")
    kernels = {key: value for key, value in found.items() if _is_kernel(value)}
    if not name and len(kernels) == 1:
        return next(iter(kernels.values()))
    try:
        target = eval(name, found) if name else None
    except (NameError, AttributeError, SyntaxError):
        target = None
    except Error:
        raise
    except Exception as error:
        raise CommandError(f"{name} of {file} raised {type(error).__name__}: {error}") from error
    if not _is_kernel(target):
        listed = ", ".join(kernels) or "none"
        raise CommandError(f"{file} has no kernel {name!r}; its kernels are: {listed}. Write {file}:KERNEL")
    return target


def _is_kernel(value: Any) -> bool:
    return hasattr(value, "lower") and hasattr(value, "bind")


# --- commands -------------------------------------------------------------------------------------


def _ptx(options: argparse.Namespace) -> None:
    kernel = find_kernel(options.kernel)
    stages = kernel.lower(*(parse_argument(text) for text in options.arg), target=options.target)
    wanted: list[str] = options.stage or list(_STAGES)
    for name in wanted:
        text = _stage(stages, name, required=bool(options.stage))
        if len(wanted) > 1:
            print(f"// ---- {name} " + "-" * (90 - len(name)))
        print(text.rstrip("\n"))


def _stage(stages: Any, name: str, required: bool) -> str:
    if name == "ir":
        return str(stages)
    if name in ("llvm", "ptx"):
        return getattr(stages, name)
    try:
        compiled = stages.compile()
        if name == "sass":
            return compiled.sass
        lines = [f"{key}: {value}" for key, value in dataclasses.asdict(compiled.resources).items()]
        return "\n".join([*lines, *(f"remark: {remark}" for remark in compiled.remarks)])
    except Error as error:
        if required or error.code != "tool-missing":
            raise
        return f"// {error.fields['message']}"


def _run(options: argparse.Namespace) -> None:
    if not Path(options.file).is_file():
        raise CommandError(f"there is no file {options.file!r}")
    sys.argv = [options.file, *options.args]
    sys.path.insert(0, str(Path(options.file).resolve().parent))
    runpy.run_path(options.file, run_name="__main__")


def _cache(options: argparse.Namespace) -> None:
    settings = environment()
    if settings.cache_off:
        print("the disk cache is off (KERNEL_DSL_CACHE=off)")
        return
    if settings.cache_dir is None:
        print("there is no disk cache: no home folder of this user is known. Name a folder in KERNEL_DSL_CACHE")
        return
    disk = importlib.import_module("kernel_dsl.runtime.disk_cache").DiskCache(settings.cache_dir)
    found = disk.stats()
    if options.action == "clear":
        print(f"removed {disk.clear()} kernels from {found.directory}")
        return
    print(f"{found.directory}: {found.entries} kernels, {found.bytes} bytes of at most {found.max_bytes}")
    for line in disk.listing() if options.action == "list" else ():
        print(line)


def _doctor(options: argparse.Namespace) -> int:
    doctor = importlib.import_module("kernel_dsl.runtime.build.doctor")
    broken = 0
    for finding in doctor.findings(list(_trials())):
        print(finding, flush=True)
        broken += finding.state == doctor.BROKEN
    return 1 if broken else 0


def _trials() -> Iterator[tuple[str, Callable[[], str]]]:
    """Small kernels, tried on all that there is."""
    import numpy as np

    from .kernel_decorator import kernel

    x = np.arange(256, dtype=np.float32)

    @kernel(out_type=ShapeDtypeStruct(x.shape, dtypes.float32))
    def double(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    def right(y: Any) -> str:
        if not np.array_equal(y, x * 2):
            raise ArithmeticError("a kernel that doubles its input gave something else")
        return "a kernel ran, and its result is right"

    def assemble() -> str:
        found = double.lower(x).compile().resources
        return f"a kernel was assembled, into {found.registers} registers a lane"

    yield "compiling", lambda: f"a kernel became {len(double.lower(x).ptx.splitlines())} lines of PTX"
    yield "assembling", assemble
    yield "interpreter", lambda: right(double(x, interpret=True))
    if importlib.import_module("kernel_dsl.runtime.devices.driver").available():
        yield "running", lambda: right(double(x, interpret=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernel_dsl", description=__doc__)
    parser.add_argument("--version", action="version", version=f"kernel-dsl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    exhibits = importlib.import_module("kernel_dsl.runtime.check.gallery")
    checker = importlib.import_module("kernel_dsl.runtime.check.command")
    tuner = importlib.import_module("kernel_dsl.tune_command")
    doctor = commands.add_parser("doctor", help="what works on this machine, and how to fix the rest")
    doctor.set_defaults(run=_doctor)
    ptx = commands.add_parser("ptx", help="the stages of a kernel in a file: IR, LLVM, PTX, resources, machine code")
    ptx.add_argument("kernel", metavar="FILE:KERNEL")
    ptx.add_argument(
        "--arg", action="extend", nargs="+", default=[], metavar="ARG",
        help="an input, such as f32[1024,1024] for an array, i64 for a scalar, or 3, 2.5, True",
    )  # fmt: skip
    ptx.add_argument("--target", help="such as sm_90a")
    ptx.add_argument("--stage", action="append", choices=_STAGES, help="only this one; may be repeated")
    ptx.set_defaults(run=_ptx)
    check = commands.add_parser("check", help="find races, missing fences, deadlocks and more in PTX, on the CPU")
    checker.add_options(check)
    check.set_defaults(run=checker.run)
    gallery = commands.add_parser(
        "gallery", help="find known bugs of public projects, and nothing in their fixed versions"
    )
    exhibits.add_options(gallery)
    gallery.set_defaults(run=exhibits.run)
    run = commands.add_parser("run", help="run a file; errors end at its own lines")
    run.add_argument("file", metavar="FILE")
    run.add_argument("args", nargs=argparse.REMAINDER, help="arguments for the file")
    run.set_defaults(run=_run)
    tune = commands.add_parser(
        "tune", help="configurations of the library's matmul or attention for a problem, as a table"
    )
    tuner.add_options(tune)
    tune.set_defaults(run=tuner.run)
    cache = commands.add_parser("cache", help="the disk cache of compiled kernels")
    cache.add_argument("action", nargs="?", choices=("show", "list", "clear"), default="show")
    cache.set_defaults(run=_cache)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0; 1 if the command failed; 2 if its arguments make no sense; 141 if nobody
    reads its output any longer, as in `... | head`."""
    options = _parser().parse_args(arguments)
    try:
        status = options.run(options) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if options.run is _run:  # the file's own error
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest when it ends
        return 141  # as of a program that SIGPIPE ends
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
