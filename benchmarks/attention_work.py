"""A row of `benchmarks.attention`: its sizes, its data, and checks of results against float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Work:
    """One problem."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    causal: bool
    backward: bool = False
    deterministic: bool = False
    # or "strided": (batch, length, heads, dim); "packed": the same with gaps between positions; "bshd": as "strided", and
    # our functions take them so, with this layout
    memory: str = ""
    value_dim: int = 0  # of values, if it differs
    bias: str = ""  # or "full", or "heads": one for all batches

    @property
    def name(self) -> str:
        heads = f"H{self.heads}" if self.heads == self.kv_heads else f"H{self.heads}/{self.kv_heads}"
        length = f"S{self.queries}" if self.queries == self.keys else f"S{self.queries}x{self.keys}"
        dims = f"d{self.dim}" + (f"/{self.value_dim}" if self.value_dim else "")
        words = [f"B{self.batch} {heads} {length} {dims}", "causal" if self.causal else "full"]
        words += ["backward"] * self.backward + ["deterministic"] * self.deterministic
        return " ".join([*words, *filter(None, (self.memory, self.bias and f"bias {self.bias}"))])

    @property
    def v_dim(self) -> int:
        return self.value_dim or self.dim

    @property
    def flops(self) -> float:
        pairs = self.queries * self.keys
        if self.causal:  # query i sees keys 0 to i
            seen = min(self.queries, self.keys)
            pairs = seen * seen / 2 + (self.queries - seen) * self.keys
        return 2.0 * self.batch * self.heads * pairs * (self.dim + self.v_dim) * (2.5 if self.backward else 1)


def tensor(work: Work, heads: int, length: int, dim: int = 0) -> Any:
    """Random normal bf16 of shape (batch, heads, length, dim)."""
    dim = dim or work.dim
    if work.memory:
        more = heads if work.memory == "packed" else 0
        made = torch.randn(work.batch, length, heads + more, dim, device="cuda").bfloat16()
        return made[:, :, :heads].transpose(1, 2)
    return torch.randn(work.batch, heads, length, dim, device="cuda").bfloat16()


def laid(work: Work, x: Any) -> Any:
    """An array (batch, heads, length, dim) as our functions take it, or one of theirs in this order."""
    return x.transpose(1, 2) if work.memory == "bshd" and x.ndim == 4 else x


def bias_of(work: Work) -> Any:
    """A bias of the scores, or None."""
    if not work.bias:
        return None
    batch = work.batch if work.bias == "full" else 1
    return torch.randn(batch, work.heads, work.queries, work.keys, device="cuda").bfloat16()


def weights_of(work: Work, q: Any, k: Any, lse: Any, rows: Any, columns: Any, bias: Any = None) -> Any:
    """float64 weights of queries `rows` and keys `columns`, given their vectors, the sums of the rows and their bias."""
    scores = q.double() @ k.double().T / math.sqrt(work.dim)
    if bias is not None:
        scores += bias[rows][:, columns].double()
    if work.causal:
        scores.masked_fill_(columns[None] > rows[:, None], -math.inf)
    return torch.exp(scores - (torch.logsumexp(scores, 1) if lse is None else lse.double())[:, None])


def distance(got: Any, expected: Any, bound: float, word: str) -> float:
    """The relative error, in the norm. Raises AssertionError beyond `bound`."""
    error = ((got.double() - expected).norm() / expected.norm()).item()
    assert error <= bound, f"{word}: relative error {error:.2e}"
    return error


def check_forward(work: Work, out: Any, q: Any, k: Any, v: Any, bias: Any = None) -> float:
    """Relative error of sampled queries of the last head against float64."""
    rows = torch.arange(0, work.queries, max(1, work.queries // 64), device="cuda")
    keys = torch.arange(work.keys, device="cuda")
    weights = weights_of(work, q[-1, -1, rows], k[-1, -1], None, rows, keys, None if bias is None else bias[-1, -1])
    assert not out.isnan().any()
    return distance(out[-1, -1, rows], weights @ v[-1, -1].double(), 6e-3, "out")


def check_backward(work: Work, grads: Any, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> float:
    """The largest relative error of the gradients of sampled queries and keys of the last head against float64."""
    group = work.heads // work.kv_heads
    scale = 1 / math.sqrt(work.dim)
    dq, dk, dv = grads
    assert not any(x.isnan().any() for x in grads)
    rows, keys = (torch.arange(n, device="cuda") for n in (work.queries, work.keys))
    some = rows[:: max(1, work.queries // 64)]
    delta = (dout[-1].double() * out[-1].double()).sum(2)
    weights = weights_of(work, q[-1, -1, some], k[-1, -1], lse[-1, -1, some], some, keys)
    ds = weights * (dout[-1, -1, some].double() @ v[-1, -1].double().T - delta[-1, some][:, None])
    errors = [distance(dq[-1, -1, some], ds @ k[-1, -1].double() * scale, 8e-3, "dq")]
    few = keys[:: max(1, work.keys // 64)]
    dk_sum, dv_sum = (torch.zeros(len(few), n, device="cuda", dtype=torch.float64) for n in (work.dim, work.v_dim))
    for head in range(work.heads - group, work.heads):
        weights = weights_of(work, q[-1, head], k[-1, -1, few], lse[-1, head], rows, few)
        ds = weights * (dout[-1, head].double() @ v[-1, -1, few].double().T - delta[head][:, None])
        dk_sum += ds.T @ q[-1, head].double() * scale
        dv_sum += weights.T @ dout[-1, head].double()
    for word, got, expected in (("dk", dk, dk_sum), ("dv", dv, dv_sum)):
        errors.append(distance(got[-1, -1, few], expected, 8e-3, word))
    return max(errors)
