"""Random calls of `kd.library.attention` with any options together, its gradients, and decoding, each against float64.

`python -m tests.fuzz.attention --count 300 --processes 2` runs in the interpreter, with hazards on and under each schedule in turn;
`--gpu --seconds 60 --processes 16` on a GPU at real sizes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.library import AttentionBackwardConfig, AttentionConfig
from tests.fuzz import calls, decoding, hosts
from tests.fuzz.attention_batch import Batch
from tests.fuzz.attention_options import Functions, draw_options
from tests.fuzz.choose import Choices
from tests.library.products import PLACES, place

bf16, f16, f32, f64, e4m3 = kd.bfloat16, kd.float16, kd.float32, kd.float64, kd.float8_e4m3fn
# the greatest error of results, of what `Batch` gives as their size; of gradients it is half as much again
BOUNDS = {bf16: 8e-3, f16: 2e-3, f32: 1e-5, f64: 1e-6, e4m3: 8e-3}
LSE_BOUNDS = {bf16: 4e-3, f16: 4e-3, f32: 3e-5, f64: 1e-6, e4m3: 4e-3}
# the tanh of 16-bit inputs is off by up to 2^-11; this much of a cap is its share of a score
CAPPED = {bf16: 2.0**-10, f16: 2.0**-10, e4m3: 2.0**-10, f32: 1e-6, f64: 1e-7}
ROUNDED = {2: 2.0**-8}  # by bytes: what rounding a result loses
EVERY = range(16, 257, 8)  # head dimensions of the kernels for Hopper
OWN = 0.25  # the probability that a call comes again with other sizes, which a kernel for any sizes takes


class Attention:
    """A call of one of the forms: dense, ragged, in pages, or in pages with ragged queries."""

    def __init__(self, seed: int, large: bool = False, way: str = "forward") -> None:
        c = Choices(seed)
        self.large, self.seed, self.backward = large, seed, way != "forward"
        paged = (("paged", 4), ("paged ragged", 4)) if way == "forward" else ()
        self.form = c.weighted((("dense", 9), ("ragged", 5), *paged))
        self.dtype = c.weighted(
            ((bf16, 9), (f16, 4), (f32, 2), *(((f64, 1),) * (way != "hosts")), *(((e4m3, 3),) * (way == "forward")))
        )
        narrow = self.dtype in (f32, f64)  # computed by lanes
        self.kv_heads = c.one([1, 1, 1, 2, 3] if large else [1, 1, 2])
        self.heads = self.kv_heads * c.one([1, 2, 4] if large else [1, 1, 2, 3])
        dims = (
            [4, 12, 16, 20]
            if narrow
            else [16, 24, 40, *[64] * 3, 72, 80, 96, 104, 128, 128, 136, 168, 192, 256, *EVERY]
        )
        self.dim = c.one(dims) if c.chance(0.97) else c.one([7, 12, 20])
        self.v_dim = c.one(dims) if c.chance(0.3) else self.dim
        self.layout = c.one(["bhsd", "bhsd", "bshd"])
        self.scales = [c.one(["", "number", "tensor", "heads"]) if self.dtype == e4m3 else "" for _ in range(3)]
        self.options = draw_options(c, self.form)
        self.lse = c.chance(0.6)  # of gradients: whether lse has one
        self.deterministic = c.chance(0.4)
        self.host = c.one(hosts.INSTALLED or ["numpy"]) if way == "hosts" else "numpy"
        self.places = [c.one(["plain", "plain", *PLACES, "heads last"]) for _ in "qkv"]
        self.out = "" if self.host != "numpy" or c.chance(0.6) else c.one(PLACES)
        self.page = c.one([1, 3, 8, 9, 16, 24, 40, 64, 128])
        self.lengths = c.one(["plain", "cumulative", "cumulative"])
        self.calls = 2 if c.chance(OWN) else 1
        self.nan = way == "forward" and c.chance(0.15)
        self.far = self.form == "dense" and c.chance(0.1)  # few queries over many keys, which several tiles share
        self.config = self._config(c) if self.far or c.chance(0.25) else None

    def _config(self, c: Choices) -> Any:
        """A configuration that SMEM and registers hold; None where these are not all of the kernel's conditions."""
        wide = max(self.dim, self.v_dim)
        if wide > 256 or self.dtype not in (bf16, f16) or self.form != "dense":
            return None
        if not self.backward:
            consumers, keys = (
                c.one([1, 2, 3] if wide <= 128 else [1, 2]),
                c.one([16, 32, 48, 64] if wide <= 128 else [16, 32]),
            )
            return AttentionConfig(consumers, keys, 2, turns=consumers > 1 and c.chance(0.3))
        splits, tail = c.one([1, 1, 2, 3]), c.one([1, 1, 3])
        if wide > 128:
            return AttentionBackwardConfig(64, dout_stages=1, dq_parts=4, dq_slots=2, splits=splits, tail=tail)
        rows, first = c.one([32, 64]), c.chance(0.5)
        return AttentionBackwardConfig(rows, apart=True, splits=splits, tail=tail, stores_first=first)

    def __str__(self) -> str:
        shown = {k: v for k, v in vars(self).items() if k not in ("large", "seed", "options")}
        return " ".join(f"{k}={v}" for k, v in shown.items()) + f" options={self.options}"

    def run(self, interpret: Any) -> None:
        for number in range(self.calls):
            rng = np.random.default_rng((self.seed, number))
            self._once(rng, interpret)

    # --- one call ---------------------------------------------------------------------------------

    def _once(self, rng: Any, interpret: Any) -> None:
        batch = Batch(self, rng)
        functions = Functions.of(self.options, rng)
        if batch.before and interpret is not False:
            interpret = replace(interpret, report_unwritten=False)
        options = batch.options | functions.given()
        if not self.backward:
            options["config"] = self.config
        q, k, v = (self._placed(x, where) for x, where in zip(batch.arrays, self.places, strict=True))
        wanted = batch.expected(functions)
        if self.host != "numpy":
            *made, grads = hosts.gradients(
                self.host, (q, k, v), (batch.like_out(), batch.like_lse()), options, self.deterministic, interpret
            )
            self._check(batch, wanted, *made)
            return self._check_grads(batch, wanted, grads)
        given = place(np.full(batch.out_shape, 77).astype(batch.out_dtype.numpy), self.out or "plain")
        with_lse = self.lse or self.backward
        if self.out:
            options["out"] = (given, np.full(batch.lse_shape, 77, np.float32)) if with_lse else given
        got = kd.library.attention(q, k, v, **options, return_lse=with_lse, interpret=interpret)
        out, lse = got if with_lse else (got, None)
        assert not self.out or out is given, "another array than the given one"
        self._check(batch, wanted, out, lse)
        if self.backward:
            return self._gradients(batch, wanted, functions, (q, k, v, out, lse), interpret)

    def _gradients(self, batch: Batch, wanted: Any, functions: Functions, arrays: Any, interpret: Any) -> None:
        q, k, v, out, lse = arrays
        dout = self._placed(batch.like_out(), self.places[0])
        options = batch.options | functions.given() | functions.derivative() | {"dlse": batch.like_lse()}
        ways = [interpret]
        if self.deterministic:
            ways.append(interpret and replace(interpret, schedule="random", seed=self.seed + 1))
        bits: set[bytes] = set()
        for way in ways:
            made = kd.library.attention_backward(
                *(dout, q, k, v, out, lse),
                **options,
                deterministic=self.deterministic,
                config=self.config,
                interpret=way,
            )
            self._check_grads(batch, wanted, made)
            bits.add(b"".join(x.tobytes() for x in batch.own_rows(made)))
        assert len(bits) == 1, "deterministic gradients differ"

    def _placed(self, x: Any, where: str) -> Any:
        """The same array, lying otherwise; hosts get arrays that they can hold."""
        if where == "heads last":
            return np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3)
        return x if self.host != "numpy" else place(x, where)

    # --- comparison -------------------------------------------------------------------------------

    def _lost(self) -> float:
        cap = self.options.get("softcap")
        return 0.0 if cap is None else cap * CAPPED[self.dtype]

    def _check(self, batch: Batch, wanted: Any, out: Any, lse: Any) -> None:
        assert out.shape == batch.out_shape and out.dtype == batch.out_dtype.numpy, (out.shape, out.dtype)
        assert not batch.after(out, 0).astype(np.float64).any(), "rows after the last sequence are not zero"
        if lse is not None and batch.ragged:
            none = batch.options.get("sinks", np.full(self.heads, -np.inf)).astype(
                np.float32
            )  # as of a query without keys
            assert np.allclose(batch.after(lse.T, 0), none, rtol=1e-5), "lse after the last sequence"
        bound, lse_bound = BOUNDS[self.dtype] + 2 * self._lost(), LSE_BOUNDS[self.dtype] + self._lost()
        for b, (got, sums) in enumerate(batch.split(out, lse)):
            one = wanted[b]
            lost = np.isnan(one.lse[0])
            assert np.isnan(got[lost].astype(np.float64)).all(), f"sequence {b}: rows that see NaN are none"
            size = float(np.nanmax(np.abs(one.out), initial=0)) or 1.0
            error = float(np.abs(got.astype(np.float64) - one.out[0])[~lost].max(initial=0)) / size
            assert error < bound, f"out of sequence {b}: {error:.1e}"
            none = np.isneginf(one.lse[0])
            assert not got[none].astype(np.float64).any(), f"sequence {b}: rows without keys are not zero"
            if sums is None:
                continue
            assert sums.dtype == np.float32 and np.array_equal(np.isneginf(sums), none), f"-inf in lse of {b}"
            assert np.isnan(sums[lost]).all(), f"lse of rows of {b} that see NaN"
            there = ~(none | lost)
            error = float(np.abs(sums[there] - one.lse[0][there]).max(initial=0))
            most = float(np.abs(one.lse[0][there]).max(initial=0))
            assert error < lse_bound * max(1.0, most / 16), f"lse: {error:.1e}"

    def _check_grads(self, batch: Batch, wanted: Any, made: Any) -> None:
        names = ["q", "k", "v", *(n for n in ("sinks", "bias") if n in batch.options)]
        assert len(made) == len(names)
        for name, got, want, size in batch.grads(names, made, wanted):
            error = float(np.abs(got.astype(np.float64) - want).max(initial=0)) / max(size, 1e-30)
            own = ROUNDED.get(got.dtype.itemsize, 0.0)  # sinks and a bias have a dtype of their own
            bound = 1.5 * (BOUNDS[self.dtype] + 2 * self._lost()) + own
            assert error < bound, f"d{name}: {error:.1e} of {size:.1e}"


KINDS: calls.Kinds = {
    "forward": Attention,
    "gradients": partial(Attention, way="gradients"),
    "hosts": partial(Attention, way="hosts"),
    "decode": decoding.Decode,
    "mla": decoding.Mla,
}

if __name__ == "__main__":
    sys.exit(calls.main(KINDS, "tests.fuzz.attention", __doc__))
