"""Kernels in Metal Shading Language beside torch's own: `python -m benchmarks.grid_sample [--json FILE]`.

Bilinear sampling of 8 images of 1024 x 1024 with 64 channels at 256 x 256 points, forward and backward. torch keeps
channels second in its interface; it is given channels-last memory, which its kernels read as ours do.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import torch

from .harness import interleaved, machine, table

EXAMPLE = importlib.import_module("examples.20_metal_grid_sample")


def _relative(got: Any, expected: Any) -> str:
    error = ((got.double() - expected.double()).norm() / expected.double().norm()).item()
    assert error < 1e-3, error
    return f"{error:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    path = parser.parse_args().json
    print(machine())
    x = torch.randn(8, 1024, 1024, 64, device="cuda")
    grid = torch.rand(8, 256, 256, 2, device="cuda") * 2 - 1
    cotangent = torch.randn(8, 256, 256, 64, device="cuda")
    nchw, cotangent_nchw = x.permute(0, 3, 1, 2), cotangent.permute(0, 3, 1, 2)

    def torch_forward() -> Any:
        return torch.nn.functional.grid_sample(nchw, grid, align_corners=False)

    def torch_backward() -> Any:
        # bilinear, zeros outside, gradients of both
        return torch.ops.aten.grid_sampler_2d_backward(cotangent_nchw, nchw, grid, 0, 0, False, [True, True])

    checked = _relative(EXAMPLE.grid_sample(x, grid), torch_forward().permute(0, 2, 3, 1))
    grads, peer = EXAMPLE.grid_sample_backward(x, grid, cotangent), torch_backward()
    errors = [checked, _relative(grads[0], peer[0].permute(0, 2, 3, 1))]
    rows: list[dict[str, Any]] = []
    for name, ours, theirs, error in (
        ("forward", lambda: EXAMPLE.grid_sample(x, grid), torch_forward, errors[0]),
        ("backward", lambda: EXAMPLE.grid_sample_backward(x, grid, cotangent), torch_backward, errors[1]),
    ):
        times = interleaved({"ours": ours, "torch": theirs})
        ours_time, torch_time = times["ours"], times["torch"]
        rows.append(
            {
                "kernel": name,
                "us": f"{ours_time.median * 1e6:.0f} ({ours_time.low * 1e6:.0f}-{ours_time.high * 1e6:.0f})",
                "torch us": f"{torch_time.median * 1e6:.0f}",
                "torch / ours": f"{torch_time.median / ours_time.median:.2f}",
                "difference": error,
            }
        )
    table(rows, path)


if __name__ == "__main__":
    main()
