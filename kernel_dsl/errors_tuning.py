"""Errors of `kd.tune`, of its spaces, and of its files."""

from __future__ import annotations

from .diagnostics import Error


class TuneType(Error, TypeError):
    """An argument of `kd.tune`, or of a call of a tuned kernel, that has a wrong type."""

    code = "tune-type"
    title = "{name}: {what}"
    help = "{hint}"


class TuneValue(Error, ValueError):
    """An argument of `kd.tune`, or of a call of a tuned kernel, that is out of its range."""

    code = "tune-value"
    title = "{name}: {what}"
    help = "{hint}"


class TuningSpace(Error, TypeError):
    """A space of configurations that is not made of dataclasses."""

    code = "tuning-space"
    title = "{name}: {what}"
    note = "a space is a list or a generator of instances of dataclasses, or a function that returns one"
    help = "{hint}"


class TuningKey(Error, TypeError):
    """A key under which results can't be kept."""

    code = "tuning-key"
    title = "{name}: {what}"
    note = "results are found by the key in this process, and by its text in a file"
    help = "{hint}"


class NotTunable(Error, TypeError):
    """A function under `kd.tune` that does not return a kernel."""

    code = "not-tunable"
    title = "{name}({config}) returned {what} instead of a kernel"
    help = "decorate the body with `kd.kernel` inside the function, and return the kernel"


class NoConfiguration(Error, ValueError):
    """A space without a configuration that can run."""

    code = "no-configuration"
    title = "{name}: none of {count} configurations can run"
    note = "{reasons}"
    help = "add a configuration that needs less, or fix the reason that all of them share"


class ResultsDiffer(Error, ValueError):
    """Configurations with different results: it is unknown which of them are right."""

    code = "results-differ"
    title = "{name}: most configurations give other results than {first}"
    note = "{differing}"
    help = (
        "call the kernels of these configurations and compare them with a reference; `tolerance=` allows for rounding"
    )


class TuningFile(Error, ValueError):
    """A file of tuned results that can't be used."""

    code = "tuning-file"
    title = "{path}: {what}"
    help = "{hint}"
