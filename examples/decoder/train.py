"""Training under torch.compile, beside plain PyTorch on the same data."""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import kernel_dsl as kd

from . import EVERY, at_work, data, model, say

WINDOW = 10  # steps, over which losses are averaged before they are compared
NOISE = 0.03  # by what part of itself an averaged loss may differ: what roundings to bfloat16 grow to in training


def step_of_one_layer(sizes: model.Sizes, turns: Any, weights: model.Weights, *part: Any) -> None:
    """Forward and backward of one layer without torch.compile, which compiles the kernels of all layers."""
    few = {n: w.detach().requires_grad_() for n, w in weights.items() if n.startswith("0.") or "." not in n}
    with suppress(Exception):  # the step itself raises it again
        model.ours_loss(few, *part, replace(sizes, layers=1), turns).backward()


class Run:
    """One of the two models: weights, optimizer, losses, step times. `beside` runs in a thread beside torch.compile."""

    def __init__(
        self, name: str, loss: Any, weights: model.Weights, rate: float, compiled: bool, beside: Any = None
    ) -> None:
        self.name, self.beside = name, beside
        self.weights = {n: w.clone().requires_grad_() for n, w in weights.items()}
        on_gpu = next(iter(weights.values())).is_cuda
        # AdamW as one launch on a GPU; inductor on a CPU would need a C++ compiler
        self.optimizer = torch.optim.AdamW(self.weights.values(), rate, betas=(0.9, 0.95), fused=on_gpu)
        self.loss = (
            torch.compile(loss, fullgraph=True, backend="inductor" if on_gpu else "aot_eager") if compiled else loss
        )
        self.wait = torch.cuda.synchronize if on_gpu else (lambda: None)
        self.losses: list[float] = []
        self.times: list[float] = []

    def step(self, tokens: Any, targets: Any) -> None:
        if not self.times:
            with at_work(f"the first step of {self.name}: torch.compile, and kernels are compiled"):
                self._first_step(tokens, targets)
            say(f"the first step of {self.name} took {self.times[0]:.1f} s")
        else:
            self._step(tokens, targets)

    def _first_step(self, tokens: Any, targets: Any) -> None:
        if self.beside is None or not tokens.is_cuda:
            self._step(tokens, targets)
            return
        thread = threading.Thread(target=self.beside, args=(self.weights, tokens, targets), daemon=True)
        thread.start()
        self._step(tokens, targets)
        thread.join()

    def _step(self, tokens: Any, targets: Any) -> None:
        self.wait()
        begin = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.weights, tokens, targets)
        loss.backward()
        self.optimizer.step()
        self.wait()
        self.times.append(time.perf_counter() - begin)
        self.losses.append(loss.item())

    @property
    def milliseconds(self) -> float:
        """A step's time: the median of those after the compilation."""
        return 1e3 * statistics.median(self.times[min(5, len(self.times) - 1) :])


def far(ours: list[float], plain: list[float]) -> float:
    """The largest relative difference of the averages over `WINDOW` steps."""
    width = min(WINDOW, len(ours))
    sums = [[sum(x[i : i + width]) for i in range(len(x) - width + 1)] for x in (ours, plain)]
    return max(abs(a - b) / b for a, b in zip(*sums, strict=True))


def train(options: Any, sizes: model.Sizes, weights: model.Weights) -> int:
    """Train both models, print losses and step times, and return 1 if the losses differ by more than noise."""
    if not kd.torch:
        raise model.RefusedError("PyTorch is not installed")
    if options.length > sizes.length:
        raise model.RefusedError(f"--length {options.length} is more than the {sizes.length} positions of the weights")
    batch, length, steps = options.batch, options.length, options.steps
    tokens = data.tokens_of(options.tokens, sizes.vocab, steps * batch * (length + 1))
    turns = model.angles(sizes, options.device)
    count = sum(w.numel() for w in weights.values())
    say(f"{count / 1e6:.1f} million weights, {steps} steps of {batch} x {length} tokens")
    beside = partial(step_of_one_layer, sizes, turns)
    ours, plain = (
        Run(name, partial(loss, sizes=sizes, turns=turns), weights, options.rate, compiled, first)
        for name, loss, compiled, first in (
            ("ours", model.ours_loss, True, beside),
            ("plain PyTorch", model.plain_loss, not options.eager, None),
        )
    )
    begin = time.monotonic()
    parts = data.progress(data.batches(tokens, batch, length, options.device), steps, "training")
    shown = begin
    for step, part in enumerate(parts):
        for run in (ours, plain):
            run.step(*part)
        now = time.monotonic()
        over = now - begin > options.seconds
        if step < 3 or over or step == steps - 1 or step % max(1, steps // 10) == 0 or now - shown > EVERY:
            shown = now
            both = f"loss {ours.losses[-1]:.4f}, plain PyTorch {plain.losses[-1]:.4f}"
            print(f"step {step:4}: {both}; {1e3 * ours.times[-1]:.2f} ms, {1e3 * plain.times[-1]:.2f} ms")
        if over:
            say(f"--seconds {options.seconds:g} are over after {step + 1} of {steps} steps")
            break
    steps = len(ours.losses)
    ratio = ours.milliseconds / plain.milliseconds
    word = "eager" if options.eager else "compiled"
    print(f"a step: {ours.milliseconds:.2f} ms, plain PyTorch ({word}) {plain.milliseconds:.2f} ms: ratio {ratio:.2f}")
    difference = far(ours.losses, plain.losses)
    print(f"largest difference of losses, averaged over {min(WINDOW, steps)} steps: {100 * difference:.2f} %")
    if options.save:
        model.save(options.save, sizes, ours.weights)
        print(f"weights are in {options.save}")
    if not difference <= NOISE:
        print(f"that is more than noise, {100 * NOISE:.0f} %")
        return 1
    return 0
