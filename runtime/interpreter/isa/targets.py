"""The targets of an instruction (PTX ISA, 'Target ISA Notes'): the first sm_NN, and those of `a` and `f` targets only.

Elementwise instructions say it in their own forms.
"""

from __future__ import annotations

from functools import lru_cache

from ..ptx.module import Instruction, Special

# The first words of an opcode -> the first target that has it. The longest match counts.
_SINCE = {
    80: "applypriority discard cp.async createpolicy mbarrier redux",
    90: "barrier.cluster cp.async.bulk cp.reduce elect getctarank griddepcontrol mapa red.async st.async stmatrix multimem "
    "mbarrier.arrive.expect_tx mbarrier.arrive_drop.expect_tx mbarrier.complete_tx mbarrier.expect_tx mbarrier.try_wait "
    "tensormap",
    100: "clusterlaunchcontrol",
}
_HEADS = {tuple(name.split(".")): number for number, names in _SINCE.items() for name in names.split()}
_LONGEST = max(map(len, _HEADS))
# A modifier, of all instructions or of those with a first word -> the first target that has it.
_CLUSTER = ("shared::cluster", "cluster", "sync_restrict::shared::cta", "sync_restrict::shared::cluster")
_WORDS = {("", word): 90 for word in _CLUSTER} | {
    ("", "L2::cache_hint"): 80, ("", "L2::256B"): 80, ("prefetch", "L2::evict_last"): 80, ("prefetch", "L2::evict_normal"): 80,
    ("fence", "async"): 90, ("fence", "async::generic"): 90, ("fence", "tensormap::generic"): 90, ("prefetch", "tensormap"): 90,
    ("mbarrier", "relaxed"): 90, ("atom", "b128"): 90, ("atom", "bf16"): 90, ("atom", "bf16x2"): 90,
    ("red", "bf16"): 90, ("red", "bf16x2"): 90, ("atom", "v2"): 90, ("atom", "v4"): 90, ("atom", "v8"): 90,
    ("red", "v2"): 90, ("red", "v4"): 90, ("red", "v8"): 90, ("ld", "v8"): 100, ("st", "v8"): 100,
    ("mma", "bf16"): 80, ("mma", "tf32"): 80, ("mma", "f64"): 80, ("mma", "m16n8k16"): 80, ("mma", "m16n8k32"): 80,
    ("mma", "m16n8k64"): 80, ("mma", "m16n8k128"): 80, ("mma", "m16n8k256"): 80, ("mma", "sp"): 80, ("mma", "e4m3"): 89,
    ("mma", "e5m2"): 89, ("wmma", "bf16"): 80, ("wmma", "tf32"): 80, ("wmma", "f64"): 80,
    ("mma", "sp::ordered_metadata"): 80, ("cp", "tile::gather4"): 100,
}  # fmt: skip
_NARROW = {"e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2"}
# The first words of special registers -> the first target that has them.
_SPECIALS = {
    "%clusterid": 90, "%nclusterid": 90, "%cluster_": 90, "%is_explicit_cluster": 90, "%aggr_smem_size": 90, "%reserved_smem": 80,
}  # fmt: skip
_PAIRS = {"cta_group::1", "cta_group::2"}
_BY_HEAD: dict[str, list[tuple[str, int]]] = {}
for (_head, _word), _number in _WORDS.items():
    _BY_HEAD.setdefault(_head, []).append((_word, _number))


@lru_cache(64)
def number_of(target: str) -> int:
    """Return the NN of sm_NN."""
    return int("".join(c for c in target if c.isdigit()))


def runs_on(target: str, device: str) -> bool:
    """Return whether a device runs PTX for a target (PTX ISA 11.1.2, `.target`).

    The suffix `a` stands for one architecture alone, `f` for later ones of its family too, such as sm_100f for sm_103a.
    """
    if target == device or target[-1] == "a":
        return target == device
    wanted, have = number_of(target), number_of(device)
    return wanted <= have and (target[-1] != "f" or wanted // 10 == have // 10)


def _has_tensor_memory(target: str) -> bool:
    return target[-1] in "af" and 100 <= number_of(target) < 120


def lacks(target: str, ins: Instruction) -> str:
    """Return why PTX for `target` must not have this instruction; empty if it may."""
    why = _forbidden(target, ins.opcode)
    if why or ins.opcode[0] == "wgmma":
        return why
    since = _since(ins)
    if since > number_of(target):
        return f"needs sm_{since} or later, the module is for {target}"
    return ""


@lru_cache(4096)  # modules have thousands of instructions, and some hundred opcodes
def _forbidden(target: str, words: tuple[str, ...]) -> str:
    """Return why no instruction with this opcode is of `target`, where the number of the target does not decide it."""
    if words[0] == "wgmma":
        return "" if target == "sm_90a" else f"wgmma is of sm_90a alone, the module is for {target}"
    if words[0] == "tcgen05" and not _has_tensor_memory(target):
        return f"tcgen05 is of targets such as sm_100a, the module is for {target}"
    if words[0] == "tcgen05" and "kind::i8" in words and target not in ("sm_100a", "sm_101a", "sm_110a"):
        return f".kind::i8 is of targets such as sm_100a, the module is for {target}"
    if words[:3] == ("tcgen05", "mma", "sp") and target[-1] == "f" and {"kind::mxf4", "kind::mxf4nvf4"} & set(words):
        return f"a sparse product of 4 bits is of targets such as sm_100a, the module is for {target}"
    if words[:3] == ("tcgen05", "ld", "red") and number_of(target) < 101:
        return f"tcgen05.ld.red is of targets such as sm_103a, the module is for {target}"
    if words[0] == "tcgen05" and target[-1] == "f" and any(w.startswith("scale_vec::") for w in words):
        return f".scale_vec is of targets such as sm_100a, the module is for {target}: .block16 or .block32 is wanted"
    if words[0] == "cvt" and not _NARROW.isdisjoint(words) and (target[-1] not in "af" or number_of(target) < 100):
        return f"floats of 4 and 6 bits and .ue8m0x2 are of targets such as sm_100a, the module is for {target}"
    if words[0] == "redux" and "f32" in words and (target[-1] not in "af" or not 100 <= number_of(target) < 110):
        return f"redux of .f32 is of targets such as sm_100a, the module is for {target}"
    if words[0] == "cp" and _PAIRS & set(words) and not _has_tensor_memory(target):
        return f".cta_group is of targets such as sm_100a, the module is for {target}"
    rows = next((w for w in words if w in ("tile::gather4", "tile::scatter4")), "")
    if rows and (rows == "tile::scatter4" or "shared::cta" not in words) and not _has_tensor_memory(target):
        return f".{rows} is of targets such as sm_100a, the module is for {target}"
    if "multicast::cluster::all" in words and (target[-1] not in "af" or number_of(target) < 100):
        return f".multicast::cluster::all is of targets such as sm_100a, the module is for {target}"
    special = words[0] == "setmaxnreg" or words[:2] == ("tensormap", "replace")
    if special and (target[-1] not in "af" or number_of(target) < (100 if "swizzle_atomicity" in words else 90)):
        first = "sm_100a" if "swizzle_atomicity" in words else "sm_90a"
        return f"{words[0]} is of targets such as {first}, the module is for {target}"
    return ""


def _since(ins: Instruction) -> int:
    """Return the NN of the first sm_NN that has this instruction."""
    words, found = ins.opcode, _since_words(ins.opcode)
    counted = words[:2] in (("mbarrier", "arrive"), ("mbarrier", "arrive_drop")) and len(ins.operands) == 3
    if counted and "noComplete" not in words:
        return max(found, 90)
    names = [o.name for o in ins.operands if isinstance(o, Special)]
    if not names:
        return found
    return max([found, *(number for first, number in _SPECIALS.items() for n in names if n.startswith(first))])


@lru_cache(4096)
def _since_words(words: tuple[str, ...]) -> int:
    found = next((_HEADS[words[:n]] for n in range(min(_LONGEST, len(words)), 0, -1) if words[:n] in _HEADS), 0)
    for head in ("", words[0]):
        for word, number in _BY_HEAD.get(head, ()):
            if number > found and word in words:
                found = number
    if words[0] == "mma" and "m16n8k8" in words and "f16" in words:
        return max(found, 75)
    return found
