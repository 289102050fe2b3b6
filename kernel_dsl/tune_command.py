"""`python -m kernel_dsl tune`: the library's configurations for a problem, predicted, and measured where there is a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from .command_words import CommandError, dtype_named
from .dtypes import DType
from .loading import machine_code
from .memory import ShapeDtypeStruct
from .options import environment
from .stages import target_named
from .tuning_file import fastest, tuned_results, written
from .tuning_run import Trial, best_of, build, compiled, lines_of, measure, nothing_runs, with_lines
from .tuning_table import Tuning, TuningRow
from .version import __version__

CLOCK, UNIT = 1.75e9, "us"  # Hz of the estimates' clocks, and the unit of times that are made of these
_LAYOUTS = ("NN", "NT", "TN", "TT")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("what", choices=("matmul", "attention"))
    parser.add_argument("sizes", metavar="SIZES", help="MxNxK of a matmul, BATCHxHEADSxLENGTHxDIM of attention")
    parser.add_argument("dtype", metavar="DTYPE", help="such as bf16, f16, e4m3")
    parser.add_argument(
        "--layout", choices=_LAYOUTS, default="NN", help="T: that side of a matmul is stored by columns"
    )
    parser.add_argument("--causal", action="store_true", help="of attention: no query sees a later key")
    parser.add_argument(
        "--kv-heads", type=int, help="of attention: heads of keys and values, by default as many as queries have"
    )
    parser.add_argument("--keep", type=int, default=8, help="how many are compiled and measured")
    parser.add_argument("--seconds", type=float, default=2.0, help="to measure for")
    parser.add_argument("--again", action="store_true", help="measure again, although results are known")
    parser.add_argument("--all", action="store_true", help="also show configurations that were only predicted")


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    if options.keep < 1 or not options.seconds > 0:
        raise CommandError("--keep is 1 or more, and --seconds above 0")
    dtype = dtype_named(options.dtype, f"DTYPE {options.dtype!r}")
    tuning = matmul_tuning(options, dtype) if options.what == "matmul" else attention_tuning(options, dtype)
    rows = tuning.rows
    if not options.all:
        listed = [
            r
            for r in rows
            if r.seconds is not None or r.dropped or r.config is tuning.best or r in rows[: options.keep]
        ]
        hidden = len(rows) - len(listed)
        tuning = Tuning(tuning.kernel, tuning.gpu, tuning.key, tuning.how, tuning.best, listed, tuning.unit)
        print(f"{tuning}\nand {hidden} more, which were predicted to be slower: --all shows them" if hidden else tuning)
        return
    print(tuning)


def _sizes(text: str, names: str) -> list[int]:
    parts = text.lower().split("x")
    count = names.count("x") + 1
    if len(parts) != count or not all(part.isdecimal() and 0 < int(part) < 2**31 for part in parts):
        raise CommandError(f"the sizes {text!r} are not {names}, {count} ints above 0")
    return [int(part) for part in parts]


def matmul_tuning(options: argparse.Namespace, dtype: DType) -> Tuning[Any]:
    """The table of a product; its configurations are of `RouteChoice`."""
    from .library.product_routes.routes import routes
    from .library.product_routes.tuned_matmul import RouteTrial, choice_of, key_of
    from .library.products.arguments import MatmulOptions, request
    from .library.products.operands import TurnedStruct
    from .library.products.plan import plan_by
    from .library.tuned_choices import MATMUL, ranked

    m, n, k = _sizes(options.sizes, "MxNxK")
    sides = [
        TurnedStruct(ShapeDtypeStruct(shape[::-1], dtype)) if how == "T" else ShapeDtypeStruct(shape, dtype)
        for shape, how in zip([(m, k), (k, n)], options.layout, strict=True)
    ]
    machine = target_named(None)
    asked = request(sides[0], sides[1], MatmulOptions(), None)
    predicted = [
        (time, choice_of(r), r) for time, r in routes(asked.problem, asked.left, asked.right, asked.family, machine)
    ]
    known = {written(choice): route for _, choice, route in predicted}

    def make(config: Any) -> Trial:
        return RouteTrial(plan_by(asked, known[written(config)], machine.limits.multiprocessors), (sides[0], sides[1]))

    rows = ranked([(time, choice) for time, choice, _ in predicted], CLOCK)
    return searched(MATMUL, key_of(asked) or "", rows, make, sides, options)


def attention_tuning(options: argparse.Namespace, dtype: DType) -> Tuning[Any]:
    """The table of attention without options but `causal`; its configurations are of `AttentionConfig`."""
    from .library.attention_forward.attention import FAST, refusal
    from .library.attention_forward.kernel import attention_kernel
    from .library.attention_forward.options import AttentionOptions, problem_of
    from .library.attention_forward.tuned_attention import AttentionTrial, key_of, space
    from .library.tuned_choices import ATTENTION, ranked

    batch, heads, length, dim = _sizes(options.sizes, "BATCHxHEADSxLENGTHxDIM")
    kv = ShapeDtypeStruct((batch, options.kv_heads or heads, length, dim), dtype)
    structs = (ShapeDtypeStruct((batch, heads, length, dim), dtype), kv, kv)
    problem = problem_of(*structs, AttentionOptions(causal=options.causal), False)
    machine = target_named(None)
    blocks, plain = machine.limits.multiprocessors, problem.plain
    why = refusal(problem, structs, machine)
    if why or plain is None or dim not in FAST:
        dims = ", ".join(map(str, FAST))
        raise CommandError(
            f"there is one configuration: {why or f'the kernel that has several takes head dimensions of {dims}'}"
        )

    def make(config: Any) -> Trial:
        return AttentionTrial(attention_kernel(plain, config, blocks), structs)

    return searched(ATTENTION, key_of(problem) or "", ranked(space(problem, blocks), CLOCK), make, structs, options)


def searched(
    kernel: str,
    key: str,
    rows: Sequence[TuningRow[Any]],
    make: Callable[[Any], Trial],
    structs: Sequence[Any],
    options: argparse.Namespace,
) -> Tuning[Any]:
    """The results for a library kernel and a key, measured if necessary; `rows` have the predictions, in microseconds."""
    measuring = import_module("kernel_dsl.runtime.measure.samples")
    devices = import_module("kernel_dsl.runtime.devices.devices")
    bench = measuring.bench_of(devices.pick_device(None, []))
    gpu = "a machine without a GPU" if bench is None else bench.gpu
    lines = () if bench is None else tuned_results().find((gpu, kernel, "", key))
    known = fastest(lines, {row.text: row for row in rows})
    if known is not None and not options.again:
        rows = with_lines(rows, lines)
        return Tuning(kernel, gpu, key, "kept", next(row.config for row in rows if row.text == known), rows, UNIT)
    assembles = bench is not None or measuring.assembles_apart()
    apart = measuring.assembles_apart() and not environment().cache_off
    target = None if bench is None else bench.target
    built, taken = compiled(build(rows, make), options.keep, target, machine_code if assembles else None, apart, kernel)
    if not taken:
        raise nothing_runs(kernel, built.rows)
    if bench is None:
        return Tuning(kernel, gpu, key, "predicted", built.rows[taken[0]].config, built.rows, UNIT)
    with measuring.alone():
        built = measure(built, taken, bench, structs, list, options.seconds, None, kernel)
    found = lines_of(built.rows, (gpu, kernel, "", key), __version__, measuring.assembler())
    tuned_results().add({found[0].place: found})
    return Tuning(kernel, gpu, key, "measured", built.rows[best_of(built.rows)].config, built.rows, UNIT)
