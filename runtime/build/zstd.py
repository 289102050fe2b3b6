"""Unpacks Zstandard frames (RFC 8878), which nvcc makes of the PTX in fat binaries. Python has a library from 3.14 on."""

from __future__ import annotations

from dataclasses import dataclass

_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A50  # and the 15 numbers after it
_LARGEST_BLOCK = 1 << 17
_MOST_WEIGHT = 11  # bits of a Huffman code

# Baselines and extra bits of the codes of literal lengths and match lengths (3.1.1.3.2.1.1).
_LITERAL_BITS = (*(0,) * 16, 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
_MATCH_BITS = (*(0,) * 32, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)


def _baselines(first: int, bits: tuple[int, ...]) -> tuple[int, ...]:
    found = [first]
    for n in bits[:-1]:
        found.append(found[-1] + (1 << n))
    return tuple(found)


_LITERAL_BASES, _MATCH_BASES = _baselines(0, _LITERAL_BITS), _baselines(3, _MATCH_BITS)

# The distributions of codes in a block that has none of its own (3.1.1.3.2.2).
_LITERAL_DEFAULT = [4, 3, *[2] * 6, 2, 2, 2, 2, 2, 1, 1, 1, *[2] * 9, 3, 2, 1, 1, 1, 1, 1, *[-1] * 4]
_MATCH_DEFAULT = [1, 4, 3, 2, 2, 2, 2, 2, 2, *[1] * 37, *[-1] * 7]
_OFFSET_DEFAULT = [1, 1, 1, 1, 1, 1, 2, 2, 2, *[1] * 15, *[-1] * 5]


@dataclass(frozen=True)
class Table:
    """A table of finite state entropy: the symbol of each state, and how the next state is read."""

    log: int
    symbols: list[int]
    bits: list[int]
    bases: list[int]


class Backward:
    """A bit stream that is read from its end. Bits before its start are zero."""

    def __init__(self, data: bytes) -> None:
        if not data or not data[-1]:
            raise ValueError("a bit stream without an end mark")
        self.data = data
        self.left = 8 * (len(data) - 1) + data[-1].bit_length() - 1

    def read(self, count: int) -> int:
        self.left -= count
        start = self.left
        if start < 0:
            whole = int.from_bytes(self.data[: (start + count + 7) // 8], "little") if start + count > 0 else 0
            return (whole & ((1 << max(start + count, 0)) - 1)) << min(-start, count)
        first = start >> 3
        return int.from_bytes(self.data[first : first + 8], "little") >> (start & 7) & ((1 << count) - 1)


def unpack(data: bytes) -> bytes:
    """The contents of all frames. Raises ValueError or IndexError for damaged data; checksums are not compared."""
    found = bytearray()
    at = 0
    while at < len(data):
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & ~15 == _SKIPPABLE:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        elif magic == _MAGIC:
            at = _frame(data, at + 4, found)
        else:
            raise ValueError("no Zstandard frame")
    return bytes(found)


def _frame(data: bytes, at: int, out: bytearray) -> int:
    """Unpack a frame behind its magic number. Returns the offset of its end."""
    head = data[at]
    single, dictionary, size = head >> 5 & 1, (0, 1, 2, 4)[head & 3], (0, 2, 4, 8)[head >> 6]
    at += 1 + (not single) + dictionary + (size or single)
    block = _Blocks(out, len(out))
    last = False
    while not last:
        if at + 3 > len(data):
            raise ValueError("a frame that is cut")
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        at += 3
        stored = 1 if kind == 1 else length
        if kind == 3 or length > _LARGEST_BLOCK or at + stored > len(data):
            raise ValueError("a block that is cut")
        body = data[at : at + stored]
        if kind == 2:
            block.unpack(body)
        else:
            out += body * length if kind == 1 else body
        at += stored
    return at + (4 if head & 4 else 0)


class _Blocks:
    """The blocks of one frame, which share tables and the last three offsets."""

    def __init__(self, out: bytearray, start: int) -> None:
        self.out = out
        self.start = start
        self.codes: tuple[int, list[int], list[int]] | None = None
        self.tables: list[Table | None] = [None, None, None]
        self.offsets = [1, 4, 8]

    def unpack(self, body: bytes) -> None:
        literals, at = self._literals(body)
        count = body[at]
        at += 1
        if count == 255:
            count = body[at] + (body[at + 1] << 8) + 0x7F00
            at += 2
        elif count > 127:
            count = (count - 128 << 8) + body[at]
            at += 1
        if not count:
            self.out += literals
            return
        modes = body[at]
        at += 1
        kinds = ((_LITERAL_DEFAULT, 6, 9), (_OFFSET_DEFAULT, 5, 8), (_MATCH_DEFAULT, 6, 9))
        for n, (default, log, most) in enumerate(kinds):
            at = self._table(n, modes >> 6 - 2 * n & 3, body, at, default, log, most)
        self._sequences(count, Backward(body[at:]), literals)

    def _table(self, n: int, mode: int, body: bytes, at: int, default: list[int], log: int, most: int) -> int:
        if mode == 0:
            self.tables[n] = _spread(default, log)
        elif mode == 1:
            self.tables[n] = Table(0, [body[at]], [0], [0])
            at += 1
        elif mode == 2:
            self.tables[n], at = _described(body, at, most)
        return at

    def _sequences(self, count: int, stream: Backward, literals: bytes) -> None:
        """Copy literals and matches, a pair for each sequence (3.1.1.4)."""
        lengths, places, matches = self.tables
        if lengths is None or places is None or matches is None:
            raise ValueError("a table that no block before has")
        out, read, used = self.out, stream.read, 0
        a, b, c = read(lengths.log), read(places.log), read(matches.log)
        for number in range(count):
            code = places.symbols[b]
            value = (1 << code) + read(code)
            code = matches.symbols[c]
            length = _MATCH_BASES[code] + read(_MATCH_BITS[code])
            code = lengths.symbols[a]
            fresh = _LITERAL_BASES[code] + read(_LITERAL_BITS[code])
            if number + 1 < count:
                a = lengths.bases[a] + read(lengths.bits[a])
                c = matches.bases[c] + read(matches.bits[c])
                b = places.bases[b] + read(places.bits[b])
            out += literals[used : used + fresh]
            used += fresh
            self._match(self._offset(value, fresh), length)
        if stream.left or used > len(literals):
            raise ValueError("a block whose sequences don't fit its literals")
        out += literals[used:]

    def _offset(self, value: int, fresh: int) -> int:
        """The distance that a value stands for: 1 to 3 name earlier ones (3.1.1.5)."""
        kept = self.offsets
        if value > 3:
            found = value - 3
            kept[:] = [found, kept[0], kept[1]]
            return found
        place = value - 1 if fresh else value
        found = kept[place] if place < 3 else kept[0] - 1
        if place:
            kept[:] = [found, kept[0], kept[1] if place > 1 else kept[2]]
        return found

    def _match(self, back: int, length: int) -> None:
        start = len(self.out) - back
        if back <= 0 or start < self.start:
            raise ValueError("a match before the beginning")
        piece = self.out[start : start + length]
        self.out += piece if back >= length else (piece * (length // back + 1))[:length]

    def _literals(self, body: bytes) -> tuple[bytes, int]:
        """The literals of a block, and the offset behind them (3.1.1.3.1)."""
        head = body[0]
        kind, form = head & 3, head >> 2 & 3
        if kind < 2:
            at = (1, 2, 1, 3)[form]
            size = int.from_bytes(body[:at], "little") >> (3, 4, 3, 4)[form]
            return (body[at : at + size], at + size) if kind == 0 else (body[at : at + 1] * size, at + 1)
        at, width = ((3, 10), (3, 10), (4, 14), (5, 18))[form]
        sizes = int.from_bytes(body[:at], "little") >> 4
        size, packed = sizes & (1 << width) - 1, sizes >> width
        end = at + packed
        if kind == 2:
            self.codes, at = _huffman(body, at)
        if self.codes is None or end > len(body) or size > _LARGEST_BLOCK:
            raise ValueError("literals that are cut")
        if form == 0:
            return _coded(body[at:end], self.codes, size), end
        part, parts = (size + 3) // 4, []
        jumps = [int.from_bytes(body[at + n : at + n + 2], "little") for n in (0, 2, 4)]
        at += 6
        for n, length in enumerate([*jumps, end - at - sum(jumps)]):
            parts.append(_coded(body[at : at + length], self.codes, part if n < 3 else size - 3 * part))
            at += length
        return b"".join(parts), end


def _coded(data: bytes, codes: tuple[int, list[int], list[int]], size: int) -> bytes:
    """`size` symbols of a Huffman code."""
    log, symbols, bits = codes
    stream = Backward(data)
    left, mask, out = stream.left, (1 << log) - 1, bytearray()
    padded = bytes(2) + data + bytes(4)  # two bytes of zero bits before the start
    for _ in range(size):
        start = left + 16 - log
        first = start >> 3
        state = (padded[first] | padded[first + 1] << 8 | padded[first + 2] << 16) >> (start & 7) & mask
        out.append(symbols[state])
        left -= bits[state]
        if left < 0:
            raise ValueError("literals that are cut")
    if left:
        raise ValueError("literals that are too long")
    return bytes(out)


def _huffman(body: bytes, at: int) -> tuple[tuple[int, list[int], list[int]], int]:
    """The table of a Huffman code: for each word of as many bits as the longest code, the symbol and its bits (4.2.1)."""
    head = body[at]
    at += 1
    if head >= 128:
        count = head - 127
        packed = body[at : at + (count + 1) // 2]
        weights = [w for byte in packed for w in (byte >> 4, byte & 15)][:count]
        at += len(packed)
    else:
        weights = _weights(body[at : at + head])
        at += head
    total = sum(1 << w - 1 for w in weights if w)
    log = total.bit_length()
    rest = (1 << log) - total
    if not total or log > _MOST_WEIGHT or rest & rest - 1:
        raise ValueError("a Huffman code that is not whole")
    weights.append(rest.bit_length())
    symbols, bits = list[int](), list[int]()
    for weight in range(1, log + 1):
        for symbol, own in enumerate(weights):
            if own == weight:
                symbols += [symbol] * (1 << weight - 1)
                bits += [log + 1 - weight] * (1 << weight - 1)
    return (log, symbols, bits), at


def _weights(data: bytes) -> list[int]:
    """Weights packed by two states that take turns, until the stream is used up (4.2.1.2)."""
    table, at = _described(data, 0, 6)
    stream = Backward(data[at:])
    states = [stream.read(table.log), stream.read(table.log)]
    found: list[int] = []
    turn = 0
    while len(found) < 255:
        state = states[turn]
        found.append(table.symbols[state])
        states[turn] = table.bases[state] + stream.read(table.bits[state])
        turn = 1 - turn
        if stream.left < 0:
            found.append(table.symbols[states[turn]])
            return found
    raise ValueError("a Huffman code of too many symbols")


def _described(data: bytes, at: int, most: int) -> tuple[Table, int]:
    """A table that the data describe from `at` on, and the offset behind its description (4.1.1)."""
    whole = int.from_bytes(data[at : at + 512], "little")
    log = (whole & 15) + 5
    if log > most:
        raise ValueError("a table that is too large")
    used, left, counts = 4, 1 << log, list[int]()
    while left > 0 and len(counts) < 256:
        bits = (left + 1).bit_length()
        value = whole >> used & (1 << bits) - 1
        low, spare = (1 << bits - 1) - 1, (1 << bits) - 2 - left
        if value & low < spare:
            value &= low
            bits -= 1
        elif value > low:
            value -= spare
        used += bits
        counts.append(value - 1)
        left -= abs(value - 1)
        while value == 1:  # a symbol that does not occur: two bits say how many more don't
            more = whole >> used & 3
            used += 2
            counts += [0] * more
            if more < 3:
                break
    if left or at + (used + 7) // 8 > len(data):
        raise ValueError("a table that is cut")
    return _spread(counts, log), at + (used + 7) // 8


def _spread(counts: list[int], log: int) -> Table:
    """The table for the share of each symbol; -1 is less than one state's (4.1.1)."""
    size = 1 << log
    symbols, high = [0] * size, size
    for symbol, count in enumerate(counts):
        if count == -1:
            high -= 1
            symbols[high] = symbol
    place, step = 0, (size >> 1) + (size >> 3) + 3
    for symbol, count in enumerate(counts):
        for _ in range(count):
            symbols[place] = symbol
            place = place + step & size - 1
            while place >= high:
                place = place + step & size - 1
    nexts = [abs(count) for count in counts]
    bits, bases = list[int](), list[int]()
    for symbol in symbols:
        number = nexts[symbol]
        nexts[symbol] += 1
        bits.append(log + 1 - number.bit_length())
        bases.append((number << bits[-1]) - size)
    return Table(log, symbols, bits, bases)
