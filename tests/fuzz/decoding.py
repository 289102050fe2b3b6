"""Random calls of `kd.library.decode_attention` and `mla_decode`, each against float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz.choose import Choices
from tests.library import test_decode, test_mla_decode
from tests.library.products import PLACES, place

LENGTHS = (0, 1, 2, 7, 16, 17, 63, 64, 65, 100, 130, 200)
LONG = (0, 1, 64, 500, 1000, 1023, 4096, 9000)
AGAIN = 0.35  # the probability that a call comes again with other sizes


class Decode:
    """Some queries over long caches, in pages or plain."""

    def __init__(self, seed: int, large: bool = False) -> None:
        c = Choices(seed)
        self.seed, self.lengths = seed, LONG if large else LENGTHS
        self.dtype = c.one([kd.bfloat16, kd.float16])
        kv_heads = c.one([1, 2, 3])
        self.heads = kv_heads * c.one([1, 2, 4, 7]), kv_heads
        self.dim = c.one([16, 24, 64, 64, 80, 128, 128, 136, 192, 256])
        narrow = c.chance(0.4)
        self.more: dict[str, Any] = {
            "queries": c.one([1, 1, 2, 5, 8]),
            "page": c.one([0, 0, 1, 3, 8, 16, 24, 64, 100, 256]),
        }
        self.more |= {"cache": kd.float8_e4m3fn} if narrow else {}
        for name in ("k_scale", "v_scale"):
            self.more |= {name: c.one([0.5, "array", "tensor"])} if narrow and c.chance(0.5) else {}
        drawn = {
            "causal": False,
            "window": c.one([1, 5, 30, 100]),
            "softcap": c.one([1.5, 20.0]),
            "splits": c.one([1, 2, 3, 7]),
        }
        self.more |= {name: x for name, x in drawn.items() if c.chance(0.35)}
        self.out, self.places = c.chance(0.4), [c.one(["plain", "plain", *PLACES]) for _ in "qkvo"]
        self.lse = c.chance(0.6)
        self.calls = 2 if c.chance(AGAIN) else 1

    def __str__(self) -> str:
        return " ".join(f"{k}={v}" for k, v in vars(self).items())

    def run(self, interpret: Any) -> None:
        for number in range(self.calls):
            rng = np.random.default_rng((self.seed, number))
            lengths = tuple(int(n) for n in rng.choice(self.lengths, rng.integers(1, 5)))
            arrays, options, wanted = test_decode.case(rng, lengths, self.heads, self.dim, self.dtype, **self.more)
            arrays = (*(place(x, how) for x, how in zip(arrays[:3], self.places, strict=False)), arrays[3])
            out = None
            if self.out:
                out = place(np.full(wanted[0].shape, 77).astype(self.dtype.numpy), self.places[3])
                out = (out, np.full(wanted[1].shape, 77, np.float32)) if self.lse else out
            got = kd.library.decode_attention(*arrays, **options, return_lse=self.lse, out=out, interpret=interpret)
            assert out is None or (got[0] is out[0] if self.lse else got is out), "another array than the given one"
            # the tanh of 16-bit scores is off by up to 2^-11
            test_decode.check(got if self.lse else (got, wanted[1].astype(np.float32)), wanted, self.dtype)


class Mla:
    """Latent keys, in pages."""

    def __init__(self, seed: int, large: bool = False) -> None:
        c = Choices(seed)
        self.seed, self.lengths = seed, LONG if large else LENGTHS[:-2]
        self.queries, self.heads = c.one([1, 1, 2, 4]), c.one([1, 3, 16, 64, 130] if not large else [16, 64, 128])
        self.page = c.one([5, 8, 16, 24, 40, 64, 100])
        self.scale = c.one([0.06, 0.03])
        self.where = c.one(["plain", "plain", *PLACES])
        self.calls = 2 if c.chance(AGAIN) else 1

    def __str__(self) -> str:
        return " ".join(f"{k}={v}" for k, v in vars(self).items())

    def run(self, interpret: Any) -> None:
        for number in range(self.calls):
            rng = np.random.default_rng((self.seed, number))
            lengths = tuple(int(n) for n in rng.choice(self.lengths, rng.integers(1, 4)))
            arrays, wanted = test_mla_decode.case(rng, lengths, self.queries, self.heads, self.page, scale=self.scale)
            arrays = (place(arrays[0], self.where), *arrays[1:])
            got = kd.library.mla_decode(*arrays, scale=self.scale, return_lse=True, interpret=interpret)
            test_mla_decode.check(got, wanted)
