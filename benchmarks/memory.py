"""Memory-bound kernels beside `Tensor.copy_` of the same bytes: `python -m benchmarks.memory [names] [--json FILE]`.

The floor of each is its bytes over the bandwidth that the copy reaches in the same run: ratio 1.00. Outputs are
poisoned with NaN, and checked against float64 on fresh random inputs, before anything is timed.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import torch

from .harness import interleaved, machine, table

SHAPES = [(8192, 8192), (16384, 4096), (4096, 32768), (131072, 128)]


def _check(name: str, got: Any, expected: Any, tolerance: float) -> float:
    error = ((got.double() - expected).norm() / expected.norm()).item()
    assert error <= tolerance, f"{name}: relative error {error:.2e} over {tolerance:.0e}"
    return error


def _row(
    name: str, run: Callable[[], Any], copies: tuple[Any, Any], bytes: int, extra: dict[str, Any]
) -> dict[str, Any]:
    target, source = copies
    times = interleaved({"ours": run, "copy": lambda: target.copy_(source), **extra.pop("peers", {})})
    ours, copy = times["ours"], times["copy"]
    copied = 2 * source.numel() * source.element_size()
    row: dict[str, Any] = {
        "kernel": name,
        "us": f"{ours.median * 1e6:.1f} ({ours.low * 1e6:.1f}-{ours.high * 1e6:.1f})",
        "TB/s": f"{bytes / ours.median * 1e-12:.2f}",
        "copy TB/s": f"{copied / copy.median * 1e-12:.2f}",
        "of copy": f"{(bytes / ours.median) / (copied / copy.median):.3f}",
        **extra,
    }
    for peer in times:
        if peer not in ("ours", "copy"):
            row[peer] = f"{times[peer].median * 1e6:.1f} us"
    return row


def softmax(rows: list[dict[str, Any]]) -> None:
    """bf16 softmax along the last axis."""
    module = importlib.import_module("examples.01_softmax")
    for shape in SHAPES:
        x = torch.randn(shape, device="cuda").bfloat16()
        out = torch.full_like(x, float("nan"))
        kernel = module.softmax_for(shape[1])
        kernel(x, out=out)
        part = slice(0, 1024)
        expected = torch.softmax(x[part].double(), -1)
        error = _check("softmax", out[part], expected, 4e-3)
        assert not out.isnan().any()
        spills = kernel.lower(x, target="sm_90a").compile().resources
        rows.append(
            _row(
                f"softmax bf16 {shape[0]}x{shape[1]}",
                lambda k=kernel, x=x, o=out: k(x, out=o),
                (torch.empty_like(x), x),
                2 * x.numel() * 2,
                {"error": f"{error:.1e}", "regs": spills.registers, "spills": spills.spills,
                 "peers": {"torch": lambda x=x: torch.softmax(x, -1)}},
            )
        )


def vector_add(rows: list[dict[str, Any]]) -> None:
    """float32 addition of 2^27 elements: two arrays read, one written."""
    module = importlib.import_module("examples.02_vector_add")
    x, y = (torch.randn(2**27, device="cuda") for _ in range(2))
    out = torch.full_like(x, float("nan"))
    module.vector_add(x, y, out=out)
    assert torch.equal(out, x + y)
    resources = module.vector_add.lower(x, y, target="sm_90a").compile().resources
    rows.append(
        _row(
            "vector add f32 2^27",
            lambda: module.vector_add(x, y, out=out),
            (torch.empty_like(x), x),
            3 * x.numel() * 4,
            {"error": "0", "regs": resources.registers, "spills": resources.spills,
             "peers": {"torch": lambda: torch.add(x, y, out=out)}},
        )
    )


WORK = {"softmax": softmax, "vector_add": vector_add}


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*WORK, []], default=[])
    parser.add_argument("--json")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(machine())
    for name in args.names or WORK:
        try:
            WORK[name](rows)
        except AssertionError as error:
            print(f"{name}: {error}")
        table(rows, args.json)
    print(machine())


if __name__ == "__main__":
    main()
