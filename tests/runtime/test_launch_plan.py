"""Launch plans: what they hold, and that all that takes one does the same with it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import runtime
from kernel_dsl.compiled import (
    ArrayAssumption,
    CompiledKernel,
    LaunchAttributes,
    OutputSpec,
    PointerParam,
    ScalarParam,
    Workspace,
)
from kernel_dsl.dtypes import float32
from kernel_dsl.launch_plan import CopyStep, FillStep, LaunchStep, ZeroStep, plan_of
from kernel_dsl.runtime.devices.devices import interpreter_device

from .kernels import scale

EMPTY = LaunchAttributes((0, 1, 1), (32, 1, 1), empty=True)


def test_the_steps_of_a_kernel() -> None:
    spaces = (Workspace(64, zeroed=True), Workspace(32), Workspace(16, zeroed=True))
    made = scale(fill=1.5, workspaces=spaces)
    plan, kernel = plan_of(made), LaunchStep("scale", made.params, made.launch)
    assert plan.steps == (FillStep(1, 1.5), ZeroStep(2), ZeroStep(4), kernel)
    assert (plan.first, plan.then, plan.launch) == (plan.steps[:1], plan.steps[1:3], kernel)
    assert [s.shape for s in plan.scratch] == [(64,), (32,), (16,)] and plan.unset == ()
    assert plan.written == (False, True, True, True, True) and plan.pairs == ((0, 1),) and not plan.effects
    aliased = plan_of(scale(alias=0))
    assert aliased.first == (CopyStep(1, 0),) and aliased.shared == ((0, 1),) and aliased.effects
    assert plan_of(scale()).unset == (1,) and plan_of(scale()).shared == ()
    nothing = plan_of(scale(fill=2.0, workspaces=spaces, launch=EMPTY))
    assert nothing.steps == (FillStep(1, 2.0),) and nothing.launch is None and nothing.scratch == ()


def test_a_plan_is_a_value() -> None:
    plan = plan_of(scale(fill=1.5))
    assert plan == plan_of(scale(fill=1.5)) != plan_of(scale(fill=2.5)) and hash(plan) == hash(plan_of(scale(fill=1.5)))
    assert interpreter_device().load(scale(fill=1.5)).plan == plan
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.name = "other"  # type: ignore[misc]


def mixing(init: str, zeroed: bool) -> CompiledKernel:
    """out = s * x, plus what out held, where it starts as something, plus the workspace, which then becomes 1."""
    reads = "ld.global.f32 %f4, [%rd5]; add.f32 %f3, %f3, %f4;" if init != "none" else ""
    space = "ld.global.f32 %f4, [%rd6]; add.f32 %f3, %f3, %f4; st.global.f32 [%rd6], 0f3F800000;" if zeroed else ""
    ptx = f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry mix(.param .u64 x, .param .u64 o, .param .u64 w, .param .f32 s)
{{
  .reg .b32 %r<2>; .reg .f32 %f<5>; .reg .b64 %rd<7>;
  ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [o]; ld.param.u64 %rd3, [w]; ld.param.f32 %f1, [s];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd4, %r1, 4;
  add.s64 %rd5, %rd2, %rd4; add.s64 %rd6, %rd3, %rd4; add.s64 %rd4, %rd1, %rd4;
  ld.global.f32 %f2, [%rd4];
  mul.rn.f32 %f3, %f2, %f1;
  {reads}
  {space}
  st.global.f32 [%rd5], %f3;
  ret;
}}
"""
    array = ArrayAssumption((32,), float32, True, 4, False, "x")
    return CompiledKernel(
        name="mix",
        entry="mix",
        ptx=ptx,
        target="sm_90a",
        params=(PointerParam(0), PointerParam(1), PointerParam(2), ScalarParam(0, float32)),
        arrays=(array, dataclasses.replace(array, written=True, name="o")),
        inputs=1,
        outputs=(OutputSpec((32,), float32, 5.0 if init == "fill" else None, 0 if init == "alias" else None),),
        output_tree=0,
        launch=LaunchAttributes((1, 1, 1), (32, 1, 1)),
        workspaces=(Workspace(128, zeroed),),
        overlaps=((0, 1),),
    )


@pytest.mark.parametrize("way", ["call", "bind", "graph"])
@pytest.mark.parametrize(
    ("init", "zeroed", "given"),
    list(itertools.product(["none", "fill", "alias"], [False, True], ["fresh", "out", "in place"])),
)
def test_every_way_takes_every_step(init: str, zeroed: bool, given: str, way: str) -> None:
    loaded = interpreter_device().load(mixing(init, zeroed))
    x = np.random.default_rng(3).standard_normal(32).astype(np.float32)
    passed, held = x.copy(), np.full(32, np.float32(9))
    out = {"fresh": None, "out": [held], "in place": [passed]}[given]
    if way == "call":
        again: Any = lambda: runtime.call(loaded, [passed], [3.0], out)[0]  # noqa: E731
    elif way == "bind":
        again = runtime.bind(loaded, [passed], [3.0], out=out, structure=lambda outs: outs[0])
    else:
        with kd.Graph() as again:
            (again.outputs,) = runtime.call(loaded, [passed], [3.0], out)
    for _ in range(2):
        start = {"none": np.zeros(32, np.float32), "fill": np.full(32, np.float32(5)), "alias": passed.copy()}[init]
        if init == "fill" and given == "in place":
            want = np.float32(3) * start + start  # the array is filled before the kernel reads it
        else:
            want = np.float32(3) * passed + start
        np.testing.assert_array_equal(again(), want)
