"""What goes wrong around a launch, as exceptions. `devices/failures.py` words those of the driver."""

from __future__ import annotations

from kernel_dsl import diagnostics


class RunError(diagnostics.Error):
    """The base of every error of the runtime: a message that is whole, shown with the user's line."""

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
    """An argument of the wrong kind: no array, a dtype no kernel holds, frameworks mixed."""

    code = "argument-type"


class ArgumentValueError(RunError, ValueError):
    """An argument that cannot be used: overlap, alignment, shape, read-only memory."""

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
    """A file of a compiled kernel that is not there."""


class DeviceError(RunError, RuntimeError):
    """A device that is absent, or that cannot run what it was given."""

    code = "device"


class LoadError(RunError, RuntimeError):
    """An image that the device does not take. The message holds the assembler's or driver's log."""

    code = "load-failed"


class LaunchError(RunError, RuntimeError):
    """A launch that failed, or an asynchronous fault seen at one.

    `context_survives`: whether other work on this GPU can go on in this process. `status` is the
    driver's name for what happened, such as "CUDA_ERROR_ILLEGAL_ADDRESS".
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
