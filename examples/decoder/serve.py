"""Serving: ragged requests from a paged cache. One graph makes a step of all requests, sampling included."""

from __future__ import annotations

import time
from typing import Any

import torch

import kernel_dsl as kd

from . import at_work, data, kernels, model

library = kd.library
NOISE = 0.1  # standard deviations of logits, by which the token that is best in bfloat16 may be behind plain PyTorch's


class Cache:
    """Keys and values of all layers in pages; the pages of each request, int32 (requests, most); its number of keys."""

    def __init__(
        self, sizes: model.Sizes, lengths: list[int], new: int, page: int, pages: int | None, device: str
    ) -> None:
        counts = [-(-(n + new) // page) for n in lengths]
        needed = sum(counts)
        pages = needed if pages is None else pages
        if needed > pages:
            raise model.RefusedError(
                f"the cache is full: {len(lengths)} requests need {needed} pages of {page} keys, and it has {pages}"
            )
        self.page = page
        free = torch.randperm(pages, generator=torch.Generator().manual_seed(0), dtype=torch.int64).to(torch.int32)
        table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        first = 0
        for row, count in enumerate(counts):
            table[row, :count] = free[first : first + count]
            first += count
        self.table = table.to(device)
        shape = (pages, sizes.kv_heads, page, sizes.dim)
        self.keys, self.values = (
            [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(sizes.layers)] for _ in range(2)
        )

    def put(self, layer: int, k: Any, v: Any, pages: Any, places: Any) -> None:
        where = (self.keys[layer], self.values[layer])
        kernels.append(k, v, pages, places, *where, out=where)


class Server:
    """Requests in progress. `prompts`: all prompts joined, int32; `lengths`: the length of each."""

    def __init__(
        self, sizes: model.Sizes, weights: model.Weights, prompts: Any, lengths: list[int], options: Any
    ) -> None:
        self.sizes, self.w = sizes, model.rounded(weights)
        self.device = options.device
        self.cache = Cache(sizes, lengths, options.new, options.page, options.pages, self.device)
        self.turns = model.angles(sizes, self.device)
        self.prompts = prompts
        self.starts = torch.tensor(lengths, dtype=torch.int32, device=self.device)
        self.lengths = self.starts.clone()
        self.history = torch.zeros(len(lengths), options.new, dtype=torch.int32, device=self.device)
        self.tokens = self.prefill(lengths)
        self.history[:, 0] = self.tokens

    def block(self, layer: int, x: Any, attend: Any) -> Any:
        """A layer of rows x: `attend(q, k, v)` gives the rows that the heads see."""
        w, sizes = self.w, self.sizes
        h = library.rms_norm(x, w[f"{layer}.norm1"])
        qkv = library.matmul(h, w[f"{layer}.qkv"]).reshape(len(x), -1, sizes.dim)
        attended = attend(*library.rope(qkv, self.positions, *self.turns, heads=(sizes.heads, sizes.kv_heads)))
        x = library.matmul(attended.reshape(len(x), -1), w[f"{layer}.out"], residual=x)
        h = library.rms_norm(x, w[f"{layer}.norm2"])
        between = library.matmul(h, (w[f"{layer}.gate"], w[f"{layer}.up"]), gated="swiglu")
        return library.matmul(between, w[f"{layer}.down"], residual=x)

    def sampled(self, x: Any) -> Any:
        rows = library.rms_norm(x, self.w["norm"])
        return kernels.greatest(library.matmul(rows, self.w["head"].T, out_dtype="float32"))

    def prefill(self, lengths: list[int]) -> Any:
        """All prompts in one pass, which stores their keys in the cache. Returns the token that follows each prompt."""
        requests = torch.arange(len(lengths), device=self.device).repeat_interleave(self.starts)
        ends = self.starts.cumsum(0)
        seqlens = torch.cat((ends.new_zeros(1), ends)).to(torch.int32)
        within = torch.arange(len(requests), device=self.device) - (ends - self.starts)[requests]
        page = self.cache.page
        pages = self.cache.table[requests, within // page].contiguous()
        places = (within % page).to(torch.int32)
        self.positions = within.to(torch.int32)
        x = kernels.embed(self.w["embed"], self.prompts)
        for n in range(self.sizes.layers):

            def attend(q: Any, k: Any, v: Any, n: int = n) -> Any:
                self.cache.put(n, k, v, pages, places)
                return library.attention(q, k, v, q_seqlens=seqlens, causal=True)

            x = self.block(n, x, attend)
        return self.sampled(x[ends - 1].contiguous())

    def step(self) -> kd.Graph:
        """One more token for each request, as a graph, which changes `tokens`, `lengths`, `history` and the cache."""
        page = torch.tensor(self.cache.page, dtype=torch.int32, device=self.device)
        self.positions = self.lengths
        with kd.Graph() as graph:
            x = kernels.embed(self.w["embed"], self.tokens)
            pages, places, longer = kernels.next_places(self.lengths, self.cache.table, page)
            for n in range(self.sizes.layers):

                def attend(q: Any, k: Any, v: Any, n: int = n) -> Any:
                    self.cache.put(n, k, v, pages, places)
                    keys, values = self.cache.keys[n], self.cache.values[n]
                    q = q.reshape(*q.shape[:2], 1, -1)
                    return library.decode_attention(q, keys, values, longer, page_table=self.cache.table)

                x = self.block(n, x, attend)
            state = (self.tokens, self.lengths, self.history)
            kernels.advance(self.sampled(x), longer, *state, self.starts, out=state)
        return graph


def check(server: Server, lengths: list[int]) -> float:
    """How far each token is behind plain PyTorch's best, in standard deviations of the logits."""
    sizes, w = server.sizes, server.w
    worst, first = 0.0, 0
    for row, length in enumerate(lengths):
        prompt = server.prompts[first : first + length]
        first += length
        made = server.history[row]
        whole = torch.cat((prompt, made))[None, :-1].long()
        logits = (model.plain(w, whole, sizes, server.turns) @ w["head"].T).float()[length - 1 :]
        behind = logits.amax(-1) - logits.gather(1, made[:, None].long())[:, 0]
        worst = max(worst, (behind / logits.std(-1)).max().item())
    return worst


def serve(options: Any, sizes: model.Sizes, weights: model.Weights) -> int:
    """Serve requests with prompts of 1 to `--longest` tokens, and compare the generated tokens with plain PyTorch."""
    if options.longest + options.new > sizes.length:
        raise model.RefusedError(
            f"prompts of {options.longest} tokens with {options.new} more are longer than the {sizes.length} positions there are"
        )
    generator = torch.Generator().manual_seed(0)
    lengths: list[int] = torch.randint(1, options.longest + 1, (options.requests,), generator=generator).tolist()
    prompts = data.tokens_of(options.tokens, sizes.vocab, sum(lengths)).to(torch.int32).to(options.device)
    with torch.no_grad():
        with at_work(f"{len(prompts)} tokens of prompts are read, and kernels are compiled"):
            server = Server(sizes, weights, prompts, lengths, options)
        pages = len(server.cache.keys[0])
        print(f"{len(lengths)} requests of {min(lengths)} to {max(lengths)} tokens; the cache has {pages} pages")
        if options.new > 1:
            with at_work("the graph of a step is made"):
                graph = server.step()
            begin = time.perf_counter()
            for _ in data.progress(range(options.new - 1), options.new - 1, "serving"):
                graph()
            if options.device != "cpu":
                torch.cuda.synchronize()
            seconds = (time.perf_counter() - begin) / (options.new - 1)
            rate = options.requests / seconds
            print(f"a step of {len(graph.nodes)} kernels: {1e3 * seconds:.2f} ms, {rate:.0f} tokens/s")
        with at_work("plain PyTorch reads what was made"):
            worst = check(server, lengths)
    print(f"furthest behind plain PyTorch's best token: {worst:.3f} standard deviations of the logits")
    if not worst <= NOISE:
        print(f"that is more than noise, {NOISE}")
        return 1
    return 0
