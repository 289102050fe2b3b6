"""A fast plan as one Python function without loops.

Reading a tensor's metadata costs some 40 ns an attribute. A loop over arrays, a table of checks and calls between
functions would double that. So `unroll` writes the function as text, for one signature, and compiles it. For two
vectors and `out=` the text is:

    def run(args, out, stream):
        if len(args) != 2 or forward_ad._current_level >= 0:
            return MISS
        a0, a1 = args
        o0 = out
        if out is None:
            return MISS
        try:
            if not like(a0, a1, o0) and (type(a0) is not type0 or a0.get_device() != 0 or a0.dtype is not ...):
                return MISS
            p0 = a0.data_ptr()
            p1 = a1.data_ptr()
            p2 = o0.data_ptr()
        except RuntimeError:
            return MISS
        if stream is None:
            stream = current(0)
        key = (stream, p0, p1, p2)
        ready = packed.get(key)
        if ready is None:
            if (p0 | p1 | p2) & 15:
                return MISS
            if -4096 < p0 - p2 < 4096 or -4096 < p1 - p2 < 4096:
                return MISS
            try:
                desk = desks.pop()
            except IndexError:
                desk = another()
            buffer, shift, calls, _ = desk
            call, arguments = calls.get(stream) or prepare(stream, desk)
            pack(buffer, shift, p0, p1, p2)
        else:
            call, arguments, _ = ready
        outcome = call(*arguments)
        if outcome[0] is not success:
            settle(call, arguments, outcome, (a0, a1, o0))
        if ready is None:
            if len(packed) < 128:
                keep(key, desk)
            desks.append(desk)
        return o0

`like` is torch's own check, one call for all tensors. If it refuses, the tensors may still be alike, so each is
checked. A `desk` is the buffer and prepared calls of one thread's launch. Threads take desks from a list and put them
back, which costs half as much as a lock. `packed` has launches whose addresses have come twice, each with a buffer of
its own that is never written again: a step of a model uses the same memory as the step before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from kernel_dsl.compiled import PointerParam, ScalarParam, TensorMapParam
from kernel_dsl.dtypes import DType, uint8

from ..devices import driver
from ..devices.params import PACK_ERRORS
from .fast_plan import PACKED, UNIT, FastPlan
from .signature import likeness, tests_of

MISS: Any = object()

Run = Callable[[Sequence[Any], Any, "int | None"], Any]


def first(outputs: list[Any]) -> Any:
    """The structure of a result that is one array."""
    return outputs[0]


def unroll(fast: FastPlan, structure: Callable[[list[Any]], Any] | None) -> Run:
    """A function of (args, out, stream) that returns the result, or MISS for a call with another signature."""
    return _Unroller(fast, structure).function()


class _Unroller:
    """The text of one function, and the objects that it names."""

    def __init__(self, fast: FastPlan, structure: Callable[[list[Any]], Any] | None) -> None:
        self.fast = fast
        self.structure = structure
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "MISS": MISS,
            "PackError": PACK_ERRORS,
            "another": fast.desk,
            "current": fast.current,
            "desks": fast.desks,
            "encode": fast.encode,
            "fill": fast.fill,
            "keep": fast.keep,
            "pack": fast.loaded.layout.pack,
            "packed": fast.packed,
            "place": fast.place,
            "prepare": fast.prepare,
            "settle": fast.settle,
            "structure": structure,
            "success": driver.success(),
        }
        outputs = range(len(fast.plan.outputs))
        self.outs = [f"o{i}" for i in outputs]
        # The names of all arrays, inputs first.
        self.arrays = [f"a{i}" for i in fast.inputs] + self.outs

    def say(self, text: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + text)

    def function(self) -> Run:
        self.lines.append("def run(args, out, stream):")
        self._unpack()
        self._check_arrays()
        self._pack_scalars()
        self._allocate()
        self._launch()
        # Named after this file, so that its lines do not count as the user's.
        code = compile("\n".join(self.lines), f"{__file__}:{self.fast.plan.name}", "exec")
        exec(code, self.names)
        self.fast.forget()
        return self.names["run"]

    def _unpack(self) -> None:
        fast = self.fast
        out: Any = fast.out
        self.say(f"if len(args) != {len(fast.args)}{self._watches()}:")
        self.say("return MISS", 2)
        self.say(f"{''.join(f'a{i}, ' for i in range(len(fast.args)))} = args")
        tests: list[str] = []
        for i, value in enumerate(fast.args):
            if i not in fast.inputs:
                self.names[f"type{i}"] = type(value)
                tests.append(f"type(a{i}) is not type{i}")
        if out is None:
            tests.append("out is not None")
        elif type(out) in (list, tuple):
            self.names["listed"] = type(out)
            self.say(f"if type(out) is not listed or len(out) != {len(self.outs)}:")
            self.say("return MISS", 2)
            self.say(f"{''.join(f'{o}, ' for o in self.outs)} = out")
        else:
            self.say("o0 = out")
            tests.append("out is None")
        if tests:
            self.say(f"if {' or '.join(tests)}:")
            self.say("return MISS", 2)

    def _watches(self) -> str:
        """The test of PyTorch's forward mode, in which a tensor may have a tangent that no kernel looks at."""
        if all(v.framework != "torch" for v in self.fast.views):
            return ""
        self.names["forward_ad"] = sys.modules["torch"].autograd.forward_ad
        return " or forward_ad._current_level >= 0"

    def _check_arrays(self) -> None:
        """Signatures, and addresses. A tensor without memory raises RuntimeError."""
        fast = self.fast
        if not fast.arrays:
            return
        addresses: list[str] = []
        tests: list[str] = []
        for k, array in enumerate(fast.arrays):
            address, differs, named = tests_of(fast.views[k].framework, k, self.arrays[k], array, fast.lazy(k))
            self.names |= named
            addresses.append(address)
            tests += differs
        unlike = " or ".join(tests)
        like = likeness(fast.arrays)
        if like is not None:
            self.names["like"] = like
            unlike = f"not like({', '.join(self.arrays[: len(fast.arrays)])}) and ({unlike})"
        self.say("try:")
        self.say(f"if {unlike}:", 2)
        self.say("return MISS", 3)
        for k, address in enumerate(addresses):
            self.say(f"p{k} = {address}", 2)
        self.say("except RuntimeError:")
        self.say("return MISS", 2)

    def _check_alignment(self) -> None:
        odd = [view.address & 15 for view in self.fast.views[: len(self.fast.arrays)]]
        tests = [f"p{k} & 15 != {rest}" for k, rest in enumerate(odd) if rest]
        even = " | ".join(f"p{k}" for k, rest in enumerate(odd) if not rest)
        if even:
            tests.insert(0, f"({even}) & 15")
        if tests:
            self.say(f"if {' or '.join(tests)}:", 2)
            self.say("return MISS", 3)

    def _check_addresses(self) -> None:
        equal, apart = self.fast.overlaps()
        tests = [f"p{i} != p{j}" for i, j in equal]
        tests += [f"{low} < p{i} - p{j} < {high}" for i, j, low, high in apart]
        if tests:
            self.say(f"if {' or '.join(tests)}:", 2)
            self.say("return MISS", 3)

    def _pack_scalars(self) -> None:
        fast = self.fast
        places = [i for i in range(len(fast.args)) if i not in fast.inputs]
        if not fast.packers:
            return
        self.say("try:")
        for number, pack in fast.packers.items():
            self.names[f"pack{number}"] = pack
            self.say(f"v{number} = pack{number}(a{places[number]})", 2)
        self.say("except PackError:")
        self.say("return MISS", 2)

    def _allocate(self) -> None:
        """Write the stream, and allocations of outputs, workspaces and placed scalars on it.

        Each has its own `try`, so that an error names it; a `try` takes no time otherwise.
        """
        fast = self.fast
        # names of the array and of its address; shape and dtype
        wanted: list[tuple[str, str, tuple[int, ...], DType]] = []
        if fast.out is None:
            before = fast.plan.inputs
            wanted += [(f"o{i}", f"p{before + i}", o.shape, o.dtype) for i, o in enumerate(fast.plan.outputs)]
        if fast.placed:
            wanted.append(("placed", "there", fast.scalars_shape, uint8))
        elif fast.room:
            wanted.append(("space", "there", (fast.room + UNIT,), uint8))
        self.say("if stream is None:")
        self.say(f"stream = current({fast.loaded.device.index})", 2)
        if not wanted:
            return
        self.names |= {"empty": fast.interop.empty, "refuse": fast.refuse}
        for number, (name, _, shape, dtype) in enumerate(wanted):
            self.names[f"new_{name}"] = fast.interop.allocator(shape, dtype, fast.device)
            self._try_allocating(name, f"new_{name}()", number)
        self.say("else:")
        for number, (name, _, shape, dtype) in enumerate(wanted):
            self.names[f"spec_{name}"] = (shape, dtype, fast.device)
            self._try_allocating(name, f"empty(*spec_{name}, stream)", number)
        attribute = "data_ptr()" if fast.views[0].framework == "torch" else "data.ptr"
        for name, address, _, _ in wanted:
            self.say(f"{address} = {name}.{attribute}")
        if fast.room:  # an allocator may align less
            self.say(f"there += -there % {UNIT}")

    def _try_allocating(self, name: str, made: str, number: int) -> None:
        given = "".join(f"a{i}, " for i in self.fast.inputs)
        self.say("try:", 2)
        self.say(f"{name} = {made}", 3)
        self.say("except Exception as error:", 2)
        self.say(f"refuse(error, {number}, ({given}))", 3)
        self.say("raise", 3)

    def _prepare(self, everything: str) -> bool:
        """Write fills of outputs and workspaces, and the stores of placed scalars. Returns whether there are some."""
        fast = self.fast
        if not fast.sets and not fast.placed:
            return False
        self.names |= {"CudaError": driver.CudaError, "failure": fast.failure}
        self.say("try:")
        if fast.sets:
            addresses = "".join(f"p{k}, " for k in range(len(self.arrays))) + ("there, " if fast.room else "")
            self.say(f"fill(({addresses}), stream)", 2)
        if fast.placed:
            self.say(f"place(there, ({''.join(f'v{number}, ' for number in fast.placed)}), stream)", 2)
        self.say("except CudaError as error:")
        self.say(f"raise failure(error, ({everything})) from error", 2)
        return True

    def _launch(self) -> None:
        fast = self.fast
        everything = "".join(f"{name}, " for name in self.arrays)
        self.say(f"key = ({', '.join(self._key())})")
        self.say("ready = packed.get(key)")
        self.say("if ready is None:")
        self._check_alignment()
        self._check_addresses()
        if self._prepare(everything):
            self.say("if ready is None:")
        self._take_desk()
        values = [self._value(slot) for slot in range(len(fast.values))]
        self.say(f"pack({', '.join(['buffer', 'shift', *values])})", 2)
        self.say("else:")
        self.say("call, arguments, _ = ready", 2)
        self.say("outcome = call(*arguments)")
        self.say("if outcome[0] is not success:")
        self.say(f"settle(call, arguments, outcome, ({everything}))", 2)
        self.say("if ready is None:")
        self.say(f"if len(packed) < {PACKED}:", 2)
        self.say("keep(key, desk)", 3)
        self.say("desks.append(desk)", 2)
        outputs = f"[{', '.join(self.outs)}]"
        if self.structure is None:
            self.say(f"return {outputs}")
        elif self.structure is first:
            self.say("return o0")
        else:
            self.say(f"return structure({outputs})")

    def _key(self) -> list[str]:
        """All that the checks of addresses and the parameters depend on."""
        fast = self.fast
        scalars = [f"v{p.scalar}" for p in fast.loaded.layout.params if isinstance(p, ScalarParam)]
        there = ["there"] if fast.placed or fast.room else []
        return ["stream", *(f"p{k}" for k in range(len(self.arrays))), *there, *dict.fromkeys(scalars)]

    def _take_desk(self) -> None:
        self.say("try:", 2)
        self.say("desk = desks.pop()", 3)
        self.say("except IndexError:", 2)
        self.say("desk = another()", 3)
        self.say("buffer, shift, calls, _ = desk", 2)
        self.say("call, arguments = calls.get(stream) or prepare(stream, desk)", 2)

    def _value(self, slot: int) -> str:
        """The text of one parameter: an address, a scalar's bytes, a descriptor, or a constant of the signature."""
        fast = self.fast
        param = fast.loaded.layout.params[slot]
        if isinstance(param, PointerParam):
            scratch = param.array - len(fast.plan.arrays)
            if scratch < 0:
                return f"p{param.array}"
            return f"there + {fast.offsets[scratch]}"
        if isinstance(param, ScalarParam):
            return f"v{param.scalar}"
        if isinstance(param, TensorMapParam):
            self.names[f"known{slot}"] = fast.maps[slot][2]
            return f"known{slot}.get(p{param.array}) or encode({slot}, p{param.array})"
        return repr(fast.values[slot])
