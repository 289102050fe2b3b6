"""`python -m examples.decoder train`, `serve` or `parallel`; with `--small`, the interpreter takes seconds."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import at_work


def _options(given: list[str] | None) -> Any:
    import torch

    from . import model

    parser = argparse.ArgumentParser(prog="python -m examples.decoder", description=__doc__)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--small", action="store_true", help="sizes for the interpreter")
    shared.add_argument("--vocab", type=int, help="tokens of the vocabulary")
    shared.add_argument("--layers", type=int)
    shared.add_argument("--weights", help="a file that `train --save` wrote; else they are random")
    shared.add_argument("--tokens", help="a file of token numbers; else they are made up")
    shared.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", parents=[shared], help="beside plain PyTorch, on the same data")
    train.add_argument("--steps", type=int, default=200)
    train.add_argument("--batch", type=int)
    train.add_argument("--length", type=int)
    train.add_argument("--rate", type=float, default=None)
    train.add_argument("--experts", type=int, default=0, help="a mixture of so many in place of one gated network")
    train.add_argument("--seconds", type=float, default=float("inf"), help="begin no step after this")
    train.add_argument("--eager", action="store_true", help="plain PyTorch is not compiled")
    train.add_argument("--save", help="the file for the weights")
    serve = commands.add_parser("serve", parents=[shared], help="ragged requests from a paged cache, in one graph")
    serve.add_argument("--requests", type=int, default=64)
    serve.add_argument("--longest", type=int, help="tokens of the longest prompt")
    serve.add_argument("--new", type=int, help="tokens to make for each request")
    serve.add_argument("--page", type=int, help="keys of a page")
    serve.add_argument("--pages", type=int, help="pages of the cache; by default as many as are needed")
    parallel = commands.add_parser("parallel", parents=[shared], help="on several devices, the same logits")
    parallel.add_argument("--devices", type=int, default=2)
    parallel.add_argument("--batch", type=int)
    parallel.add_argument("--length", type=int)
    parallel.add_argument("--dies", type=int, help="the rank that fails half-way: to see what is said then")
    options = parser.parse_args(given)
    for name, large, small in (
        ("batch", 4, 2), ("length", 2048, 16), ("rate", 3e-4, 3e-3), ("longest", 1024, 12), ("new", 128, 4), ("page", 64, 8)
    ):  # fmt: skip
        if getattr(options, name, 0) is None:
            setattr(options, name, small if options.small else large)
    for name in ("vocab", "layers", "steps", "batch", "length", "requests", "longest", "new", "page", "devices"):
        if (value := getattr(options, name, None)) is not None and value < 1:
            raise model.RefusedError(f"--{name} is {value}, and has to be 1 or more")
    _check(options)
    return options


def _check(options: Any) -> None:
    """Refuse options that would fail in the middle of the work."""
    import torch

    from . import model

    top = model.SIZES["small"].top
    given = vars(options)
    dies = given.get("dies")
    wrong = ""
    if given.get("experts") and options.experts < top:
        wrong = f"--experts is {options.experts}, and a token takes {top}"
    elif given.get("rate") is not None and not 0 < options.rate < float("inf"):
        wrong = f"--rate is {options.rate}, and has to be a number above 0"
    elif options.vocab == 1:
        wrong = "--vocab is 1, and has to be 2 or more"
    elif dies is not None and not 0 <= dies < options.devices:
        wrong = f"--dies is {dies}, and the ranks are 0 to {options.devices - 1}"
    elif given.get("save") and not Path(options.save).resolve().parent.is_dir():
        wrong = f"--save {options.save}: there is no such folder"
    elif given.get("save") and Path(options.save).is_dir():
        wrong = f"--save {options.save}: it is a folder"
    if wrong:
        raise model.RefusedError(wrong)
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        raise model.RefusedError(f"--device {options.device}: {str(error).splitlines()[0]}") from None


def _run(options: Any) -> int:
    from . import model

    asked = {n: x for n in ("vocab", "layers", "experts") if (x := getattr(options, n, None))}
    if options.weights:
        sizes, weights = model.load(options.weights, options.device, asked)
    else:
        sizes = replace(model.SIZES["small" if options.small else "large"], **asked)
        with at_work(f"weights are made on {options.device}"):
            weights = model.new_weights(sizes, options.device)
    if options.command == "train":
        from .train import train

        return train(options, sizes, weights)
    if sizes.experts:
        raise model.RefusedError(
            f"{options.command} takes weights of a gated network, and these are of {sizes.experts} experts"
        )
    if options.command == "serve":
        from .serve import serve

        return serve(options, sizes, weights)
    from .parallel import parallel

    return parallel(options, sizes, weights)


def main(given: list[str] | None = None) -> int:
    """Run a command. If it can't be done, print one line on standard error and return 2."""
    try:
        with at_work("PyTorch is imported"):
            from kernel_dsl.errors import Error

            from . import model
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print("decoder: it needs PyTorch, which is not installed: python -m pip install torch", file=sys.stderr)
        return 2
    try:
        return _run(_options(given))
    except model.RefusedError as error:
        print(f"decoder: {error}", file=sys.stderr)
    except Error as error:
        print(f"decoder: {str(error).splitlines()[0]}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # into a file or a pipe, too
    sys.exit(main())
