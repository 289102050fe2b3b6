"""Ops that inductor's code calls in place of an op of `as_torch_op`: they launch without Python where they can.

There are two for each such op. Inductor's code calls NAME__compiled. It runs Python until calls of one signature have come again.
From then on it is host code, which compares a call with each signature that it knows. For any other call it calls NAME__missed,
which runs Python.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from . import forking
from .diagnostics import Error
from .memory import ShapeDtypeStruct

PLACES = 32  # signatures of an op that have host code
AGAIN = 2  # calls of a signature before host code is made for it
_log = logging.getLogger("kernel_dsl")
_guard = forking.lock()
_twins: dict[str, Twin] = {}  # by the ops' names
_ops: dict[Any, Any] = {}  # by op: what inductor's code calls, or None for the op itself
_taught: set[Any] = set()
_words = ctypes.create_string_buffer(1 << 12)  # what went wrong in Python, for the exception that host code raises
_failed = threading.local()  # `.error`: that exception, which host code can't raise itself


def add_twin(
    op: Any, schema: str, run: Callable[..., Any], fake: Callable[..., Any],
    compiled: Callable[[Sequence[Any], int], tuple[Any, Any]], paused: int, key: str = "CUDA",
) -> None:  # fmt: skip
    """Let inductor's code call the twin of a custom op, whose results `run(*args)` makes.

    `compiled(structs and numbers, device)` gives the IR and the machine code for such arguments on that GPU. `paused`: the
    address of an int; while it is not 0, host code leaves all calls to Python. An op that is defined again keeps its twin, as
    compiled code may have the twin's name.
    """
    with _guard:
        twin = _twins.get(op._qualname)
        if twin is None:
            twin = _twins[op._qualname] = Twin(op._qualname, key, paused)
        twin.define(schema, run, fake, compiled)
        _ops[op._opoverload] = twin.op


def add_plain(op: Any) -> None:
    """Let inductor's code call a custom op as it is.

    Inductor finds that out by itself, and some versions first write the op's arguments into a message that nobody reads, with all
    that these were computed from: a minute for a model of four layers.
    """
    with _guard:
        _ops.setdefault(op._opoverload, None)


class Twin:
    """The twin of one op, and the attempts of its host code."""

    def __init__(self, name: str, key: str, paused: int) -> None:
        self._torch: Any = sys.modules["torch"]
        self._space, _, word = name.partition("::")
        self._word, self._other, self._key = f"{word}__compiled", f"{word}__missed", key
        self._paused = paused
        self._library: Any = None
        self._attempts: Any = None  # the table of the stub
        self._found = 0  # attempts; -1 where there can be none

    @property
    def op(self) -> Any:
        return getattr(getattr(self._torch.ops, self._space), self._word).default

    def define(
        self, schema: str, run: Callable[..., Any], fake: Callable[..., Any],
        compiled: Callable[[Sequence[Any], int], tuple[Any, Any]],
    ) -> None:  # fmt: skip
        self._run, self._compiled = run, compiled
        self._calls: dict[Any, int] = {}
        if self._attempts is not None:
            ctypes.memset(self._attempts, 0, ctypes.sizeof(self._attempts))
        self._found = 0
        if self._library is not None:
            self._library._destroy()
        library = self._library = self._torch.library.Library(self._space, "FRAGMENT")
        for name, function in ((self._word, self.call), (self._other, self.missed)):
            library.define(f"{name}{schema}", tags=(self._torch.Tag.pt2_compliant_tag,))
            library.impl(name, function, "CompositeExplicitAutograd")
            self._torch.library.register_fake(f"{self._space}::{name}", fake, lib=library)
        _raise_ours(self.op)

    def call(self, *args: Any) -> Any:
        with self._torch.no_grad():
            made = self._run(*args)
        self._learn(args)
        return made

    def missed(self, *args: Any) -> Any:
        try:
            return self.call(*args)
        except BaseException as error:
            data = str(error).encode()[: len(_words) - 1]
            ctypes.memmove(_words, data + bytes(1), len(data) + 1)
            _failed.error = error
            raise

    def _learn(self, args: Sequence[Any]) -> None:
        """Make host code for calls that come again."""
        if self._found < 0:
            return
        signature = self._signature(args)
        if signature is None:
            return
        count = self._calls.get(signature, 0) + 1
        if count > AGAIN or len(self._calls) >= 1024:
            return  # it has been tried
        self._calls[signature] = count
        if count < AGAIN:
            return
        with _guard:
            try:
                self._publish(args)
            except (Error, RuntimeError, OSError) as error:
                _log.info("%s stays Python: %s", self._word, str(error).partition("\n")[0])
                self._found = -1

    def _signature(self, args: Sequence[Any]) -> Any:
        """What host code is for; None where there is none: arrays with gaps, of odd addresses, on no GPU."""
        found: list[Any] = []
        for x in args:
            if not isinstance(x, self._torch.Tensor):
                found.append(type(x))
                continue
            place = x.device
            if not x.is_contiguous() or x.data_ptr() % 16 or place.type != self._key.lower() or not x.numel():
                return None
            found.append((x.dtype, x.shape, place))
        return tuple(found)

    def _publish(self, args: Sequence[Any]) -> None:
        from . import hosting

        if self._found >= PLACES:
            return
        given = [ShapeDtypeStruct(tuple(x.shape), x.dtype) if isinstance(x, self._torch.Tensor) else x for x in args]
        place = next(x.device for x in args if isinstance(x, self._torch.Tensor)).index or 0
        attempt = hosting.torch_attempt(*self._compiled(given, place), self._key, place)
        if self._attempts is None:
            dispatch, check, *registration = _torch_functions()
            other = f"{self._space}::{self._other}"
            words = ctypes.addressof(_words)
            stub, table = hosting.torch_stub(other, PLACES, [dispatch, check, words, self._paused])
            self._attempts = (ctypes.c_void_p * (PLACES + 1)).from_address(table)
            self._attempts[0] = attempt
            self._register(registration, stub)
        else:
            self._attempts[self._found] = attempt
        self._found += 1

    def _register(self, functions: Sequence[int], stub: int) -> None:
        """From now on the dispatcher calls `stub` for tensors on GPUs. No lock of Python's is given back meanwhile."""
        begin, enter = (
            ctypes.PYFUNCTYPE(ctypes.c_int, *types)(function)
            for function, types in zip(
                functions,
                (
                    (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_void_p),
                    (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
                ),
                strict=True,
            )
        )
        library = ctypes.c_void_p()
        code = begin(self._space.encode(), self._key.encode(), b"kernel-dsl", 0, ctypes.byref(library))
        code = code or enter(library, self._word.encode(), stub)
        if code:
            raise RuntimeError(f"PyTorch refused to register {self._word}")


def _raise_ours(op: Any) -> None:
    """Have the op raise what Python raised, in the place of the RuntimeError that host code makes of its words."""
    inner = op._op

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except RuntimeError:
            error = vars(_failed).pop("error", None)
            if error is None:
                raise
            raise error from None

    op._op = called


def _torch_functions() -> list[int]:
    """The addresses of PyTorch's functions that host code needs here. Raises OSError where it has none."""
    names = (
        "aoti_torch_call_dispatcher", "aoti_torch_check", "aoti_torch_library_init_impl", "aoti_torch_library_impl",
    )  # fmt: skip
    library = ctypes.CDLL("libtorch_cpu.so", mode=ctypes.DEFAULT_MODE | 4)  # RTLD_NOLOAD: the one that is loaded
    if missing := [name for name in names if not hasattr(library, name)]:
        raise OSError(f"this PyTorch has no {' and no '.join(missing)}")
    return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]


def teach_inductor() -> None:
    """Let inductor's code call our ops, or their twins if it may run in this process alone. Called while PyTorch traces."""
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    if lowering is None or len(_taught) == len(_ops):
        return
    with _guard:
        for op, twin in _ops.items():
            if op not in _taught:
                _taught.add(op)
                try:
                    if twin is None:
                        _teach_plain(lowering, op)
                    else:
                        _teach(lowering, op, twin)
                except (AttributeError, TypeError, KeyError) as error:  # another inductor: it calls the op itself
                    _log.info("inductor's code calls %s itself: %r", op, error)


def _teach_plain(lowering: Any, op: Any) -> None:
    """What inductor's `GraphLowering.call_function` does for an op that it does not know, without the message."""
    if op not in lowering.lowerings:
        tag = lowering.get_layout_constraint_tag(op, with_default=True)
        lowering.make_fallback(op, layout_constraint=lowering.tag_to_layout_constraint(tag), warn=False)


def _teach(lowering: Any, op: Any, twin: Any) -> None:
    own, instead = (lowering.fallback_handler(x, add_to_fallback_set=False) for x in (op, twin))
    graph = lowering.V

    def call(*args: Any, **kwargs: Any) -> Any:
        kept = getattr(graph.graph, "aot_mode", False) or getattr(graph.graph, "cpp_wrapper", False)
        return (own if kept else instead)(*args, **kwargs)

    lowering.add_needs_realized_inputs(op)
    lowering.add_layout_constraint(op, lowering.constrain_to_fx_strides)
    lowering.register_lowering(op, type_promotion_kind=None)(call)
