"""Tokens to train on and to serve, and the progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import EVERY
from .model import RefusedError


def tokens_of(path: str | None, vocab: int, count: int, seed: int = 0) -> Any:
    """int64 (count,): the numbers in a file, repeated, or a made-up language in which one successor of each token is
    usual.

    Raises RefusedError for a file without numbers, and for a token outside the vocabulary.
    """
    if path is not None:
        try:
            found = np.array(Path(path).read_text().split(), np.int64)
        except (OSError, ValueError) as error:
            raise RefusedError(f"{path} is no file of token numbers: {error}") from None
        if not len(found):
            raise RefusedError(f"{path} holds no token")
        wrong = np.flatnonzero((found < 0) | (found >= vocab))
        if len(wrong):
            place = wrong[0]
            raise RefusedError(f"token {found[place]} at place {place} of {path} is not in the vocabulary of {vocab}")
        return torch.from_numpy(np.resize(found, count))
    rng = np.random.default_rng(seed)
    made, token = list[int](), 1
    for surprise, word in zip((rng.random(count) < 0.1).tolist(), rng.integers(0, vocab, count).tolist(), strict=True):
        token = word if surprise else (5 * token + 7) % vocab
        made.append(token)
    return torch.tensor(made)


def batches(tokens: Any, batch: int, length: int, device: str) -> Iterator[tuple[Any, Any]]:
    """(tokens, targets), each (batch, length), one part of `tokens` after the other."""
    size = batch * (length + 1)
    for start in range(0, len(tokens) - size + 1, size):
        part = tokens[start : start + size].reshape(batch, length + 1).to(device)
        yield part[:, :-1].contiguous(), part[:, 1:].contiguous()


def progress(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
    """`items`, with a bar on standard error. It moves in a terminal; a file gets some lines and the last."""
    live, begin = sys.stderr.isatty(), time.perf_counter()
    drawn = begin
    for done, item in enumerate(items, 1):
        yield item
        if live or done == total or time.perf_counter() - drawn > EVERY:
            drawn = time.perf_counter()
            filled = 30 * done // total
            seconds = time.perf_counter() - begin
            line = f"{what} [{'#' * filled}{'.' * (30 - filled)}] {done}/{total}, {seconds:.1f} s"
            print(f"\r{line}" if live else line, end="" if live and done < total else "\n", file=sys.stderr, flush=True)
