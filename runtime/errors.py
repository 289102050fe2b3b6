"""The errors of launches. `devices/failures.py` writes the messages of the driver's errors."""

from __future__ import annotations

import os

from kernel_dsl import diagnostics


class RunError(diagnostics.Error):
    """The base of every error of the runtime: a complete message, shown with the user's line."""

    code = "runtime"

    def __init__(self, message: str = "") -> None:
        super().__init__(message=message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.__dict__)


def _rebuild(cls: type[RunError], state: dict[str, object]) -> RunError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    return error


class ArgumentTypeError(RunError, TypeError):
    """An argument of a wrong type: no array, an unknown dtype, or arrays of two frameworks."""

    code = "argument-type"


class ArgumentValueError(RunError, ValueError):
    """An argument with a wrong overlap, alignment or shape, or in read-only memory."""

    code = "argument-value"


class EntryArgumentError(ArgumentTypeError):
    """An argument that does not fit the parameter of an image's entry, which is at `line` and `column` of the PTX."""

    code = "argument-entry"

    def __init__(self, message: str = "", *, line: int = 0, column: int = 0) -> None:
        super().__init__(f"PTX line {line}, column {column}: {message}" if line else message)
        self.line = line
        self.column = column


class FileError(RunError, OSError):
    """A file of a compiled kernel that can't be read or written."""

    code = "file"


class MissingFileError(FileError, FileNotFoundError):
    """A file of a compiled kernel that does not exist."""


def file_error(path: str | os.PathLike[str], word: str, error: OSError | ValueError) -> FileError:
    """The error for a file that can't be "read" or "written"."""
    name, why = diagnostics.shown(os.fspath(path)), getattr(error, "strerror", None) or error
    if word == "read" and isinstance(error, FileNotFoundError):
        return MissingFileError(f"{name} is not there: {why}")
    return FileError(f"{name} can't be {word}: {why}")


class DeviceError(RunError, RuntimeError):
    """The device does not exist, or cannot run the kernel."""

    code = "device"


class LoadError(RunError, RuntimeError):
    """The device refuses an image. The message holds the assembler's or driver's log."""

    code = "load-failed"


class LaunchError(RunError, RuntimeError):
    """A launch failed, or an earlier one had a fault that became known now.

    `context_survives`: whether other work on this GPU can continue in this process. `status`: the driver's name of the
    error, such as "CUDA_ERROR_ILLEGAL_ADDRESS".
    """

    code = "launch-failed"

    def __init__(self, message: str = "", *, status: str = "", context_survives: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.context_survives = context_survives


class OutOfMemoryError(LaunchError, MemoryError):
    """The device has no memory left for an output, a staging copy or a workspace."""

    code = "out-of-memory"


class CudaError(RunError, RuntimeError):
    """A `CUresult` that is not success: `name` is the driver's constant, `meaning` its sentence."""

    code = "cuda"

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(f"{name}: {meaning}")
        self.name = name
        self.meaning = meaning
