"""Forms of instructions: made from the rows, bent a little, and asked of ptxas and of the interpreter.

`python -m tests.interpreter.forms [COUNT] [SEED]` compares COUNT of them (2,000) and prints where the two differ.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.interpreter import parse
from kernel_dsl.runtime.interpreter.isa.instructions import ROWS
from kernel_dsl.runtime.interpreter.isa.rows import VECTORS, BadForm, Role, Row, Words
from kernel_dsl.runtime.interpreter.machine.compiler import Compiler
from kernel_dsl.runtime.interpreter.machine.program import Program
from kernel_dsl.runtime.interpreter.ptx.module import PtxError

HEAD = """.version 8.6
.target sm_90a
.address_size 64
.global .align 16 .b8 v[256];
.visible .entry k(.param .u64 p) {
 .reg .b16 h<12>; .reg .b32 r<12>; .reg .b64 d<12>; .reg .f32 f<12>; .reg .f64 g<12>; .reg .pred q<12>; .reg .b128 w<12>;
 .shared .align 16 .b8 s[256]; .local .align 16 .b8 l[64];
 ld.param.u64 d1, [p]; mov.u32 r1, s;
"""
_FIRST = HEAD.count("\n") + 1
_WIDTHS = {"8": "h", "16": "h", "32": "r", "64": "d", "28": "w"}


def _register(rng: random.Random, type_: str) -> str:
    if type_ == "pred":
        letter = "q"
    elif type_ in ("f32", "f64"):
        letter = "f" if type_ == "f32" else "g"
    elif type_.endswith("x2"):
        letter = "r"
    else:
        letter = _WIDTHS[re.sub(r"\D", "", type_)[-2:]]
    return f"{letter}{rng.randrange(1, 9)}"


def _literal(rng: random.Random, type_: str) -> str:
    if type_ in ("f32", "f64"):
        return rng.choice(("0f3F000000", "0f3F800000")) if type_ == "f32" else "0d3FE0000000000000"
    return str(rng.choice((0, 1, 2, 4, 8, 16, 32, 64, 128, 200)))


def _operand(rng: random.Random, role: Role, words: Words, name: str) -> str:
    type_ = role.type or words.get("type") or "b32"
    if rng.random() < 0.02:  # of another type
        type_ = rng.choice(("b16", "b32", "b64", "f32", "pred"))
    lanes = VECTORS[words.get("vec", "")]
    if role.kind in ("D", "D!", "S") and (lanes > 1 or (words.get("vec") == "" and rng.random() < 0.05)):
        lanes = lanes if rng.random() < 0.95 else rng.choice((1, 2, 4))
        return "{" + ", ".join(_register(rng, type_) for _ in range(lanes)) + "}"
    match role.kind:
        case "D":
            return (
                "_"
                if rng.random() < 0.2 or (words.get("space") == "shared::cluster" and "mbarrier" in name)
                else _register(rng, type_)
            )
        case "D!":
            return "_" if rng.random() < 0.02 else _register(rng, type_)
        case "D|P":
            pair = rng.random() < (0.9 if name == "elect" else 0.3)
            return _register(rng, type_) + (f"|q{rng.randrange(1, 9)}" if pair else "")
        case "P":
            return ("!" if rng.random() < 0.3 else "") + f"q{rng.randrange(1, 9)}"
        case "#":
            return "128" if rng.random() < 0.4 else _literal(rng, "b32")
        case "{}" if role.type:
            count = max(int(words["dim"][0]) - 2, 1) if rng.random() < 0.9 else rng.randrange(1, 4)
            return "{" + ", ".join(_register(rng, type_) for _ in range(count)) + "}"
        case "{}":
            return "{" + ", ".join(_register(rng, "b32") for _ in range(int(words.get("num", "x1")[1:]))) + "}"
        case "R":
            return _register(rng, type_)
        case _ if role.kind.startswith("["):
            return _address(rng, role, words)
        case _:
            small = type_ not in ("b128", "f16", "bf16", "pred") and not type_.endswith("x2")
            return _literal(rng, type_) if small and rng.random() < 0.2 else _register(rng, type_)


def _address(rng: random.Random, role: Role, words: Words) -> str:
    space = words.get(role.space, role.space)
    base = rng.choice(("r1", "s", "s+16")) if space.startswith("shared") else "r1" if space == "local" else "d1"
    if rng.random() < 0.03:
        base = rng.choice(("r1", "s", "d1", "p", "v", "l"))
    if role.kind == "[,{}]":
        rank = int(words["dim"][0]) if rng.random() < 0.95 else rng.randrange(1, 6)
        return "[d1, {" + ", ".join(_register(rng, "b32") for _ in range(rank)) + "}]"
    if space.startswith("param"):
        return "[p]"
    return f"[{base}{rng.choice(('', '+16'))}]" if "+" not in base else f"[{base}]"


def _bent(rng: random.Random, row: Row, words: list[str]) -> list[str]:
    """The modifiers with a mistake in them, or in another order."""
    kind = rng.random()
    if kind < 0.15:
        words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))
    elif kind < 0.25 and words:
        words.remove(rng.choice(words))
    elif kind < 0.55:
        rng.shuffle(words)
    return words


# Of other targets: `test_tensor_forms.py` has their forms.
_LATER = ("tcgen05", "clusterlaunchcontrol")
ALL = sorted(
    (r for r in ROWS.values() if r.roles is not None and r.name != ("mov",) and r.name[0] not in _LATER),
    key=lambda r: r.name,
)
# ptxas ignores the fields of tensor maps, the type of sums in a switch, and a second .sync, where they have no meaning.
_IGNORED = ("field", "sync", "acc::f32")
WORDS = sorted({w for r in ALL for s in r.slots for w in s.words if s.name not in _IGNORED and w not in _IGNORED})


def form(rng: random.Random) -> str:
    """One instruction. Most are right, or nearly."""
    row = rng.choice(ALL)
    words: Words = {}
    for _ in range(40):  # most choices of words break a rule: those are wanted, but not as often as they come
        words = {s.name: "" if s.optional and rng.random() < 0.6 else rng.choice(s.words) for s in row.slots}
        text = _text(rng, row, words, [w for w in words.values() if w])
        if takes(text) or rng.random() < 0.04:
            break
    name = list(words.values())
    return (
        _text(rng, row, words, _bent(rng, row, [w for w in name if w]))
        if rng.random() < 0.6
        else _text(rng, row, words, [w for w in name if w])
    )


def _text(rng: random.Random, row: Row, words: Words, spelled: list[str]) -> str:
    name = ".".join(row.name)
    wanted = sum(not r.optional for r in row.roles or ())
    roles: tuple[Role, ...] = ()
    for count in rng.sample(range(wanted + 2), wanted + 2):
        try:
            roles = row.present(words, count)
            break
        except BadForm:
            continue
    operands = [_operand(rng, r, words, name) for r in roles]
    if operands and rng.random() < 0.02:
        operands.pop(rng.randrange(len(operands)))
    return f"{'.'.join((name, *spelled))} {', '.join(operands)};"


def head(target: str) -> str:
    """The text before instructions of a target."""
    return HEAD if target == "sm_90a" else HEAD.replace("sm_90a", target).replace(".version 8.6", ".version 8.8")


def takes(line: str, target: str = "sm_90a") -> str:
    """Why the interpreter refuses the instruction; '' where it takes it."""
    try:
        Program(parse(head(target) + " " + line + "\n ret;\n}\n"), "k", Compiler).code("k")
    except PtxError as error:
        return str(error)
    return ""


def assembled(lines: list[str], target: str = "sm_90a") -> list[str]:
    """Why ptxas refuses each of the instructions; '' where it takes it."""
    why = [""] * len(lines)
    alive = list(range(len(lines)))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "forms.ptx"
        while alive:
            source.write_text(head(target) + "".join(f" {lines[i]}\n" for i in alive) + " ret;\n}\n")
            command = [str(find_ptxas()), f"-arch={target}", str(source), "-o", str(source.with_suffix(".cubin"))]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            bad: dict[int, str] = {}
            output = done.stdout + done.stderr
            for line, text in re.findall(r"line (\d+); (?:error|fatal)\s*:\s*(.*)", output):
                # C7406 is of the whole kernel: setmaxnreg.dec to more registers than it has
                bad.setdefault(int(line) - _FIRST, "" if "C7406" in text else text)
            for line in re.findall(r"(?:16|32)-bit address on line '(\d+)'", output):
                bad.setdefault(int(line) - _FIRST, "a narrow address")
            bad = {at: text for at, text in bad.items() if 0 <= at < len(alive)}
            if not bad:  # it crashed
                half = len(alive) // 2
                parts = [alive[:half], alive[half:]] if half else []
                for part in parts:
                    for at, text in zip(part, assembled([lines[i] for i in part], target), strict=True):
                        why[at] = text
                if not parts:
                    why[alive[0]] = output or "ptxas crashes"
                break
            for at, text in bad.items():
                why[alive[at]] = text
            alive = [a for at, a in enumerate(alive) if at not in bad]
    return why


# An operand in the place of another; %s is the one that was there.
_OTHERS = (
    "[r1]", "[d1]", "[s]", "[d1+3]", "[64]", "_", "{%s}", "0f3F800000", "1", "-1", "q1", "!q1", "r3", "d3", "f3", "h3", "%%tid.x", "r3|q2",
    "v", "{r1, r2}", "{_, r1}",
)  # fmt: skip
# What ptxas takes where the ISA has no such operand: lanes as floats, vectors of other lengths, SMEM as a multicast address.
_LAX = re.compile(
    r"(shfl|match|movmatrix|red\.async|tensormap\.replace)\..* 0f"
    r"|(match\.all\..*|atom\..*\.v[248]\..*) _,|movmatrix.* !?q|st\.async|mbarrier\.arrive.*\{|multimem\..*(\[s|\{0)|ldu\..* f3,|bar\.(sync|arrive|red\.popc)\.(any|all)\b"
)


def with_others(seed: int) -> list[str]:
    """A right form of each row, with every operand replaced by each of `_OTHERS`."""
    rng = random.Random(seed)
    found: list[str] = []
    for row in ALL:
        for _ in range(200):
            words = {s.name: "" if s.optional and rng.random() < 0.6 else rng.choice(s.words) for s in row.slots}
            line = _text(rng, row, words, [w for w in words.values() if w])
            if not takes(line):
                break
        else:
            continue
        head, _, rest = line.partition(" ")
        operands = re.split(r", (?![^{\[]*[}\]])", rest.rstrip(";"))
        for at, operand in enumerate(operands):
            for other in _OTHERS:
                if operand and (other[0] == "[") == (operand[0] == "[") and not operand[0] == other[0] == "{":
                    new = (other % operand if "%s" in other else other).replace("%%", "%")
                    found.append(f"{head} {', '.join([*operands[:at], new, *operands[at + 1 :]])};")
    return found


def differences(count: int, seed: int) -> tuple[int, list[str]]:
    """(how many ptxas takes, where the two differ) of `count` forms."""
    rng = random.Random(seed)
    return compared([form(rng) for _ in range(count)])


def compared(lines: list[str], lax: re.Pattern[str] = _LAX) -> tuple[int, list[str]]:
    """(how many ptxas takes, where the two differ) of instructions, without those that ptxas alone takes by its `lax` rules."""
    theirs = assembled(lines)
    found: list[str] = []
    for line, why in zip(lines, theirs, strict=True):
        ours = takes(line)
        # An assembler takes more than the ISA has: what has no meaning there is refused, as not supported.
        if bool(ours) != bool(why) and "is not supported" not in ours and not (ours and lax.match(line)):
            found.append(f"{line}   ptxas: {why or 'takes it'}; interpreter: {ours or 'takes it'}")
    return sum(not w for w in theirs), found


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    taken, unequal = differences(number, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print("\n".join(unequal))
    print(f"{len(unequal)} of {number} differ; ptxas takes {taken}")
    sys.exit(bool(unequal))
