"""Integer and bit instructions by definition, on Python integers."""

from __future__ import annotations

from collections.abc import Callable

Reference = Callable[..., tuple[int, ...]]


def width(type_: str) -> int:
    return int(type_[1:])


def value(bits: int, type_: str) -> int:
    """The number that register bits mean."""
    w = width(type_)
    bits &= (1 << w) - 1
    return bits - (1 << w) if type_[0] == "s" and bits >> (w - 1) else bits


def wrap(number: int, type_: str) -> int:
    return number & ((1 << width(type_)) - 1)


def clamp(number: int, type_: str) -> int:
    w = width(type_)
    low, high = (-(1 << (w - 1)), (1 << (w - 1)) - 1) if type_[0] == "s" else (0, (1 << w) - 1)
    return max(low, min(high, number))


def truncated_quotient(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def halves(bits: int, signed: bool) -> list[int]:
    return [value(bits >> s & 0xFFFF, "s16" if signed else "u16") for s in (0, 16)]


def arithmetic(op: tuple[str, ...]) -> Reference | None:
    name, type_ = op[0], next(word for word in reversed(op) if word != "relu")
    if type_ in ("u16x2", "s16x2"):
        return packed(op)

    def on_values(fn: Callable[..., int]) -> Reference:
        return lambda *bits: (wrap(fn(*(value(b, type_) for b in bits)), type_),)

    sat = "sat" in op
    table: dict[str, Callable[..., int]] = {
        "add": lambda a, b: clamp(a + b, type_) if sat else a + b,
        "sub": lambda a, b: clamp(a - b, type_) if sat else a - b,
        "neg": lambda a: -a,
        "abs": abs,
        "sad": lambda a, b, c: c + abs(a - b),
        "min": lambda a, b: max(min(a, b), 0) if "relu" in op else min(a, b),
        "max": lambda a, b: max(a, b, 0) if "relu" in op else max(a, b),
        "div": lambda a, b: truncated_quotient(a, b) if b else -1,
        "rem": lambda a, b: a - b * truncated_quotient(a, b) if b else -1,
    }
    if name in ("mul", "mad"):
        return multiply(op)
    if name in ("mul24", "mad24"):
        return multiply24(op)
    return on_values(table[name]) if name in table else None


def packed(op: tuple[str, ...]) -> Reference:
    signed = "s16x2" in op
    pick: Callable[[int, int], int] = {"add": lambda a, b: a + b, "min": min, "max": max}[op[0]]

    def fn(a: int, b: int) -> tuple[int, ...]:
        parts = [pick(x, y) for x, y in zip(halves(a, signed), halves(b, signed), strict=True)]
        parts = [max(p, 0) for p in parts] if "relu" in op else parts
        return ((parts[0] & 0xFFFF) | (parts[1] & 0xFFFF) << 16,)

    return fn


def multiply(op: tuple[str, ...]) -> Reference:
    mode, type_ = op[1], op[-1]
    w = width(type_)
    result = type_[0] + str(2 * w) if mode == "wide" else type_

    def fn(a: int, b: int, c: int = 0) -> tuple[int, ...]:
        product = value(a, type_) * value(b, type_)
        product = product >> w if mode == "hi" else product
        if mode == "lo":
            product = wrap(product, type_)
        total = product + value(c, result)
        return (wrap(clamp(total, type_) if "sat" in op else total, result),)

    return fn


def multiply24(op: tuple[str, ...]) -> Reference:
    type_ = op[-1]

    def low24(a: int) -> int:
        return value(a & 0xFFFFFF, type_[0] + "24")

    def fn(a: int, b: int, c: int = 0) -> tuple[int, ...]:
        product = low24(a) * low24(b)
        product = product >> 16 if op[1] == "hi" else product
        if op[1] == "lo" or "sat" not in op:
            return (wrap(product + c, type_),)
        return (wrap(clamp(value(wrap(product, type_), type_) + value(c, type_), type_), type_),)

    return fn


def carries(op: tuple[str, ...]) -> Reference | None:
    name, type_ = op[0], op[-1]
    w, out = width(type_), "cc" in op
    unsigned = "u" + type_[1:]

    def result(total: int) -> tuple[int, ...]:
        return (wrap(total, unsigned), int(total >> w != 0)) if out else (wrap(total, unsigned),)

    if name in ("add", "addc"):
        return lambda a, b, c=0: result(a + b + c)
    if name in ("sub", "subc"):
        # a + ~b + carry, as the hardware subtracts: the flag is the carry of that sum
        return lambda a, b, c=1: result(a + (~b & (1 << w) - 1) + c)

    def fused(a: int, b: int, c: int, carry: int = 0) -> tuple[int, ...]:
        product = value(a, type_) * value(b, type_)
        part = wrap(product >> w if op[1] == "hi" else product, unsigned)
        return result(part + c + carry)

    return fused


def dot(op: tuple[str, ...]) -> Reference:
    a_type, b_type = op[-2][0] + "8", op[-1][0] + "8"

    def fn4(a: int, b: int, c: int) -> tuple[int, ...]:
        total = sum(value(a >> s & 255, a_type) * value(b >> s & 255, b_type) for s in (0, 8, 16, 24))
        return ((total + c) & 0xFFFFFFFF,)

    def fn2(a: int, b: int, c: int) -> tuple[int, ...]:
        b = b >> 16 if op[1] == "hi" else b
        total = sum(value(a >> (16 * i) & 0xFFFF, op[-2][0] + "16") * value(b >> (8 * i) & 255, b_type) for i in (0, 1))
        return ((total + c) & 0xFFFFFFFF,)

    return fn4 if op[0] == "dp4a" else fn2


# --- bits ----------------------------------------------------------------------------------------

_PRMT = {
    "f4e": "3210 4321 5432 6543",
    "b4e": "5670 6701 7012 0123",
    "rc8": "0000 1111 2222 3333",
    "ecl": "3210 3211 3222 3333",
    "ecr": "0000 1110 2210 3210",
    "rc16": "1010 3232 1010 3232",
}


def bits(op: tuple[str, ...]) -> Reference | None:
    name, type_ = op[0], op[-1]
    if name == "prmt":
        return lambda a, b, c: (permute(a, b, c, op[2] if len(op) == 3 else ""),)
    if name == "lop3":
        return lut3(op)
    if name == "fns":
        return lambda mask, base, n: (find_nth(mask, base, value(n, "s32")),)
    w = 1 if type_ == "pred" else width(type_)
    ones = (1 << w) - 1
    table: dict[str, Callable[..., int]] = {
        "mov": lambda a: a,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "not": lambda a: ~a & ones,
        "cnot": lambda a: int(a == 0),
        "shl": lambda a, n: (a << n) & ones if n < w else 0,
        "shr": lambda a, n: (value(a, type_) >> min(n, w)) & ones,
        "shf": lambda a, b, n: funnel(a, b, n, op[1], op[2]),
        "popc": lambda a: a.bit_count(),
        "clz": lambda a: w - a.bit_length(),
        "brev": lambda a: int(f"{a:0{w}b}"[::-1], 2),
        "bfind": lambda a: find_top(a, type_, "shiftamt" in op),
        "bfe": lambda a, pos, length: extract(a, field(pos, w), field(length, w), type_),
        "bfi": lambda a, b, pos, length: insert(a, b, field(pos, w), field(length, w), w),
        "bmsk": lambda a, b: mask_of(a, b, op[1]),
        "szext": lambda a, b: extend(a, b, op[1], type_),
    }
    fn = table.get(name)
    return None if fn is None else lambda *args: (fn(*args),)


def field(operand: int, w: int) -> int:
    """A position or length: 8 bits of it count, and all of those of 64-bit fields."""
    return operand & 255 if w == 32 else min(operand, 255)


def permute(a: int, b: int, c: int, mode: str) -> int:
    source = [(b << 32 | a) >> (8 * i) & 255 for i in range(8)]
    if mode:
        digits = _PRMT[mode].split()[c & 3]
        return sum(source[int(d)] << (8 * (3 - i)) for i, d in enumerate(digits))
    result = 0
    for i in range(4):
        nibble = c >> (4 * i) & 15
        byte = source[nibble & 7]
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        result |= byte << (8 * i)
    return result


def lut3(op: tuple[str, ...]) -> Reference:
    def fn(a: int, b: int, c: int, lut: int, q: int = 0) -> tuple[int, ...]:
        result = 0
        for i in range(32):
            index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)
            result |= (lut >> index & 1) << i
        if len(op) == 2:
            return (result,)
        p = int(result != 0)
        return result, (p | q if op[1] == "or" else p & q)

    return fn


def find_nth(mask: int, base: int, n: int) -> int:
    order = range(base, 32) if n > 0 else range(min(base, 31), -1, -1) if n < 0 else [base]
    remaining = abs(n) if n else 1
    for position in order:
        if mask >> position & 1:
            remaining -= 1
            if not remaining:
                return position
    return 0 if n == -(2**31) else 0xFFFFFFFF


def funnel(a: int, b: int, n: int, direction: str, mode: str) -> int:
    n = min(n, 32) if mode == "clamp" else n & 31
    pair = b << 32 | a
    return (pair << n >> 32 if direction == "l" else pair >> n) & 0xFFFFFFFF


def find_top(a: int, type_: str, amount: bool) -> int:
    w = width(type_)
    number = value(a, type_)
    number = ~number if number < 0 else number
    if a == 0 or number == 0:
        return 0xFFFFFFFF
    top = number.bit_length() - 1
    return w - 1 - top if amount else top


def extract(a: int, pos: int, length: int, type_: str) -> int:
    w = width(type_)
    if length == 0:
        return 0
    last = a >> min(pos + length - 1, w - 1) & 1 if type_[0] == "s" else 0
    result = 0
    for i in range(w):
        bit = a >> (pos + i) & 1 if i < length and pos + i < w else last
        result |= bit << i
    return result


def insert(a: int, b: int, pos: int, length: int, w: int) -> int:
    for i in range(length):
        if pos + i < w:
            b = b & ~(1 << (pos + i)) | (a >> i & 1) << (pos + i)
    return b


def mask_of(a: int, b: int, mode: str) -> int:
    if mode == "wrap":
        a, b = a & 31, b & 31
    return sum(1 << i for i in range(32) if a <= i < a + b)


def extend(a: int, n: int, mode: str, type_: str) -> int:
    n = n & 31 if mode == "wrap" else min(n, 32)
    if n == 0:
        return 0
    return value(a & ((1 << n) - 1), type_[0] + str(n)) & 0xFFFFFFFF
