"""`python -m tests.docs.promotion` writes `docs/promotion.md`: the dtype of every pair of operands, beside JAX's.

JAX's are kept in `jax_promotion.json`; `--jax` asks the JAX that is installed for them anew, with 64-bit types on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import kernel_dsl as kd
from kernel_dsl.promote import promote

STORED = Path(__file__).with_name("jax_promotion.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "promotion.md"

# Python's numbers, which are weak, and the dtype that each has among others of its kind
NUMBERS = {"bool*": kd.bool_, "int*": kd.int32, "float*": kd.float32}
STRONG = [d.name for d in kd.dtypes.ALL if d.kind is not kd.dtypes.Kind.OPAQUE]
OPERANDS = [*STRONG, *NUMBERS]
PAIRS = list(combinations_with_replacement(OPERANDS, 2))
NONE = "error"


def ours(*operands: str) -> str:
    """The dtype of operands, with an asterisk where it is weak; `NONE` where they have none in common."""
    given = [(NUMBERS[o], True) if o in NUMBERS else (kd.dtypes.as_dtype(o), False) for o in operands]
    try:
        dtype, weak = promote(given)
    except kd.Error:
        return NONE
    return f"{dtype.name}*" if weak else dtype.name


def asked_of_jax() -> dict[str, str]:
    """What the installed JAX says."""
    import jax  # pyright: ignore[reportMissingImports]

    jax.config.update("jax_enable_x64", True)
    samples = {"bool*": True, "int*": 1, "float*": 1.0}
    found = {"jax": jax.__version__}
    for pair in PAIRS:
        try:
            result = jax.numpy.add(*(samples[o] if o in samples else jax.numpy.zeros(2, o) for o in pair))
        except ValueError:  # jax.dtypes.TypePromotionError
            found[" ".join(pair)] = NONE
        else:
            found[" ".join(pair)] = result.dtype.name + "*" * result.weak_type
    return found


def theirs() -> dict[str, str]:
    return json.loads(STORED.read_text())


# --- where and why we differ ---------------------------------------------------------------------

INTEGERS = [d.name for d in kd.dtypes.ALL if d.is_integer or d.is_bool]
SIGNED = [d.name for d in kd.dtypes.ALL if d.is_signed]
FP8 = [d.name for d in kd.dtypes.FP8]
WIDER = [d.name for d in kd.dtypes.ALL if d.is_float and d.name not in FP8]


@dataclass(frozen=True)
class Difference:
    """Pairs (in the order of `OPERANDS`) whose dtype is not JAX's: which they are, what they have here and there, and why."""

    where: Callable[[str, str], bool]
    ours: Callable[[str, str], str]
    jax: Callable[[str, str], str]
    why: str


DIFFERENCES = (
    Difference(
        lambda a, b: a in INTEGERS and b == "float*",
        lambda a, b: "float32",
        lambda a, b: "float64*",
        "A bool or integer with a Python float gives float32. Our defaults are int32 and float32, the widths of the hardware; "
        "JAX with 64-bit types has int64 and float64. Our result is not weak, and JAX's is.",
    ),
    Difference(
        lambda a, b: a == "bool" and b == "int*",
        lambda a, b: "int32",
        lambda a, b: "int64*",
        "A bool with a Python int gives int32, for the same reasons.",
    ),
    Difference(
        lambda a, b: a in NUMBERS and b in NUMBERS,
        lambda a, b: f"{NUMBERS[b].name}*",
        lambda a, b: {"bool*": "bool", "int*": "int64*", "float*": "float64*"}[b],
        "Two of Python's numbers give a weak number of the same defaults.",
    ),
    Difference(
        lambda a, b: a in WIDER and b in FP8,
        lambda a, b: a,
        lambda a, b: NONE,
        "fp8 with a wider float gives the wider dtype, which holds every fp8 number; JAX asks for a conversion.",
    ),
    Difference(
        lambda a, b: a in SIGNED and b == "uint64",
        lambda a, b: NONE,
        lambda a, b: "float64*",
        "uint64 with a signed integer is an error: no integer dtype holds both, and float64 would round them.",
    ),
)


# --- the page ------------------------------------------------------------------------------------

HEAD = """# Promotion

The table gives the dtype of `x + y`, and of every other operation on operands of different dtypes. `python -m tests.docs.promotion` writes
this page. A test compares the table with the code, and with the dtypes of JAX {version} with 64-bit types.

`bool*`, `int*` and `float*` are Python's numbers, in the body or as arguments of a call. They are weak: a weak operand takes the dtype of
the other operand, unless that is of a lower kind (bool is lower than int, and int lower than float). A result with `*` is weak too.
NumPy's scalars have a dtype and are not weak. The order and the number of the operands do not change the dtype.

If JAX gives another dtype, the table shows it in brackets below ours. `error` means `NoCommonDType`, which asks for `astype`.

"""

SHORT = {"bool": "bool", "bfloat16": "bf16", "float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2", NONE: NONE}


def short(name: str) -> str:
    bare, star = name.rstrip("*"), "\\*" if name.endswith("*") else ""
    if name in NUMBERS:
        return bare + star
    return SHORT.get(bare, bare.replace("uint", "u").replace("int", "i").replace("float", "f")) + star


def cell(a: str, b: str, jax: dict[str, str]) -> str:
    own, other = ours(a, b), jax.get(f"{a} {b}") or jax[f"{b} {a}"]
    return short(own) if own == other else f"{short(own)}<br>({short(other)})"


def page() -> str:
    jax = theirs()
    rows = [["", *map(short, OPERANDS)], ["---"] * (len(OPERANDS) + 1)]
    rows += [[f"**{short(a)}**", *(cell(a, b, jax) for b in OPERANDS)] for a in OPERANDS]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    differ = "\n".join(f"- {d.why}" for d in DIFFERENCES)
    return f"{HEAD.format(version=jax['jax'])}{table}\n\n## Differences from JAX\n\n{differ}\n"


def main() -> None:
    if "--jax" in sys.argv:
        STORED.write_text(json.dumps(asked_of_jax(), indent=0) + "\n")
    PAGE.write_text(page())
    print(f"{PAGE}: {len(PAIRS)} pairs")


if __name__ == "__main__":
    main()
