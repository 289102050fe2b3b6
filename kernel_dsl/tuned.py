"""`kd.tune`: a function that makes a kernel from a configuration, as a kernel that finds its configuration itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial, update_wrapper
from typing import Any, Generic, TypeVar, cast

import numpy as np

from . import forking
from .boundary import called, checks_itself, public, unguarded
from .call_inputs import lower_input
from .definition import ArrayInput
from .diagnostics import shown
from .dtypes import as_dtype
from .errors import BadArgumentType
from .errors_tuning import NotTunable, TuneType, TuneValue, TuningKey, TuningSpace
from .kernel import Kernel, kinds
from .kernel_arguments import by_position, check_interpret
from .loading import machine_code
from .options import environment
from .source import Loc, of_function
from .stages import Stages
from .tree import flatten, unflatten
from .tuning_file import Results, TunedLine, TunedResults, fastest, tuned_results, written
from .tuning_options import budget_of, listed, number_of, seconds_of
from .tuning_run import (
    Bench,
    Built,
    best_of,
    build,
    compiled,
    first_that_runs,
    lines_of,
    measure,
    nothing_runs,
    with_lines,
)
from .tuning_specs import key_of, likeness, ranked, source_of, spec_of
from .tuning_table import Tuning, TuningRow
from .tuning_trial import KernelTrial
from .version import __version__

C = TypeVar("C")
INTERPRETER = "interpreter"
_KEPT = 4096  # keys whose choices a process keeps


@checks_itself("space", "key", "predict", "keep", "seconds", "budget", "tolerance", "name")
def tune(
    space: Iterable[C] | Callable[..., Iterable[C]],
    *,
    key: Callable[..., Any] | None = None,
    predict: Callable[..., float] | None = None,
    keep: int = 8,
    seconds: float = 2.0,
    budget: str | float | None = None,
    tolerance: float | None = None,
    name: str | None = None,
) -> Callable[[Callable[[C], Kernel]], Tuned[C]]:
    """Decorate `make(config)`, which returns a kernel: calls take the configuration that is the fastest for their key.

    `space`: instances of dataclasses, in a list or from a generator, or a function of the specs (or of nothing) that
    returns them. Specs are a call's arguments with `ShapeDtypeStruct`s in the place of arrays. `key(*specs)`: a
    hashable key. Calls with equal keys share a configuration. By default it has the shapes and dtypes of all arrays.
    `predict(config, *specs)`: an estimate of the time, in any unit. Without it the order of the space counts, so the
    configurations that are probably fast come first.

    The first call for a key on a GPU drops configurations that tracing, lowering or the assembler refuses, that spill
    registers, or whose block does not fit a multiprocessor. It compiles the `keep` best predicted ones in child
    processes and times them in turn for `seconds`, with L2 cleared, on random floats and the call's ints. Results that
    differ from the first one's by more than `tolerance`, relative to a typical element (by default as the dtype rounds;
    `math.inf` compares nothing), drop a configuration with a warning; if most differ, that is an error. Measurements
    are kept in a file beside the disk cache, by GPU, kernel and key; `kd.tuning.save` and `load` ship it.

    `budget`: "none" takes the best prediction; "cached" takes earlier measurements, else the prediction; a number
    measures for so many seconds if there are no measurements. The default is `seconds`; each call may give another
    `budget=`. Without a GPU, in the interpreter, in a graph that is recorded and under JAX's transformations nothing is
    measured.

    Raises `TuningSpace`, `TuneType`, `TuneValue`; calls raise `TuningKey`, `NotTunable`, `NoConfiguration`,
    `ResultsDiffer`.
    """
    op = "tune"
    if isinstance(space, type):  # calling it would make an instance
        raise TuningSpace(name=op, what=f"the space is {shown(space)}", hint="give a list of its instances")
    if not callable(space):
        space = listed(space, op)
    for word, function in (("key", key), ("predict", predict)):
        if function is not None and not callable(function):
            raise TuneType(name=op, what=f"{word}={shown(function)}", hint=f"`{word}` is a function, or None")
    count = number_of(keep, "keep", op, int)
    if count < 1:
        raise TuneValue(name=op, what=f"keep={shown(keep)}", hint="at least one configuration is measured")
    limit = seconds_of(seconds, "seconds", op)
    if tolerance is not None and not number_of(tolerance, "tolerance", op) >= 0:
        raise TuneValue(name=op, what=f"tolerance={shown(tolerance)}", hint="a number of 0 or more, or None")
    if name is not None and (not isinstance(name, str) or not name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TuneType(name=op, what=f"name={shown(name)}", hint="a text, or None for the function's own name")
    given = limit if budget is None else budget_of(budget, op)

    def decorate(make: Callable[[C], Kernel]) -> Tuned[C]:
        if not callable(make) or isinstance(make, (Kernel, Tuned)):
            hint = "decorate a function of a configuration that returns what `kd.kernel` makes"
            raise TuneType(name=op, what=f"it decorates {shown(make)}", hint=hint)
        return Tuned(make, space, key, predict, count, given, tolerance, name)

    return decorate


@public
class Tuned(Generic[C]):
    """A function that `kd.tune` decorated. Call it like the kernel that the function returns.

    `t(*inputs, out=None, stream=None, interpret=None, budget=None)` returns the outputs of the kernel with the configuration
    that is the fastest for the call's key. Inputs may be given by the names of the body's parameters. `budget`: see
    `kd.tune`.
    """

    def __init__(
        self,
        make: Callable[[C], Kernel],
        space: Any,
        key: Callable[..., Any] | None,
        predict: Callable[..., float] | None,
        keep: int,
        budget: str | float,
        tolerance: float | None,
        name: str | None,
    ) -> None:
        self._make = make
        self._space = space
        self._key = key
        self._predict = predict
        self._keep, self._budget, self._tolerance = keep, budget, tolerance
        module, qualname = getattr(make, "__module__", ""), getattr(make, "__qualname__", type(make).__name__)
        self.name: str = name or f"{module}.{qualname}"
        self._kernels: dict[str, Kernel] = {}  # by configuration
        self._chosen: dict[Any, tuple[Tuning[C], Kernel]] = {}
        self._seen: dict[Any, Kernel] = {}  # by `_likeness` of the arguments: a second call computes no key
        self._results: TunedResults | None = None
        self._generation = -1  # the generation of results that the choices are from
        self._lock = forking.lock()
        update_wrapper(self, make)

    def __repr__(self) -> str:
        return f"<kd.tune {self.name} of {of_function(self._make)}>"

    def __reduce__(self) -> str:
        return getattr(self._make, "__qualname__", self.name)  # the object that the module has by this name

    # --- calling ----------------------------------------------------------------------------------

    @unguarded
    def __call__(
        self,
        *args: Any,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
        budget: str | float | None = None,
        **named: Any,
    ) -> Any:
        """Run the kernel with the fastest configuration. `budget`: see `kd.tune`; the rest is as for kernels."""
        if named:
            args = self._by_position(args, named)
        like = None
        if budget is None and interpret is None:
            like = likeness(args)
            if self._results is not None and self._results.generation == self._generation:
                kernel = self._seen.get(like)
                if kernel is not None:
                    return kernel(*args, out=out, stream=stream)
        kernel = self._choice(args, interpret, budget, like=like)[1]
        return kernel(*args, out=out, stream=stream, interpret=interpret)

    @checks_itself("budget")
    def tune(
        self, *args: Any, interpret: Any = None, budget: str | float | None = None, again: bool = False, **named: Any
    ) -> Tuning[C]:
        """The configuration of a call with such arguments, and the results of all others.

        The kernel itself is not called. `args`: arrays, `ShapeDtypeStruct`s and scalars. `again` repeats earlier
        measurements. Raises the errors of a call.
        """
        return self._choice(self._by_position(args, named), interpret, budget, again)[0]

    @checks_itself("budget")
    def kernel(self, *args: Any, interpret: Any = None, budget: str | float | None = None, **named: Any) -> Kernel:
        """The kernel that a call with such arguments runs. Calling it directly saves the search."""
        return self._choice(self._by_position(args, named), interpret, budget)[1]

    @checks_itself("target")
    def lower(self, *args: Any, target: str | None = None, **named: Any) -> Stages:
        """The stages of the kernel that a call with such arguments runs; nothing is measured."""
        args = self._by_position(args, named)
        return self._choice(args, None, "cached")[1].lower(*args, target=target)

    @partial(public, name="tuned")
    @checks_itself("args", "named")
    def _by_position(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """A call's inputs in order. Those by name are found by a kernel of the space: all have the same inputs."""
        if not named:
            return args
        kernel = next(iter(self._kernels.values()), None)
        if kernel is None and not callable(self._space):
            built = build([TuningRow(c, written(c)) for c in self._space], lambda config: self._trial(config, ()))
            trial = next(iter(built.trials.values()), None)
            if trial is None:
                raise nothing_runs(self.name, built.rows)
            kernel = cast("KernelTrial", trial).kernel
        if kernel is None:
            what = f"the input {next(iter(named))!r} is given by name, and the space is a function of the inputs"
            raise BadArgumentType(op=self.name, what=what, hint="give the inputs of the first call by position")
        return by_position(kernel._definition, args, named)  # pyright: ignore[reportPrivateUsage]

    @partial(public, name="tuned")
    @checks_itself("args", "interpret", "budget", "again", "like")
    def _choice(
        self, args: tuple[Any, ...], interpret: Any, budget: Any, again: bool = False, like: Any = None
    ) -> tuple[Tuning[C], Kernel]:
        check_interpret(interpret, self.name)
        mode = self._budget if budget is None else budget_of(budget, self.name)
        leaves, structure = flatten(args)
        specs = unflatten(structure, [spec_of(x) for x in leaves])
        key = key_of(self._key, specs, self.name)
        place = next((str(getattr(x, "device", "")) for x in leaves if hasattr(x, "shape")), "")
        word = mode if isinstance(mode, str) else "measured"
        where = (word, key, place, interpret)
        if not again and self._results is not None and self._results.generation == self._generation:
            found = self._chosen.get(where)
            if found is not None:
                self._note(like, found[1])
                return found
        found = self._choose(where, args, specs, key, interpret, mode, again)
        if self._chosen.get(where) is found:  # for good
            self._note(like, found[1])
        return found

    def _note(self, like: Any, kernel: Kernel) -> None:
        if like is not None:
            if len(self._seen) >= _KEPT:
                self._seen.clear()
            self._seen[like] = kernel

    def _forget(self) -> None:
        self._chosen.clear()
        self._seen.clear()

    # --- choosing ---------------------------------------------------------------------------------

    def _choose(
        self, where: Any, args: tuple[Any, ...], specs: Any, key: Any, interpret: Any, limit: str | float, again: bool
    ) -> tuple[Tuning[C], Kernel]:
        """The choice for a key: from earlier results, a measurement, or predictions."""
        try:
            text = written(key)
        except ValueError as error:
            hint = "return a tuple of ints, texts and dtypes"
            raise TuningKey(name=self.name, what=f"the key can't be written to a file: {error}", hint=hint) from None
        with self._lock:
            results = self._results = tuned_results()
            if results.generation != self._generation:
                self._forget()
            if not again and where in self._chosen:
                return self._chosen[where]
            bench, gpu, lasting = self._bench(args, interpret, limit)
            found = self._tuned(args, specs, text, limit, bench, gpu, again, results)
            self._generation = results.generation
            if len(self._chosen) >= _KEPT:
                self._forget()
            if lasting:
                self._chosen[where] = found
            return found

    def _bench(self, args: tuple[Any, ...], interpret: Any, limit: str | float) -> tuple[Bench | None, str, bool]:
        """The bench of a call (None: do not measure), the name of its GPU, and whether later calls get the same answer."""
        from kernel_dsl.runtime.arrays.array_view import is_array, view
        from kernel_dsl.runtime.devices.devices import pick_device
        from kernel_dsl.runtime.measure import samples as measuring

        if _is_traced(args):
            return None, INTERPRETER, False
        leaves = [x for x in flatten(args)[0] if is_array(x) and not isinstance(x, np.generic)]
        bench = measuring.bench_of(pick_device(interpret, [view(x) for x in leaves]))
        watched = measuring.is_watched()
        if bench is None:
            return None, INTERPRETER, not watched
        return None if isinstance(limit, str) or watched else bench, bench.gpu, not watched

    def _tuned(
        self,
        args: tuple[Any, ...],
        specs: Any,
        text: str,
        limit: str | float,
        bench: Bench | None,
        gpu: str,
        again: bool,
        results: TunedResults,
    ) -> tuple[Tuning[C], Kernel]:
        rows = ranked(self._space, self._predict, specs, self.name)
        given = _described(args, self.name)
        built = build(rows, lambda config: self._trial(config, given))
        place = (gpu, self.name, source_of(self._make, rows), text)
        lines = results.find(place) if limit != "none" and gpu != INTERPRETER else ()
        known = fastest(lines, {row.text: row for row in built.rows if not row.dropped})
        target = None if bench is None else bench.target
        if known is not None and not again:
            built = Built(with_lines(built.rows, lines), built.trials)
            at = next(i for i, row in enumerate(built.rows) if row.text == known)
            return self._made(gpu, text, "kept", built, at)
        if bench is None:
            how = "first" if self._predict is None else "predicted"
            order = [i for i, row in enumerate(built.rows) if not row.dropped]
            built, at = first_that_runs(built, order, target, None)
            return self._made(gpu, text, how, built, at)
        built = self._measured(built, args, bench, float(limit))
        results.add(_results(lines_of(built.rows, place, __version__, measured_with())))
        return self._made(gpu, text, "measured", built, best_of(built.rows))

    def _measured(self, built: Built, args: tuple[Any, ...], bench: Bench, seconds: float) -> Built:
        from kernel_dsl.runtime.measure import samples as measuring

        leaves, structure = flatten(args)
        apart = measuring.assembles_apart() and not environment().cache_off
        built, taken = compiled(built, self._keep, bench.target, machine_code, apart, self.name)
        if not taken:
            raise nothing_runs(self.name, built.rows)
        with measuring.alone():
            return measure(
                built, taken, bench, leaves, lambda x: unflatten(structure, x), seconds, self._tolerance, self.name
            )

    def _made(self, gpu: str, text: str, how: str, built: Built, at: int) -> tuple[Tuning[C], Kernel]:
        if at < 0:
            raise nothing_runs(self.name, built.rows)
        trial = cast("KernelTrial", built.trials[at])
        return Tuning(self.name, gpu, text, how, built.rows[at].config, built.rows), trial.kernel

    def _trial(self, config: C, given: Sequence[Any]) -> KernelTrial:
        text = written(config)
        kernel = self._kernels.get(text)
        if kernel is None:
            made: Any = called(self._make, (config,), self.name, "the function", "make(config)")
            if type(made) is not Kernel:
                loc: Loc = of_function(self._make)
                raise NotTunable(name=self.name, config=text, what=shown(made), other=loc, other_label="this function")
            kernel = self._kernels[text] = made
        return KernelTrial(kernel, given)


def measured_with() -> str:
    """The assembler of the kernels that are timed here."""
    from kernel_dsl.runtime.measure import samples as measuring

    return measuring.assembler()


def _results(lines: tuple[TunedLine, ...]) -> Results:
    return {lines[0].place: lines} if lines else {}


def _described(args: tuple[Any, ...], kernel: str) -> tuple[Any, ...]:
    """A call's arguments, with descriptions in place of arrays: a child process can't access their memory."""
    from kernel_dsl.runtime.arrays.array_view import is_array, view

    leaves, structure = flatten(args)
    describe = _array if _is_traced(args) else lambda x: lower_input(x, view, kernel)
    own = [x if isinstance(x, np.generic) or not is_array(x) else describe(x) for x in leaves]
    return unflatten(structure, own)


def _array(x: Any) -> ArrayInput:
    return ArrayInput(tuple(x.shape), as_dtype(x.dtype))


def _is_traced(args: tuple[Any, ...]) -> bool:
    """Whether arguments are values of a function that JAX traces."""
    return "jax" in sys.modules and kinds().tracing(args) is not None
