"""Compiled kernels survive being written and read, whatever is in them.

What was altered is refused.
"""

from __future__ import annotations

import dataclasses
import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_dsl import compiled, dtypes
from kernel_dsl.compiled import Assembled, CompiledKernel, Remark, Resources, SourceLine
from kernel_dsl.serialize import ArtifactError, UnsavableError, pack, unpack

from .kernels import axpy

_TEXT = st.text(max_size=12)
_INT = st.integers(-(2**70), 2**70)
_DTYPE = st.sampled_from(dtypes.ALL)
_LINE = st.builds(SourceLine, _TEXT, st.integers(0, 10**6), _TEXT)
_TREE = st.recursive(
    st.none() | _INT | _TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(_TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)
_FILL = st.none() | st.booleans() | _INT | st.floats() | st.complex_numbers()


def _tuples(strategy):
    return st.lists(strategy, max_size=3).map(tuple)


_SIZES = _tuples(st.integers(0, 2**40))
_ENUMS = {
    "swizzle": st.sampled_from(compiled.Swizzle),
    "oob_fill": st.sampled_from(compiled.OobFill),
}
_PARAM = st.one_of(
    st.builds(compiled.PointerParam, _INT),
    st.builds(compiled.ShapeParam, _INT, _INT),
    st.builds(compiled.StrideParam, _INT, _INT),
    st.builds(compiled.ScalarParam, _INT, _DTYPE),
    st.builds(
        compiled.TensorMapParam,
        _INT,
        _DTYPE,
        _SIZES,
        **_ENUMS,
        axes=st.none() | _SIZES,
        split=_tuples(st.tuples(_INT, _INT)),
        l2_promotion=st.sampled_from([0, 64, 128, 256]),
    ),
    st.builds(compiled.ScratchMapParam, _INT, _DTYPE, _SIZES, **_ENUMS, sizes=_tuples(st.tuples(_INT, _INT))),
)
_THREE = st.tuples(_INT, _INT, _INT)
_NAMES = st.builds(
    compiled.ReportNames,
    _tuples(_TEXT),
    _tuples(
        st.builds(
            compiled.SmemRegion,
            _TEXT,
            _INT,
            _INT,
            _SIZES,
            st.none() | _DTYPE,
            _SIZES,
            _ENUMS["swizzle"],
            _TEXT,
            st.none() | _LINE,
        )
    ),
    _tuples(st.builds(compiled.AccumulatorNames, _TEXT, _TEXT, _INT, _SIZES, _DTYPE)),
    _tuples(st.tuples(_TEXT, _INT)),
    st.none() | st.tuples(_TEXT, _INT),
)
_KERNEL = st.builds(
    CompiledKernel,
    _TEXT,
    _TEXT,
    st.text(max_size=60),
    _TEXT,
    _tuples(_PARAM),
    _tuples(st.builds(compiled.ArrayAssumption, _SIZES, _DTYPE, st.booleans(), _INT, st.booleans(), _TEXT)),
    _INT,
    _tuples(st.builds(compiled.OutputSpec, _SIZES, _DTYPE, _FILL, st.none() | _INT)),
    _TREE,
    st.builds(compiled.LaunchAttributes, _THREE, _THREE, _THREE, _INT, st.booleans(), st.booleans()),
    _tuples(st.builds(compiled.Workspace, _INT, st.booleans(), _INT)),
    _NAMES,
    st.dictionaries(st.integers(1, 10**6), _LINE, max_size=3),
    st.none() | _LINE,
    st.none() | _INT,
    _tuples(st.tuples(_INT, _INT)),
    st.booleans(),
    conditions=_tuples(st.builds(compiled.Condition, _TEXT, _tuples(_INT))),
)
_ASSEMBLED = st.builds(
    Assembled,
    _KERNEL,
    st.binary(max_size=40),
    st.builds(Resources, *[_INT] * 6),
    _tuples(st.builds(Remark, _TEXT, _TEXT, st.none() | _LINE)),
)


def _comparable(value):
    """Equality that tells 1 from True and 1.0, 0.0 from -0.0, tuples from lists, and lets NaN equal
    NaN.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, dtypes.DType):
        fields = [_comparable(getattr(value, f.name)) for f in dataclasses.fields(value)]
        return type(value), fields
    if type(value) in (tuple, list):
        return type(value), [_comparable(item) for item in value]
    if type(value) is dict:
        return [(k, _comparable(v)) for k, v in value.items()]
    if type(value) is float:
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    if type(value) is complex:
        return _comparable(value.real), _comparable(value.imag)
    return type(value), value


@settings(max_examples=60, deadline=None)
@given(_ASSEMBLED | _KERNEL, st.dictionaries(_TEXT, _TEXT, max_size=2))
def test_round_trip(value, meta) -> None:
    back, texts = unpack(pack(value, meta))
    assert _comparable(back) == _comparable(value)
    assert texts == meta


def test_every_class_of_the_contract_is_tried() -> None:
    """A class or a field added to compiled.py must be added here."""
    seen = {
        "SourceLine", "PointerParam", "ShapeParam", "StrideParam", "ScalarParam", "TensorMapParam", "ScratchMapParam",
        "ArrayAssumption", "OutputSpec", "Workspace", "LaunchAttributes", "SmemRegion",
        "AccumulatorNames", "ReportNames", "CompiledKernel", "Resources", "Remark", "Assembled", "Condition",
    }  # fmt: skip
    there = {n for n, v in vars(compiled).items() if dataclasses.is_dataclass(v) and n != "DType"}
    assert there == seen


@pytest.mark.parametrize("dtype", list(dtypes.ALL), ids=str)
def test_numpy_scalars_keep_their_bits(dtype: dtypes.DType) -> None:
    value = np.ones((), dtype.numpy)[()]
    kernel = dataclasses.replace(axpy(), output_tree={"a": value})
    back, _ = unpack(pack(kernel))
    assert back.output_tree["a"].tobytes() == value.tobytes()
    assert back.output_tree["a"].dtype == value.dtype


def test_a_structure_without_a_word_for_it_is_refused_when_written() -> None:
    class Pair(tuple):
        pass

    with pytest.raises(UnsavableError, match="Pair"):
        pack(dataclasses.replace(axpy(), output_tree=Pair((0, 1))))


def test_every_single_altered_byte_is_found() -> None:
    data = pack(axpy(), {"key": "k"})
    for at in range(0, len(data), 7):
        for change in (0x01, 0x80):
            altered = bytearray(data)
            altered[at] ^= change
            with pytest.raises(ArtifactError):
                unpack(bytes(altered))


def test_every_cut_is_found() -> None:
    data = pack(axpy())
    for length in [*range(90), len(data) // 2, len(data) - 1]:
        with pytest.raises(ArtifactError):
            unpack(data[:length])
    with pytest.raises(ArtifactError):
        unpack(data + b"\0")
