"""The decoder of the examples: trained beside PyTorch, served from pages, on two devices; and what it says of bad input."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_dsl.runtime.devices import driver
from tests.conftest import ROOT

torch = pytest.importorskip("torch")

from examples.decoder import model  # noqa: E402
from examples.decoder.__main__ import main  # noqa: E402

DEVICES = ["cpu", *(["cuda"] * bool(driver.available() and torch.cuda.is_available()))]
SIZES = replace(model.SIZES["small"], layers=1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("experts", [0, 3])
def test_gradients_of_the_decoder_are_as_near_as_plain_ones(device: str, experts: int) -> None:
    """Of all weights, compared with float64: no further than twice what PyTorch's own bfloat16 is."""
    sizes = replace(SIZES, experts=experts)
    weights = model.new_weights(sizes, device)
    turns = model.angles(sizes, device)
    tokens = torch.arange(16, device=device).reshape(2, 8) * 7 % sizes.vocab
    targets = (tokens * 5 + 7) % sizes.vocab

    def gradients(loss: Any, like: Any) -> list[Any]:
        given = {n: like(w).requires_grad_() for n, w in weights.items()}
        return [x.double() for x in torch.autograd.grad(loss(given, tokens, targets, sizes, turns), given.values())]

    def exact_loss(w: Any, *_: Any) -> Any:
        rows = model.plain(w, tokens, sizes, turns)
        return torch.nn.functional.cross_entropy(rows @ w["head"].T, targets.reshape(-1))

    ours, plain = (gradients(f, torch.clone) for f in (model.ours_loss, model.plain_loss))
    # weights that bfloat16 has, so that the difference is the computation's alone
    exact = gradients(exact_loss, lambda w: w.bfloat16().double())

    def distance(made: list[Any]) -> float:
        parts = [((a - b).norm() / b.norm()).item() for a, b in zip(made, exact, strict=True)]
        return sum(parts) / len(parts)

    assert distance(ours) < 2 * distance(plain)
    assert distance(plain) < 0.1


def small(command: str, *more: str, device: str = "cpu") -> list[str]:
    return [command, "--small", "--layers", "2", "--device", device, *more]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("experts", ["0", "3"])
def test_train(device: str, experts: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = str(tmp_path / "weights.pt")
    more = ["--steps", "3", "--batch", "1", "--length", "8", "--experts", experts, "--save", kept]
    assert main(small("train", *more, device=device)) == 0
    shown = capsys.readouterr()
    assert "step    2: loss" in shown.out and "ratio" in shown.out
    assert "training [##############################] 3/3" in shown.err
    if experts == "0":  # the same weights serve, and with another vocabulary they do not
        assert main(small("serve", "--requests", "2", "--new", "2", "--weights", kept, device=device)) == 0
        capsys.readouterr()
        assert main(small("serve", "--weights", kept, "--vocab", "50")) == 2
        said = capsys.readouterr().err
        assert f"the weights in {kept} have a vocabulary of 96 tokens, and --vocab is 50\n" in said
        assert main(small("parallel", "--weights", kept, "--layers", "9")) == 2
        assert f"the weights in {kept} have 2 layers, and --layers is 9\n" in capsys.readouterr().err
    else:
        assert main(small("serve", "--weights", kept)) == 2
        assert "serve takes weights of a gated network, and these are of 3 experts" in capsys.readouterr().err


def test_losses_that_differ_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plain = model.plain_loss
    monkeypatch.setattr(model, "plain_loss", lambda *a, **k: plain(*a, **k) * 1.1)
    more = ["--steps", "9", "--seconds", "0", "--batch", "1", "--length", "8", "--eager"]
    assert main(small("train", *more)) == 1
    shown = capsys.readouterr()
    assert "that is more than noise, 3 %" in shown.out and "step    1" not in shown.out
    assert "--seconds 0 are over after 1 of 9 steps" in shown.err


def test_a_command_says_that_it_is_at_work() -> None:
    """Before PyTorch is imported, which takes seconds, and again and again in what takes longer."""
    code = "import examples.decoder as d, sys, time\nd.EVERY = 0.02\nwith d.at_work('long'): time.sleep(0.5)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    lines = done.stderr.splitlines()
    assert lines[0].endswith(" s  long") and lines[1].endswith(" s  still: long") and len(lines) > 3
    code = "import examples.decoder.__main__, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("device", DEVICES)
def test_serve(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small("serve", "--requests", "5", "--new", "4", device=device)) == 0
    shown = capsys.readouterr()
    assert "serving [##############################] 3/3" in shown.err
    assert "5 requests of" in shown.out and "a step of " in shown.out


def test_serve_tells_wrong_tokens(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The comparison with PyTorch sees a cache that keys are not put into."""
    from examples.decoder import serve

    monkeypatch.setattr(serve.Cache, "put", lambda *args: None)
    assert main(small("serve", "--requests", "3", "--new", "4")) == 1
    assert "that is more than noise" in capsys.readouterr().out


def test_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small("parallel", "--length", "8", "--batch", "1")) == 0
    shown = capsys.readouterr()
    assert "2 devices have the same logits (96, 8)" in shown.out
    assert "layers [##############################] 2/2" in shown.err


@pytest.mark.gpu
@pytest.mark.several_gpus
def test_parallel_on_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small("parallel", device="cuda")) == 0
    assert "2 devices have the same logits" in capsys.readouterr().out


def test_parallel_tells_other_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.decoder import parallel

    part_of = parallel.part_of
    monkeypatch.setattr(parallel, "part_of", lambda w, sizes, rank, *more: part_of(w, sizes, 0, *more))
    assert main(small("parallel", "--length", "8", "--batch", "1")) == 1


BAD: list[tuple[list[str], str]] = [
    (["train", "--tokens", "{tokens}"], "token 96 at place 2 of {tokens} is not in the vocabulary of 96"),
    (["serve", "--tokens", "{tokens}"], "token 96 at place 2 of {tokens} is not in the vocabulary of 96"),
    (["serve", "--tokens", "{words}"], "{words} is no file of token numbers: "),
    (["serve", "--weights", "{tokens}"], "{tokens} holds no weights of this decoder: "),
    (["serve", "--requests", "9", "--pages", "3"], "the cache is full: 9 requests need "),
    (["serve", "--longest", "62"], "prompts of 62 tokens with 4 more are longer than the 64 positions there are"),
    (["train", "--length", "65"], "--length 65 is more than the 64 positions of the weights"),
    (["parallel", "--devices", "3"], "2 key heads can't be shared by 3 devices"),
    (["parallel", "--dies", "1"], "rank 1 died in layer 1: it was told to, by --dies"),
    (["train", "--steps", "0"], "--steps is 0, and has to be 1 or more"),
    (["serve", "--weights", "/dev/null"], "/dev/null holds no weights of this decoder: it is empty"),
    (["train", "--experts", "1"], "--experts is 1, and a token takes 2"),
    (["train", "--rate", "nan"], "--rate is nan, and has to be a number above 0"),
    (["train", "--vocab", "1"], "--vocab is 1, and has to be 2 or more"),
    (["train", "--save", "/no/folder/weights"], "--save /no/folder/weights: there is no such folder"),
    (["train", "--save", "/"], "--save /: it is a folder"),
    (["serve", "--weights", "/"], "/ holds no weights of this decoder: "),
    (["serve", "--weights", "{noise}"], "{noise} holds no weights of this decoder: it is no file of torch.save"),
    (["train", "--device", "gpu"], "--device gpu: "),
    (["parallel", "--dies", "7"], "--dies is 7, and the ranks are 0 to 1"),
]


@pytest.mark.parametrize(("command", "words"), BAD, ids=[" ".join(command[:2]) for command, _ in BAD])
def test_bad_input_is_one_line(
    command: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("tokens", "words", "noise")}
    files["tokens"].write_text("3 4 96 5")
    files["words"].write_text("three four")
    files["noise"].write_bytes(bytes(range(1, 256)))
    first, *rest = (word.format(**files) for word in command)
    assert main(small(first, *rest)) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("decoder: ")]
    assert len(said) == 1 and words.format(**files) in said[0]
