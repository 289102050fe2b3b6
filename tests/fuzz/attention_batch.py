"""The arrays of a random call of attention, a sequence at a time for the reference, and as the call takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz.attention_options import Functions
from tests.hopper.helpers import random
from tests.library import attention_reference as reference
from tests.library.products import place
from tests.library.test_decode import paged

FEW = (1, 1, 2, 7, 16, 33, 64, 65, 90, 130)
MANY = (1, 3, 64, 100, 197, 500, 1000, 1024, 1531, 2048)
SCORES = 2**23  # the most scores of a call, so that NumPy takes no second


class Batch:
    """Sequences of a call `how`, and the arrays and options that hold them.

    `own`: q (1, heads, queries, dim), k and v (1, kv_heads, keys, ...) of each sequence; `arrays`: q, k, v of the call. What is of no
    sequence is NaN.
    """

    def __init__(self, how: Any, rng: Any) -> None:
        self.how, self.rng = how, rng
        self.ragged, self.paged = "ragged" in how.form, "paged" in how.form
        self.before = False  # whether there are rows before the first sequence, which results leave as they are
        self.out_dtype = kd.bfloat16 if how.dtype.itemsize == 1 else how.dtype
        self._sizes()
        q, k, v = (
            [random(rng, (1, heads, n, dim), how.dtype) for n in lengths]
            for heads, lengths, dim in (
                (how.heads, self.queries, how.dim), (how.kv_heads, self.keys, how.dim), (how.kv_heads, self.keys, how.v_dim),
            )
        )  # fmt: skip
        if how.nan:  # of one query and one key: rows that see them are NaN, and no others
            for x, choices in ((q, self.queries), (k, self.keys)):
                b = int(rng.integers(len(x)))
                if choices[b] and rng.random() < 0.6:
                    x[b][0, rng.integers(x[b].shape[1]), rng.integers(choices[b])] = np.nan
        self.own = list(zip(q, k, v, strict=True))
        self.starts, totals = zip(*(self._starts(n) for n in (self.queries, self.keys)), strict=True)
        self.options: dict[str, Any] = {"layout": how.layout}
        arrays = [self._joined(q, self.starts[0], totals[0])]
        if self.paged:
            arrays += self._pages(k, v)
        else:
            arrays += [self._joined(x, self.starts[1], totals[1]) for x in (k, v)]
        self.arrays = arrays
        if self.ragged:
            self.options["q_seqlens"] = self.starts[0]
            if not self.paged and not (self.same and rng.random() < 0.7):
                self.options["kv_seqlens"] = self.starts[1]
        shape = (arrays[0].shape[0], how.heads) if self.ragged else (len(q), how.heads, self.queries[0])
        self.lse_shape = shape[::-1] if self.ragged else shape
        self.out_shape = (*arrays[0].shape[:-1], how.v_dim)
        self._extras()

    def _sizes(self) -> None:
        """Lengths of each sequence, of which each has as many in a dense batch."""
        how, rng = self.how, self.rng
        choices = MANY if how.large else FEW
        count = int(rng.choice([1, 2, 3] if not self.ragged else [1, 2, 3, 5]))
        queries, keys = ([int(rng.choice(choices)) for _ in range(count)] for _ in "qk")
        if how.far:
            queries, keys = [int(rng.choice([1, 5, 16]))], [int(rng.choice([170, 1200])) * (1 + 9 * how.large)]
            count = 1
        while count * how.heads * max(queries) * max(keys) > SCORES:
            queries, keys = ([max(n // 2, 1) for n in x] for x in (queries, keys))
        if self.ragged:
            queries, keys = ([0 if rng.random() < 0.15 else n for n in x] for x in (queries, keys))
        else:
            queries = queries[:1] * count
        if not self.ragged and not self.paged:
            keys = keys[:1] * count
        elif self.paged:
            keys = [0 if rng.random() < 0.1 else n for n in keys]
        self.same, self.tail = self.ragged and rng.random() < 0.4, int(rng.choice([0, 0, 20]))
        self.queries, self.keys = queries, queries if self.same and not self.paged else keys

    def _starts(self, lengths: list[int]) -> tuple[Any, int]:
        """(where sequences begin, the length of the array). Rows before the first and after the last are of no sequence."""
        before, after = (int(self.rng.choice([0, 0, 0, n])) for n in (3, 20))
        before, after = (0, self.tail) if self.same else (before, after)
        starts = np.cumsum([before, *lengths]).astype(np.int32)
        self.before = self.before or bool(before)
        return starts, int(starts[-1]) + after

    def _joined(self, parts: list[Any], starts: Any, total: int) -> Any:
        """An array of the call, of sequences (1, heads, length, dim)."""
        if not self.ragged:
            made = np.concatenate(parts)
            return np.ascontiguousarray(made.swapaxes(1, 2)) if self.how.layout == "bshd" else made
        made = np.full((total, *parts[0].shape[1::2]), np.nan, np.float32).astype(parts[0].dtype)
        for part, start in zip(parts, starts, strict=False):
            made[start : start + part.shape[2]] = part[0].swapaxes(0, 1)
        return made

    def _pages(self, k: list[Any], v: list[Any]) -> list[Any]:
        """Caches of keys and of values."""
        rng, page, batch = self.rng, self.how.page, len(k)
        most = -(-max(*self.keys, 1) // page) + int(rng.choice([0, 0, 2]))
        whole = not self.ragged and rng.random() < 0.2  # no lengths: each sequence has all keys that its pages hold
        if whole:
            self.keys = [most * page] * batch
            k, v = ([random(rng, (*x.shape[:2], most * page, x.shape[3]), self.how.dtype) for x in y] for y in (k, v))
            self.own = [(q, *kv) for (q, _, _), kv in zip(self.own, zip(k, v, strict=True), strict=True)]
        pages = batch * most + int(rng.integers(3))
        ids = rng.permutation(pages)[: batch * most].reshape(batch, most).astype(np.int32)
        made: list[Any] = []
        for parts in (k, v):
            wide = np.zeros((batch, parts[0].shape[1], max(*self.keys, 1), parts[0].shape[3]), parts[0].dtype)
            for b, part in enumerate(parts):
                wide[b, :, : part.shape[2]] = part[0]
            cache = paged(rng, wide, self.keys, page, ids, pages)
            made.append(np.ascontiguousarray(cache.swapaxes(1, 2)) if self.how.layout == "bshd" else cache)
        for b, length in enumerate(self.keys):
            ids[b, -(-length // page) :] = 2**30  # no page: nothing is read there
        self.options["page_table"] = ids
        if not whole:
            plain = self.how.lengths == "plain"
            self.options["kv_seqlens"] = (
                np.array(self.keys, np.int32) if plain else np.cumsum([7, *self.keys]).astype(np.int32)
            )
        self.most = most * page
        return made

    # --- options ----------------------------------------------------------------------------------

    def _extras(self) -> None:
        how, rng, given = self.how, self.rng, self.how.options
        batch = len(self.own)
        self.options |= {n: given[n] for n in ("causal", "window", "softcap", "scale") if n in given}
        self.factors = [np.ones((batch, how.kv_heads)) for _ in "qkv"]
        for n, (name, form) in enumerate(zip("qkv", how.scales, strict=True)):
            if not form:
                continue
            x: Any = 0.75 if form == "number" else (rng.random((batch, how.kv_heads)) + 0.5).astype(np.float32)
            x = x[0, 0].reshape(()) if form == "tensor" else x
            self.options[f"{name}_scale"] = x
            self.factors[n] = np.broadcast_to(np.asarray(x, np.float64), (batch, how.kv_heads))
        if "sinks" in given:
            dtype, infinite = given["sinks"]
            self.options["sinks"] = self._some_infinite(random(rng, (how.heads,), getattr(kd, dtype)), infinite)
        if "bias" in given:
            dtype, ones, fewer, where, infinite = given["bias"]
            keys = self.most if self.paged else self.keys[0]
            full = (batch, how.heads, self.queries[0], keys)
            shape = [1 if ones >> axis & 1 else n for axis, n in enumerate(full)][fewer:]
            bias = self._some_infinite(random(rng, tuple(shape), getattr(kd, dtype)), infinite)
            self.options["bias"] = place(bias, where)

    def _some_infinite(self, x: Any, wanted: bool) -> Any:
        """`x`, with -inf for about a third of the elements, and for a whole row."""
        if wanted:
            x[self.rng.random(x.shape) < 0.3] = -np.inf
            x[tuple(self.rng.integers(n) for n in x.shape[:-1])] = -np.inf
        return x

    def like_out(self) -> Any:
        """A gradient of the output, (the same each time)."""
        rng = np.random.default_rng(3)
        self.douts = [random(rng, (1, self.how.heads, n, self.how.v_dim), self.out_dtype) for n in self.queries]
        return self._joined(self.douts, self.starts[0], self.arrays[0].shape[0])

    def like_lse(self) -> Any:
        """A gradient of lse, (the same each time), NaN outside of sequences; None if it has none."""
        if not self.how.lse:
            self.dlses: list[Any] = [None] * len(self.own)
            return None
        rng = np.random.default_rng(4)
        self.dlses = [random(rng, (1, self.how.heads, n), kd.float32) for n in self.queries]
        made = np.full(self.lse_shape, np.nan, np.float32)
        for b, part in enumerate(self.dlses):
            self._sums(made, b)[...] = part[0]
        return made

    # --- the reference ----------------------------------------------------------------------------

    def expected(self, functions: Functions) -> list[reference.Reference]:
        """What each sequence gives, with gradients where these are wanted."""
        how = self.how
        if how.backward:
            self.like_out()
            self.like_lse()
        found: list[reference.Reference] = []
        same = {n: self.options[n] for n in ("causal", "window", "softcap", "scale", "sinks") if n in self.options}
        for b, (q, k, v) in enumerate(self.own):
            factors = [f[b] for f in self.factors]
            factors[0] = np.repeat(factors[0], how.heads // how.kv_heads)
            wide = [x.astype(np.float64) * f[None, :, None, None] for x, f in zip((q, k, v), factors, strict=True)]
            more = same | functions.of_batch(b)
            if "bias" in self.options:
                more["bias"] = self.bias_of(b, q.shape[2], k.shape[2])
            if how.backward:
                more |= {"dout": self.douts[b], "dlse": self.dlses[b]}
            found.append(reference.attention(*wide, **more))
        return found

    def bias_of(self, b: int, queries: int, keys: int) -> Any:
        """The bias of a sequence, (1, heads, queries, keys), in float64."""
        bias = self.options["bias"].astype(np.float64)
        full = (len(self.own), self.how.heads, queries, self.most if self.paged else keys)
        return np.broadcast_to(bias, full)[b : b + 1, ..., :keys]

    # --- results ----------------------------------------------------------------------------------

    def after(self, x: Any, which: int) -> Any:
        """The rows after the last sequence of an array that lies as q (`which` 0) or k."""
        return x[self.starts[which][-1] :] if self.ragged and not (which and self.paged) else x[:0]

    def split(self, out: Any, lse: Any) -> Iterator[tuple[Any, Any]]:
        """(output, logarithms or None) of each sequence: (heads, queries, v_dim) and (heads, queries)."""
        assert lse is None or lse.shape == self.lse_shape, (lse.shape, self.lse_shape)
        for b in range(len(self.own)):
            yield self._one(out, b, 0), None if lse is None else self._sums(lse, b)

    def _sums(self, lse: Any, b: int) -> Any:
        return lse[:, self.starts[0][b] : self.starts[0][b + 1]] if self.ragged else lse[b]

    def _one(self, x: Any, b: int, which: int) -> Any:
        """A sequence of an array that lies as q (`which` 0) or k: (heads, length, dim)."""
        if self.ragged:
            return x[self.starts[which][b] : self.starts[which][b + 1]].swapaxes(0, 1)
        return x[b].swapaxes(0, 1) if self.how.layout == "bshd" else x[b]

    def own_rows(self, made: Any) -> Iterator[Any]:
        """Gradients without rows before the first sequence."""
        for n, x in enumerate(made):
            starts = self.starts[min(n, 1)]
            yield x[starts[0] :] if self.ragged and n < 3 else x

    def grads(self, names: list[str], made: Any, wanted: list[Any]) -> Iterator[tuple[str, Any, Any, float]]:
        """(name, the gradient, the expected one, what errors are parts of), for each sequence where there is one."""
        for n, name in enumerate(names):
            if name in "qkv":
                assert made[n].shape == self.arrays[n].shape and made[n].dtype == self.arrays[n].dtype
                assert not self.after(made[n], min(n, 1)).astype(np.float64).any(), f"d{name} after the last sequence"
                for b, one in enumerate(wanted):
                    yield f"{name} of {b}", self._one(made[n], b, min(n, 1)), one.grads[name][0], one.sizes[name]
                continue
            x = self.options[name]
            assert made[n].shape == x.shape and made[n].dtype == x.dtype
            if name == "sinks":
                total = sum(one.grads["sinks"] for one in wanted)
                yield name, made[n], total, sum(one.sinks_size for one in wanted)
            else:
                whole = np.concatenate([one.grads["bias"] for one in wanted])
                terms = np.concatenate([one.terms for one in wanted])
                if x.shape[-1:] == (1,):  # errors of a row have one sign
                    terms = terms.sum(-1, keepdims=True)
                total, squares = (reference.summed(a, x.shape) for a in (whole, terms**2))
                yield name, made[n], total, float(np.abs(total).max() + np.sqrt(squares.max()))
