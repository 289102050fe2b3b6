"""Random products of `kd.dot` with scales: dtypes, forms of scales, batches of steps and places of operands, against NumPy.

Operands are small ints and scales powers of two, so that every sum is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz.choose import Choices

DTYPES = ("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "float16", "bfloat16", "float32")
FORMS = ("none", "one", "side", "side2", "blocks", "squares")  # squares: for b, a scale for 128 by 128
BLOCK = 128


class Program:
    """(M, K) @ (K, N), `acc` from an earlier product or not, scales as values or from Refs."""

    def __init__(self, seed: int) -> None:
        c = Choices(seed)
        self.seed = seed
        self.m, self.n = c.one([1, 8, 16, 24, 64, 128]), c.one([1, 8, 16, 40, 64, 136])
        self.k = c.one([1, 16, 32, 96, 128, 160, 256, 384])
        while self.m * self.k > 16384:
            self.m //= 2
        while self.k * self.n > 16384:
            self.n = max(self.n // 2, 1)
        self.dtypes = [c.one(DTYPES), c.one(DTYPES)] if c.chance(0.3) else [c.one(DTYPES)] * 2
        self.forms = [c.one(FORMS[:5]), c.one(FORMS)]
        if self.forms == ["none", "none"]:
            self.forms[0] = "blocks"
        self.kinds = [c.one(["float32", "float8_e8m0fnu"]) for _ in range(2)]
        self.given = [c.one(["value", "ref"]) for _ in range(2)]
        self.scale_given = [c.one(["value", "ref"]) for _ in range(2)]
        self.acc = c.chance(0.3)
        self.out = c.one([None, None, "float32", "bfloat16"])
        self.smem = c.chance(0.3)  # b in SMEM
        low = 0 if "uint8" in self.dtypes else -3
        shapes = ((self.m, self.k), (self.k, self.n))
        self.operands = [
            c.rng.integers(low, 4, s).astype(kd.dtypes.as_dtype(d).numpy) for s, d in zip(shapes, self.dtypes, strict=True)
        ]  # fmt: skip
        self.scales = [self._scale(c, side) for side in range(2)]

    def _scale(self, c: Choices, side: int) -> np.ndarray | None:
        form, parts, extent = self.forms[side], -(-self.k // BLOCK), (self.m, self.n)[side]
        shapes: dict[str, tuple[int, ...]] = {
            "one": (),
            "side": (extent,),
            "side2": (extent, 1) if side == 0 else (1, extent),
            "blocks": (extent, parts) if side == 0 else (parts, extent),
            "squares": (parts, -(-self.n // BLOCK)),
        }
        if form == "none":
            return None
        powers = 2.0 ** c.rng.integers(-2, 3, shapes[form])
        return np.asarray(powers).astype(kd.dtypes.as_dtype(self.kinds[side]).numpy)

    def kernel(self) -> Any:
        out = getattr(kd, self.out) if self.out else kd.float32
        scratch = {"tile": kd.SMEM((self.k, self.n), getattr(kd, self.dtypes[1]))} if self.smem else {}
        given = [i for i, s in enumerate(self.scales) if s is not None]

        def body(a: Any, b: Any, *rest: Any, **named: Any) -> None:
            scales: list[Any] = [None, None]
            for number, side in enumerate(given):
                scales[side] = rest[number] if self.scale_given[side] == "ref" else rest[number][...]
            out = rest[len(given)]
            left, right = a if self.given[0] == "ref" else a[...], b if self.given[1] == "ref" else b[...]
            if self.smem:
                named["tile"][...] = b[...]
                kd.commit_smem()
                right = named["tile"]
            more: dict[str, Any] = {"acc": kd.full((self.m, self.n), 3.0, kd.float32)} if self.acc else {}
            if self.out:
                more["out_dtype"] = getattr(kd, self.out)
            out[...] = kd.dot(left, right, a_scale=scales[0], b_scale=scales[1], **more)

        return kd.kernel(
            body,
            out_type=kd.ShapeDtypeStruct((self.m, self.n), out),
            scratch_types=scratch,
            name=f"scales_{self.seed}",
        )

    def arguments(self) -> list[Any]:
        return [*self.operands, *(s for s in self.scales if s is not None)]

    def run(self, interpret: Any = True) -> list[np.ndarray]:
        return [np.asarray(self.kernel()(*self.arguments(), interpret=interpret))]

    def check(self, outputs: list[np.ndarray]) -> None:
        a, b = (x.astype(np.float64) for x in self.operands)
        wanted = np.full((self.m, self.n), 3.0 if self.acc else 0.0)
        for part in range(-(-self.k // BLOCK)):
            here = slice(part * BLOCK, (part + 1) * BLOCK)
            wanted += (a[:, here] @ b[here]) * self._factor(0, part) * self._factor(1, part)
        if self.out:
            wanted = wanted.astype(np.float32).astype(kd.dtypes.as_dtype(self.out).numpy)
        np.testing.assert_array_equal(outputs[0].astype(np.float64), wanted.astype(np.float64))

    def _factor(self, side: int, part: int) -> Any:
        """The scales of a part of K, as rows or columns of the result."""
        scale, form = self.scales[side], self.forms[side]
        if scale is None:
            return 1.0
        s = scale.astype(np.float64)
        if form == "blocks":
            s = s[:, part] if side == 0 else s[part]
        elif form == "squares":
            s = np.repeat(s[part], BLOCK)[: self.n]
        return s if form == "one" else (s.reshape(-1, 1) if side == 0 else s.reshape(1, -1))

    def source(self) -> str:
        """What was chosen, in words."""
        return "\n".join(f"{k} = {v}" for k, v in vars(self).items() if k not in ("operands", "scales"))


def generate(seed: int) -> Program:
    """The program of a seed."""
    return Program(seed)
