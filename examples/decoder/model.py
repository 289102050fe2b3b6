"""The decoder's sizes, weights and forward pass: by kernels (`ours`) and by PyTorch's own operations (`plain`)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn import functional

import kernel_dsl as kd

library = kd.library
BASE = 10000.0  # of RoPE's angles
EPS = 1e-5  # of RMS norm, as `library.rms_norm` has it


class RefusedError(Exception):
    """The reason why a command can't be done, in one line."""


@dataclass(frozen=True)
class Sizes:
    """`hidden`: of the gated network, or of each of `experts`, of which a token takes `top`; `length`: the most positions."""

    vocab: int
    model: int
    heads: int
    kv_heads: int
    dim: int
    hidden: int
    length: int
    layers: int = 4
    experts: int = 0
    top: int = 2


SIZES = {
    "large": Sizes(vocab=32000, model=2048, heads=16, kv_heads=4, dim=128, hidden=5632, length=2048),
    "small": Sizes(vocab=96, model=64, heads=4, kv_heads=2, dim=16, hidden=96, length=64),
}

Weights = dict[str, Any]


def new_weights(sizes: Sizes, device: str, seed: int = 0) -> Weights:
    """Random float32 weights by name. Matrices are (inputs, outputs), embeddings (vocabulary, model)."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, deviation: float = 0.0) -> Any:
        return torch.randn(shape, generator=generator, device=device) * (deviation or shape[-2] ** -0.5)

    m, h = sizes.model, sizes.hidden
    made: Weights = {"embed": normal(sizes.vocab, m, deviation=1.0), "head": normal(sizes.vocab, m, deviation=m**-0.5)}
    made["norm"] = torch.ones(m, device=device)
    several = (sizes.experts,) if sizes.experts else ()
    for n in range(sizes.layers):
        made[f"{n}.norm1"], made[f"{n}.norm2"] = torch.ones(m, device=device), torch.ones(m, device=device)
        made[f"{n}.qkv"] = normal(m, (sizes.heads + 2 * sizes.kv_heads) * sizes.dim)
        made[f"{n}.out"] = normal(sizes.heads * sizes.dim, m)
        made[f"{n}.gate"], made[f"{n}.up"] = normal(*several, m, h), normal(*several, m, h)
        made[f"{n}.down"] = normal(*several, h, m)
        if sizes.experts:
            made[f"{n}.router"] = normal(m, sizes.experts)
    return made


def save(path: str, sizes: Sizes, weights: Weights) -> None:
    """Raises RefusedError where the file can't be written."""
    try:
        torch.save({"sizes": asdict(sizes), "weights": {n: w.detach().cpu() for n, w in weights.items()}}, path)
    except (OSError, RuntimeError) as error:
        raise RefusedError(f"--save {path}: {str(error).splitlines()[0]}") from None


def load(path: str, device: str, asked: dict[str, int]) -> tuple[Sizes, Weights]:
    """The weights that `save` wrote. Raises RefusedError without such a file, or if it has other sizes."""
    try:
        kept = torch.load(path, map_location=device, weights_only=True)
        sizes = Sizes(**kept["sizes"])
        weights = kept["weights"]
    except (OSError, EOFError, KeyError, TypeError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        words = (str(error).splitlines() or ["it is empty"])[0]
        if isinstance(error, pickle.UnpicklingError):
            words = "it is no file of torch.save, or holds more than tensors"
        raise RefusedError(f"{path} holds no weights of this decoder: {words}") from None
    for name, number in asked.items():
        if number != (has := getattr(sizes, name)):
            words = f"a vocabulary of {has} tokens" if name == "vocab" else f"{has} {name}"
            raise RefusedError(f"the weights in {path} have {words}, and --{name} is {number}")
    return sizes, weights


def rounded(weights: Weights) -> Weights:
    """The weights as products read them: bfloat16. Routers stay float32, as rounding must not change a choice."""
    return {n: w if n.endswith("router") else w.to(torch.bfloat16) for n, w in weights.items()}


def angles(sizes: Sizes, device: str) -> tuple[Any, Any]:
    """cos and sin of RoPE, float32 (length, dim / 2)."""
    rate = BASE ** (-torch.arange(0, sizes.dim, 2, device=device, dtype=torch.float64) / sizes.dim)
    angle = torch.arange(sizes.length, device=device)[:, None] * rate
    return angle.cos().float(), angle.sin().float()


# --- the forward pass -----------------------------------------------------------------------------


def route(h: Any, router: Any, sizes: Sizes) -> tuple[Any, Any, Any]:
    """(token of each row, weight of each row, rows of each expert): rows are sorted by expert."""
    best, picked = (h.float() @ router).topk(sizes.top, dim=-1)
    order = picked.reshape(-1).argsort(stable=True)
    counts = (picked.reshape(-1, 1) == torch.arange(sizes.experts, device=h.device)).sum(0)
    return order // sizes.top, best.softmax(-1).reshape(-1)[order], counts.to(torch.int32)


def experts(h: Any, x: Any, w: Callable[[str], Any], sizes: Sizes) -> Any:
    """x plus the results of each token's experts for h."""
    tokens, factors, counts = route(h, w("router"), sizes)
    rows = h[tokens]
    gate, up = (library.grouped_matmul(rows, w(name), counts) for name in ("gate", "up"))
    made = library.grouped_matmul(functional.silu(gate) * up, w("down"), counts)
    return (x.float().index_add(0, tokens, made.float() * factors[:, None])).to(x.dtype)


def swiglu(h: Any, x: Any, w: Callable[[str], Any]) -> Any:
    """x plus the result of the gated network for h."""
    between = library.matmul(h, (w("gate"), w("up")), gated="swiglu")
    return library.matmul(between, w("down"), residual=x)


def ours(weights: Weights, tokens: Any, sizes: Sizes, turns: tuple[Any, Any]) -> Any:
    """The rows (batch * length, model) that the head multiplies, for tokens (batch, length), on kernels."""
    batch, length = tokens.shape
    positions = torch.arange(length, dtype=torch.int32, device=tokens.device).repeat(batch)
    x = functional.embedding(tokens, weights["embed"]).reshape(batch * length, -1)
    for n in range(sizes.layers):

        def w(name: str, n: int = n) -> Any:
            return weights[f"{n}.{name}"]

        h = library.rms_norm(x, w("norm1"))
        qkv = library.matmul(h, w("qkv")).reshape(batch * length, -1, sizes.dim)
        parts = library.rope(qkv, positions, *turns, heads=(sizes.heads, sizes.kv_heads))
        q, k, v = (y.reshape(batch, length, -1, sizes.dim) for y in parts)
        attended = library.attention(q, k, v, layout="bshd", causal=True).reshape(batch * length, -1)
        x = library.matmul(attended, w("out"), residual=x)
        h = library.rms_norm(x, w("norm2"))
        x = experts(h, x, w, sizes) if sizes.experts else swiglu(h, x, w)
    return library.rms_norm(x, weights["norm"])


def ours_loss(weights: Weights, tokens: Any, targets: Any, sizes: Sizes, turns: tuple[Any, Any]) -> Any:
    w = rounded(weights)
    return library.linear_cross_entropy(ours(w, tokens, sizes, turns), w["head"], targets.reshape(-1))


def _plain_turned(x: Any, turns: tuple[Any, Any]) -> Any:
    """RoPE of x (batch, length, heads, dim)."""
    cos, sin = (t[: x.shape[1], None] for t in turns)
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def _plain_experts(h: Any, x: Any, w: Callable[[str], Any], sizes: Sizes) -> Any:
    """Every expert on every token, with weight 0 for experts that are not the token's: slow and simple."""
    best, picked = (h.float() @ w("router").float()).topk(sizes.top, dim=-1)
    factors = torch.zeros(len(h), sizes.experts, device=h.device).scatter(1, picked, best.softmax(-1))
    total = x.float()
    for e in range(sizes.experts):
        made = (functional.silu(h @ w("gate")[e]) * (h @ w("up")[e])) @ w("down")[e]
        total = total + made.float() * factors[:, e, None]
    return total.to(x.dtype)


def plain(weights: Weights, tokens: Any, sizes: Sizes, turns: tuple[Any, Any]) -> Any:
    """The result of `ours`, by PyTorch alone, in the dtype of the weights."""
    batch, length = tokens.shape
    x = functional.embedding(tokens, weights["embed"]).reshape(batch * length, -1)
    for n in range(sizes.layers):

        def w(name: str, n: int = n) -> Any:
            return weights[f"{n}.{name}"]

        h = functional.rms_norm(x, (sizes.model,), w("norm1"), EPS)
        qkv = (h @ w("qkv")).reshape(batch, length, -1, sizes.dim)
        q, k, v = qkv.split((sizes.heads, sizes.kv_heads, sizes.kv_heads), 2)
        q, k = _plain_turned(q, turns), _plain_turned(k, turns)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + attended.transpose(1, 2).reshape(batch * length, -1) @ w("out")
        h = functional.rms_norm(x, (sizes.model,), w("norm2"), EPS)
        x = (
            _plain_experts(h, x, w, sizes)
            if sizes.experts
            else x + (functional.silu(h @ w("gate")) * (h @ w("up"))) @ w("down")
        )
    return functional.rms_norm(x, (sizes.model,), weights["norm"], EPS)


def plain_loss(weights: Weights, tokens: Any, targets: Any, sizes: Sizes, turns: tuple[Any, Any]) -> Any:
    w = rounded(weights)
    return functional.cross_entropy((plain(w, tokens, sizes, turns) @ w["head"].T).float(), targets.reshape(-1))
