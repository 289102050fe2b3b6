"""Packages of AOTInductor are made and loaded in processes of their own, which PyTorch may end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# makes, loads and calls a package with an op of PyTorch's own making
PLAIN = """
import sys, torch
@torch.library.custom_op("plain::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
twice.register_fake(torch.empty_like)
class Model(torch.nn.Module):
    def forward(self, x):
        return twice(x + 1)
x = torch.randn(8, 64)
program = torch.export.export(Model(), (x,))
package = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), 2 * x + 2)
"""


def start(code: str, folder: Path, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder."""
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=folder)


def run(code: str, folder: Path, *args: str, env: dict[str, str] | None = None) -> str:
    """What a script prints that makes or loads a package.

    Where a signal ends it, `PLAIN` is tried, which has none of our code: the test is skipped if this ends the same way.
    """
    done = start(code, folder, *args, env=env)
    if done.returncode < 0 and start(PLAIN, folder, str(folder / "plain.pt2")).returncode == done.returncode:
        name = signal.Signals(-done.returncode).name
        pytest.skip(
            f"on this machine {name} ends PyTorch where it loads a package of AOTInductor, also one without our code"
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
