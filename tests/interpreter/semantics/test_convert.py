"""Every cvt form against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import compile_alu
from kernel_dsl.runtime.interpreter.isa.semantics.table import Entry, entries

from . import integer_reference as integers
from . import reference as ref
from .operands import operands

COUNT = 260
SCALAR = [e for e in entries() if e.family == "convert"]
# the formats of microscaling, and their dtypes in ml_dtypes
NARROW = {
    "e2m1x2": ml_dtypes.float4_e2m1fn, "e2m3x2": ml_dtypes.float6_e2m3fn, "e3m2x2": ml_dtypes.float6_e3m2fn,
    "ue8m0x2": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip
ALL_PACKED = [e for e in entries() if e.family == "convert_packed" and e.opcode[1] != "pack"]
PACKED = [e for e in ALL_PACKED if not NARROW.keys() & {*e.opcode}]
NARROWED = [e for e in ALL_PACKED if NARROW.keys() & {*e.opcode}]
PACK = [e for e in entries() if e.family == "convert_packed" and e.opcode[1] == "pack"]
FLOATS = ref.FORMATS
_INTEGRAL = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


def mode_of(op: tuple[str, ...]) -> str:
    return next((m for m in op if m in ("rn", "rz", "rm", "rp", "rna")), "rn")


def flush32(bits: int) -> int:
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


def to_integer(op: tuple[str, ...], x: ref.Value, target: str, source: str) -> int:
    w = integers.width(target)
    low, high = integers.clamp(-(1 << 70), target), integers.clamp(1 << 70, target)
    if x.kind == ref.NAN:
        top_bit = integers.value(1 << (w - 1), target)
        return register(top_bit, target) if w == 64 or source == "f64" else 0
    if x.kind != "finite":
        number = low if x.kind == ref.NINF else high
    else:
        mode = _INTEGRAL[next(m for m in op if m in _INTEGRAL)]
        number = integers.clamp(ref.round_integer(x.number, mode), target)
    return register(number, target)


def register(number: int, type_: str) -> int:
    """An integer in its register: 8-bit ones fill 16 bits."""
    bits = max(integers.width(type_), 16)
    return number & ((1 << bits) - 1)


def from_value(op: tuple[str, ...], x: ref.Value, target: str) -> int:
    """A value rounded to a float format, with .sat, .relu and .satfinite."""
    fmt = FLOATS[target]
    satfinite = "satfinite" in op
    if "sat" in op:
        if x.kind in (ref.NAN, ref.NINF) or (x.kind == "finite" and x.number <= 0):
            return 0
        if x.kind == ref.INF or x.number > 1:
            x = ref.ONE
    if x.kind == ref.NAN:
        return fmt.nan
    if "relu" in op and x.negative:
        return 0
    if x.kind != "finite":
        code = fmt.top - 1 if satfinite else fmt.top
        return code | (1 << (fmt.bits - 1) if x.negative else 0)
    return ref.encode(x.number, target, mode_of(op), x.negative, satfinite)


def kept_nan(op: tuple[str, ...], bits: int, target: str, source: str) -> int | None:
    """A NaN whose bits the conversion keeps; None where the result is canonical."""
    if target == "f32" and source in ("f32", "bf16") and "ftz" not in op:
        return bits << (32 - FLOATS[source].bits)
    if source == "f64" and target != "f64":
        fmt = FLOATS[target]
        fraction = bits >> (52 - fmt.mantissa) & ((1 << fmt.mantissa) - 1)
        return bits >> 63 << (fmt.bits - 1) | fmt.top | 1 << (fmt.mantissa - 1) | fraction
    return None


def scalar(op: tuple[str, ...], bits: int, target: str, source: str) -> int:
    if source not in FLOATS:
        number = integers.value(bits, source)
        if target not in FLOATS:
            number = integers.clamp(number, target) if "sat" in op else number
            return register(integers.value(number, target), target)
        x = ref.Value("finite", Fraction(number), number < 0)
        return from_value(op, x, target)
    bits = flush32(bits) if "ftz" in op and source == "f32" and target != "f16" else bits
    x = ref.decode(bits, source)
    if x.kind == ref.NAN and target in FLOATS and not {"sat", "rni", "rzi", "rmi", "rpi"} & set(op):
        kept = kept_nan(op, bits, target, source)
        if kept is not None:
            return kept
    if target not in FLOATS:
        return to_integer(op, x, target, source)
    integral = next((m for m in op if m in _INTEGRAL), None)
    if integral and x.kind == "finite":
        number = Fraction(ref.round_integer(x.number, _INTEGRAL[integral]))
        x = ref.Value("finite", number, x.negative)
    code = from_value(op, x, target)
    if "ftz" not in op or target != "f32":
        return code
    mode = next((m for m in op if m in ("rn", "rz", "rm", "rp")), "rn")
    if x.kind == "finite" and x.number and ref.is_tiny(ref.encode(x.number, "f32 unbounded", mode), "f32 unbounded"):
        return code & 0x80000000
    return flush32(code)


@pytest.mark.parametrize("source", sorted({e.opcode[-1] for e in SCALAR}))
@pytest.mark.sampled(2)
def test_scalar_conversions(source: str) -> None:
    for entry in SCALAR:
        if entry.opcode[-1] != source:
            continue
        target = entry.opcode[-2]
        arrays = operands(entry.operands, COUNT, seed=len(entry.mnemonic))
        got = compile_alu(entry.opcode)(*arrays)[0]
        for index, bits in enumerate(arrays[0].tolist()):
            want, have = scalar(entry.opcode, bits, target, source), int(got[index])
            if target == "f64" and ref.decode(want, "f64").kind == ref.NAN:
                assert ref.decode(have, "f64").kind == ref.NAN
                continue
            assert have == want, (entry.mnemonic, hex(bits), hex(have), hex(want))


def packed_reference(op: tuple[str, ...], row: list[int]) -> int:
    target, source = op[-2], op[-1]
    if target == "tf32":
        x = ref.decode(row[0], "f32")
        if x.kind == ref.NAN and "rna" in op:
            return (row[0] & ~0x1FFF) - (0x2000 if "satfinite" in op else 0)
        return from_value(op, x, "tf32") << 13
    if not target.endswith("x2"):
        return from_value(op, ref.decode(row[0], "f32"), target)
    name, element = target[:-2], source.removesuffix("x2")
    if source.endswith("x2"):
        w = FLOATS[element].bits
        parts = [row[0] >> w & ((1 << w) - 1), row[0] & ((1 << w) - 1)]
    else:
        parts = row
    high, low = (from_value(op, ref.decode(bits, element), name) for bits in parts)
    return high << FLOATS[name].bits | low


@pytest.mark.parametrize("entry", PACKED, ids=lambda e: e.mnemonic)
def test_packed_conversions(entry: Entry) -> None:
    arrays = operands(entry.operands, 600, seed=len(entry.mnemonic))
    got = compile_alu(entry.opcode)(*arrays)[0]
    for index, row in enumerate(zip(*(a.tolist() for a in arrays), strict=True)):
        want, have = packed_reference(entry.opcode, list(row)), int(got[index])
        assert have == want, (entry.mnemonic, [hex(x) for x in row], hex(have), hex(want))


@pytest.mark.parametrize("entry", PACK, ids=lambda e: e.mnemonic)
def test_cvt_pack(entry: Entry) -> None:
    type_ = entry.opcode[3]
    w = int(type_[1:])
    arrays = operands(entry.operands, 400)
    got = compile_alu(entry.opcode)(*arrays)[0]
    for index, (a, b, *c) in enumerate(zip(*(x.tolist() for x in arrays), strict=True)):
        upper, lower = (integers.clamp(integers.value(x, "s32"), type_) & ((1 << w) - 1) for x in (a, b))
        want = ((c[0] << (2 * w) if c else 0) | upper << w | lower) & 0xFFFFFFFF
        assert int(got[index]) == want


def test_wide_sources_are_cut() -> None:
    """cvt reads the low bits of a wider register."""
    wide = np.array([0x1234FF80, 0xABCD007F], np.uint32)
    assert compile_alu(("cvt", "s32", "s8"))(wide)[0].tolist() == [0xFFFFFF80, 0x7F]
    assert compile_alu(("cvt", "u64", "u8"))(wide)[0].tolist() == [0x80, 0x7F]
    assert compile_alu(("cvt", "rn", "f32", "s16"))(wide)[0].view(np.float32).tolist() == [
        -128.0,
        127.0,
    ]
    assert compile_alu(("cvt", "f32", "f16"))(np.array([0xFFFF3C00], np.uint32))[0].tolist() == [0x3F800000]


def test_every_fp8_code_survives_a_round_trip() -> None:
    codes = np.arange(65536, dtype=np.uint16)
    for name in ("e4m3x2", "e5m2x2"):
        halves = compile_alu(("cvt", "rn", "f16x2", name))(codes)[0]
        back = compile_alu(("cvt", "rn", "satfinite", name, "f16x2"))(halves)[0]
        fmt = FLOATS[name[:-2]]
        for shift in (0, 8):
            byte, again = codes >> shift & 255, back >> shift & 255
            finite = (byte & 127) < fmt.top
            assert np.array_equal(byte[finite], again[finite])


# --- formats of microscaling ----------------------------------------------------------------------

_HALF = {"f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16}


def of_codes(codes: np.ndarray, name: str) -> np.ndarray:
    """The values of codes of 4 to 8 bits, in float32."""
    return codes.astype(np.uint8).view(NARROW[name]).astype(np.float32)


def nearest(x: np.ndarray, name: str, relu: bool) -> np.ndarray:
    """The codes next to float32 values, ties to even; a NaN gives the largest number, as it does in cuda_fp4.hpp."""
    largest = np.float32(ml_dtypes.finfo(NARROW[name]).max)
    x = np.where(np.isnan(x), np.inf, np.maximum(x, 0) if relu else x)
    return np.clip(x, -largest, largest).astype(np.float32).astype(NARROW[name]).view(np.uint8)


def power(x: np.ndarray, mode: str, satfinite: bool) -> np.ndarray:
    """The exponents plus 127 of the powers of two below or above |x|, as cuda_fp8.hpp has them."""
    size = np.abs(x).astype(np.float64)
    mantissa, exponent = np.frexp(size)
    up = (mode == "rp") & (mantissa > 0.5)
    code = np.clip(np.where(size > 0, exponent - 1 + up, -127) + 127, 0, 255)
    code = np.where(np.isinf(size), 255, code)
    code = np.where((code == 255) & satfinite, 254, code)
    return np.where(np.isnan(x), 255, code).astype(np.uint8)


@pytest.mark.parametrize("entry", NARROWED, ids=lambda e: e.mnemonic)
def test_conversions_of_microscaling(entry: Entry) -> None:
    *modes, target, source = entry.opcode[1:]
    arrays = operands(entry.operands, 4000, seed=len(entry.mnemonic))
    got = compile_alu(entry.opcode)(*arrays)[0]
    if source in NARROW:
        width = np.uint16(4 if source == "e2m1x2" else 8)
        mask = np.uint16({"e2m1x2": 15, "ue8m0x2": 255}.get(source, 63))
        for shift, half in ((width, np.uint32(16)), (0, np.uint32(0))):
            want = of_codes(arrays[0] >> shift & mask, source)
            want = (np.maximum(want, 0) if "relu" in modes else want).astype(_HALF[target])
            have = (got >> half).astype(np.uint16).view(_HALF[target])
            np.testing.assert_array_equal(have.astype(np.float32), want.astype(np.float32))
        return
    if len(arrays) == 2:
        parts = [a.view(np.float32) for a in arrays]
    else:
        parts = [(arrays[0] >> np.uint32(s)).astype(np.uint16).view(_HALF[source]).astype(np.float32) for s in (16, 0)]
    with np.errstate(all="ignore"):
        if target == "ue8m0x2":
            high, low = (power(x, modes[0], "satfinite" in modes) for x in parts)
        else:
            high, low = (nearest(x, target, "relu" in modes) for x in parts)
    shift = 4 if target == "e2m1x2" else 8
    np.testing.assert_array_equal(got, high.astype(np.uint16) << shift | low)
