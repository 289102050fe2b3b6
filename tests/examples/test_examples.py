"""Every example is right: each checks its kernels against NumPy in `main()`."""

from __future__ import annotations

import importlib
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("[0-9]*.py"))
# Seconds each, of kernels that the gate holds and the library has tests of; the others are all run by default.
LONG = (
    *("03_layer_norm", "12_matmul_persistent", "15_attention", "17_mixture_of_experts"),
    *("22_tensor_parallel_mlp", "23_ring_attention", "36_tune_matmul"),
)
# `--standalone` takes a free port, so that several tests may run at once.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_all_are_found() -> None:
    """Each has a number of its own, the order to read them in."""
    numbers = [int(name[:2]) for name in NAMES]
    assert numbers[0] == 1 and len(set(numbers)) == len(numbers) >= 10


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in NAMES])
def test_main(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`main()` ends without a failed check, and says what it checked."""
    from kernel_dsl.runtime.custom.nvrtc import NvrtcUnavailableError

    try:
        importlib.import_module(f"examples.{name}").main()
    except NvrtcUnavailableError as error:
        pytest.skip(str(error))
    assert capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.several_gpus
@pytest.mark.parametrize("start", [(), TORCHRUN], ids=["one", "torchrun"])
@pytest.mark.parametrize("name", [name for name in NAMES if "Mesh(" in (EXAMPLES / f"{name}.py").read_text()])
def test_on_two_gpus(name: str, start: tuple[str, ...]) -> None:
    """In a process of its own, where nothing has made a context before, and with one process a GPU."""
    path = EXAMPLES / f"{name}.py"
    done = subprocess.run([sys.executable, *start, str(path)], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_stencil_writes_a_picture(tmp_path: Path) -> None:
    """The PNG's chunks are whole, and its rows have the size that its header gives."""
    path = tmp_path / "heat.png"
    importlib.import_module("examples.08_stencil").main(str(path))
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    place, chunks = 8, {}
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        body = data[place + 4 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size])[0] == zlib.crc32(body)
        chunks[body[:4]] = body[4:]
        place += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any() and rows.max() == 255


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("rows", "stages", "blocks", "parts"), [(4, 2, 3, 1), (1, 3, 2, 1), (1, 2, 2, 2)])
def test_streamed_norms(centred: bool, rows: int, stages: int, blocks: int, parts: int) -> None:
    """Blocks that stay and rows shared by clusters, which `main()` reaches for one shape only."""
    example = importlib.import_module("examples.03_layer_norm")
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((12, 256 * parts)) * 2 + 1).astype(np.float32)
    gamma, beta = (rng.standard_normal(x.shape[1]).astype(np.float32) for _ in range(2))
    kernel = example.stream_kernel(centred, rows, stages, blocks, parts)
    got = kernel(x, gamma, beta) if centred else kernel(x, gamma)
    expected = example.reference(centred, x, x, gamma, beta)[0]
    assert np.max(np.abs(got[0] - expected)) < 1e-5
    if centred:
        assert np.max(np.abs(got[1] - x.mean(-1, dtype=np.float64))) < 1e-6


def test_the_decoder_without_pytorch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    decoder = importlib.import_module("examples.decoder")
    command = importlib.import_module("examples.decoder.__main__")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "examples.decoder.model", raising=False)
    monkeypatch.delattr(decoder, "model", raising=False)
    assert command.main(["train"]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last == "decoder: it needs PyTorch, which is not installed: python -m pip install torch"
