"""The table of functions, and the text of a set of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..value import V
from .text import FunctionWriter

DTYPES = {"f32": "float", "f64": "double"}
Body = Callable[..., V]


@dataclass(frozen=True)
class MathFunction:
    """One function on scalars, as LLVM IR.

    `dtype`: LLVM type of the result. `parameters`: those of the operands. `symbol`: what to call.
    `text`: its definition. `needs`: keys of the functions that the text calls; `definitions`
    follows them.
    """

    name: str
    dtype: str
    arity: int
    parameters: tuple[str, ...]
    symbol: str
    text: str
    needs: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    body: Body
    parameters: tuple[str, ...]  # LLVM types; "" is the function's own dtype
    out_of_line: bool


class Registry(Mapping[str, MathFunction]):
    """Functions by key ("exp.f32"), each written when it is first looked up."""

    def __init__(self, prefix: str, dtypes: tuple[str, ...]) -> None:
        self._prefix = prefix
        self._dtypes = dtypes
        self._sources: dict[str, _Source] = {}
        self._built: dict[str, MathFunction] = {}

    def define(
        self,
        name: str,
        arity: int = 1,
        *,
        parameters: tuple[str, ...] | None = None,
        dtypes: tuple[str, ...] | None = None,
        out_of_line: bool = False,
    ) -> Callable[[Body], Body]:
        """Registers a body `(writer, *operands) -> result` under `name` for each dtype (default:
        all the table's).

        `out_of_line`: a slow path that is called and not inlined.
        """

        def register(body: Body) -> Body:
            for suffix in dtypes or self._dtypes:
                source = _Source(body, parameters or ("",) * arity, out_of_line)
                self._sources[f"{name}.{suffix}"] = source
            return body

        return register

    def __getitem__(self, key: str) -> MathFunction:
        if key not in self._built:
            self._built[key] = _build(self._prefix, key, self._sources[key])
        return self._built[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def is_helper(self, key: str) -> bool:
        """Whether this is a slow path of others and no function of the language."""
        return self._sources[key].out_of_line


def _build(prefix: str, key: str, source: _Source) -> MathFunction:
    name, suffix = key.split(".")
    dtype = DTYPES[suffix]
    writer = FunctionWriter(dtype)
    types = [type_ or dtype for type_ in source.parameters]
    operands = [writer.value(f"%x{i}", type_) for i, type_ in enumerate(types)]
    result = source.body(writer, *operands)
    symbol = f"{prefix}_{name}_{suffix}"
    parameters = ", ".join(f"{v.type} {v}" for v in operands)
    inlining = "noinline" if source.out_of_line else "alwaysinline"
    text = "\n".join(
        [
            f"define internal {result.type} @{symbol}({parameters}) {inlining} nounwind {{",
            "entry:",
            *writer.lines,
            f"  ret {result.type} {result}",
            "}",
            "",
        ]
    )
    needs = tuple(dict.fromkeys(writer.needs))
    return MathFunction(name, dtype, len(operands), tuple(types), symbol, text, needs)


FUNCTIONS = Registry("kd", ("f32", "f64"))
APPROX = Registry("kd_approx", ("f32",))


def function(key: str) -> MathFunction:
    """The function of a key such as "exp.f32", or "approx.exp.f32" for the hardware's. Raises KeyError."""
    name = key.removeprefix("approx.")
    return FUNCTIONS[key] if name == key else APPROX[name]


def definitions(keys: Iterable[str]) -> str:
    """The text of the functions named by `keys` (as `function` takes them) and of all that they
    call, each once, sorted by symbol.

    Raises KeyError for a key that is in no table.
    """
    found: dict[str, MathFunction] = {}
    pending = [function(key) for key in keys]
    while pending:
        next_ = pending.pop()
        if next_.symbol not in found:
            found[next_.symbol] = next_
            pending.extend(FUNCTIONS[key] for key in next_.needs)
    return "\n".join(found[symbol].text for symbol in sorted(found))
