"""Terms: numbers that remember how they were made.

Give a formula terms in place of floats and its value comes out with the formula itself and with the numbers put in, so
that a formula is written once, where the number is computed:

>>> from inferplan.terms import floor, named
>>> usable, weights, each = named(80e9, "usable", "B"), named(16e9, "weights", "B"), named(2e9, "a sequence", "B")
>>> most = floor((usable - weights) / each)
>>> most.formula
'floor((usable - weights) / a sequence)'
>>> most.numbers
'floor((80 GB - 16 GB) / 2 GB)'
>>> float(most.value)
32.0

Model functions that can be asked for their terms take a ``name`` argument: :func:`name_term` gives each number its
name, :func:`plain` (their default) leaves it a number, at the cost of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

import numpy as np

from inferplan.units import Num, format_quantity, format_time

Field = tuple[str | int, ...]
"""Where an input stands: ``("hardware", "memory", "usable")`` is that field of the hardware's YAML, ``("load",
"batch")`` an option of the command line."""

_BINDING = {"sum": 1, "+": 1, "-": 1, "*": 2, "/": 2, "^": 3}
"""How strongly the operators between two numbers bind; every other operation is written as a function."""
_ATOM = 9
_UFUNCS: dict[Any, str] = {
    np.add: "+",
    np.subtract: "-",
    np.multiply: "*",
    np.true_divide: "/",
    np.power: "^",
    np.maximum: "max",
    np.minimum: "min",
    np.sqrt: "sqrt",
    np.exp: "exp",
    np.log: "log",
    np.floor: "floor",
    np.ceil: "ceil",
}
OPERATIONS: dict[str, Callable[..., Num]] = {symbol: ufunc for ufunc, symbol in _UFUNCS.items()}
"""What each operation of a term does to the values of its terms."""
OPERATIONS["sum"] = lambda *values: reduce(np.add, values)
OPERATIONS["ceil"] = lambda value: np.ceil(value - 1e-9)
OPERATIONS["floor"] = lambda value: np.floor(value * (1 + 1e-12))
_PREFIXED = ("B", "s", "FLOP", "B/s", "FLOP/s", "token/s", "FLOP/B", "J", "W")
"""Units that take decimal prefixes when they are printed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Term:
    """A number of a formula.

    value: in SI units. name and unit: what it is called where it is used. field: where an input stands, empty for
    others. operation and terms: how it was made; ``value`` is ``OPERATIONS[operation]`` of their values. over: what the
    terms of a sum of like terms are (``tensors``), for its formula.
    """

    value: Num
    name: str = ""
    unit: str = ""
    field: Field = ()
    operation: str = ""
    terms: tuple[Term, ...] = ()
    over: str = ""

    def __add__(self, other: Any) -> Any:
        return _made("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return _made("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return _made("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _made("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return _made("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _made("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _made("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _made("/", other, self)

    def __neg__(self) -> Any:
        return _made("*", -1.0, self)

    def __pow__(self, other: Any) -> Any:
        return _made("^", self, other)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """numpy's functions of terms are terms. Raises ``TypeError`` for one that no formula here uses."""
        if method != "__call__" or options or ufunc not in _UFUNCS:
            return NotImplemented
        return _made(_UFUNCS[ufunc], *inputs)

    def evaluate(self) -> Num:
        """The value from the inputs alone, every operation done again."""
        if not self.operation:
            return self.value
        return OPERATIONS[self.operation](*(term.evaluate() for term in self.terms))

    @property
    def formula(self) -> str:
        """How it was made, in names."""
        return _written(self, _symbol)[0] if self.operation else self.name

    @property
    def numbers(self) -> str:
        """How it was made, in numbers: six digits, whole numbers exactly."""
        return _written(self, _number)[0] if self.operation else self.shown

    @property
    def shown(self) -> str:
        """The value with its unit."""
        return show(float(np.max(self.value)), self.unit)

    def inputs(self) -> Iterator[Term]:
        """The named inputs, in the order in which the formula has them, each once."""
        seen: set[tuple[str, Field]] = set()
        for term in self._leaves():
            if term.name and (term.name, term.field) not in seen:
                seen.add((term.name, term.field))
                yield term

    def _leaves(self) -> Iterator[Term]:
        if not self.operation:
            yield self
        for term in self.terms:
            yield from term._leaves()

    def parts(self) -> list[Term]:
        """The named results that it is made of, those of the formula itself before what they are made of, each once."""
        found: dict[tuple[str, str], Term] = {}
        below = list(_named_results(self.terms))
        for part in [*below, *(deeper for upper in below for deeper in upper.parts())]:
            found.setdefault((part.name, part.numbers), part)
        return list(found.values())


class Naming(Protocol):
    """Gives a number its name, its unit and the place where it stands, or leaves it a number."""

    def __call__(self, value: Num, name: str, unit: str = "", field: Field = ()) -> Num:
        """The number, ready to be put into a formula; typed as what it stands for, whether it is a term or not."""


def plain(value: Num, name: str, unit: str = "", field: Field = ()) -> Num:
    """The number as it is: for everybody who wants no more than the value."""
    return value


def name_term(value: Any, name: str, unit: str = "", field: Field = ()) -> Any:
    """The number as a :class:`Term`; a term that has been computed gets the name and keeps its formula."""
    if isinstance(value, Term):
        if value.name:  # it keeps that one too: the other is equal to it
            value = Term(value=value.value, operation="sum", terms=(value,))
        return replace(value, name=name, unit=unit, field=field)
    return Term(value=value, name=name, unit=unit, field=field)


def named_at(place: str) -> Naming:
    """What names numbers of the device, or of its host or the link to it: their fields begin with that word."""

    def elsewhere(value: Any, name: str, unit: str = "", field: Field = ()) -> Any:
        return name_term(value, name, unit, (place, *field) if field else field)

    return name_term if place == "device" else elsewhere


def total(terms: Iterable[Num], over: str) -> Num:
    """The sum of like terms, one for each of ``over`` (``tensors``); of numbers, their sum. Nothing sums to 0.

    All have one formula, which is printed once.
    """
    found: list[Any] = list(terms)
    if not any(isinstance(term, Term) for term in found):
        return sum(found, start=0.0)
    found = [term for term in found if not _is(term, 0.0)]
    made: Any = Term(
        value=OPERATIONS["sum"](*(_term(term).value for term in found)),
        operation="sum",
        terms=tuple(_term(term) for term in found),
        over=over,
    )
    return made  # type: ignore[no-any-return]


def show(value: float, unit: str) -> str:
    """A value as people read it: four digits with a decimal prefix, or six without a unit that takes one."""
    if unit == "s":
        return format_time(value)
    if unit in _PREFIXED:
        return format_quantity(value, unit)
    return f"{value:,.6g} {unit}".strip()


def floor(value: Num) -> Num:
    """The largest whole number that is not larger; a quotient below one by the last bits of a float counts as it."""
    return _rounded("floor", value)


def ceil(value: Num) -> Num:
    """The smallest whole number that is not smaller; a quotient above one by the last bits of a float counts as it."""
    return _rounded("ceil", value)


def _rounded(operation: str, value: Any) -> Num:
    found: Num = _made(operation, value) if isinstance(value, Term) else OPERATIONS[operation](value)
    return found


def _is(value: Any, number: float) -> bool:
    """Whether a value is that number and has no name."""
    if isinstance(value, Term):
        return not value.name and not value.operation and _is(value.value, number)
    return bool(np.ndim(value) == 0 and value == number)


def _term(value: Any) -> Term:
    return value if isinstance(value, Term) else Term(value=value)


def _made(operation: str, *given: Any) -> Any:
    """An operation on numbers of which one is a term at least; what changes nothing is left out."""
    first, last = given[0], given[-1]
    if operation == "+" and (_is(first, 0.0) or _is(last, 0.0)):
        return last if _is(first, 0.0) else first
    if operation == "*" and (_is(first, 0.0) or _is(last, 0.0)):
        return 0.0
    if operation == "/" and _is(first, 0.0):
        return 0.0
    if operation == "*" and (_is(first, 1.0) or _is(last, 1.0)):
        return last if _is(first, 1.0) else first
    if operation == "*" and isinstance(last, Term) and last.operation == "/" and _is(last.terms[0], 1.0):
        return _made("/", first, last.terms[1])
    if operation == "/" and _is(last, 1.0):
        return first
    terms = tuple(_term(value) for value in given)
    return Term(value=OPERATIONS[operation](*(term.value for term in terms)), operation=operation, terms=terms)


def _named_results(terms: tuple[Term, ...]) -> Iterator[Term]:
    for term in terms:
        if term.operation and term.name:
            yield term
        else:
            yield from _named_results(term.terms)


def _written(term: Term, leaf: Callable[[Term], str]) -> tuple[str, int]:
    """A term's operation on its terms as text, and how strongly the text binds. ``leaf`` writes what has a name."""
    if term.operation == "sum" and leaf is _symbol:
        return _written_sum(term)
    parts = [(leaf(part), _ATOM) if part.name or not part.operation else _written(part, leaf) for part in term.terms]
    if term.operation not in _BINDING:
        return f"{term.operation}({', '.join(text for text, _ in parts)})", _ATOM
    own, commutes = _BINDING[term.operation], term.operation in ("+", "*", "sum")
    if term.operation == "*" and _is(term.terms[0], -1.0):
        return f"-{parts[1][0] if parts[1][1] >= own else f'({parts[1][0]})'}", own
    written = [
        text if binding > own or (binding == own and own < 3 and (index == 0 or commutes)) else f"({text})"
        for index, (text, binding) in enumerate(parts)
    ]
    sign = {"sum": " + ", "^": "^"}.get(term.operation, f" {term.operation} ")
    return sign.join(written), own


def _written_sum(term: Term) -> tuple[str, int]:
    """The one formula of like terms; of a sum over sums, that of the terms of the inner ones."""
    texts = list(dict.fromkeys(_like(term)))
    if len(term.terms) == len(texts) == 1:
        return texts[0]
    if all(part.name and not part.operation for part in term.terms):
        return " + ".join(text for text, _ in texts), _BINDING["+"]
    return f"sum over {term.over} of ({' + '.join(text for text, _ in texts)})", _ATOM


def _like(term: Term) -> Iterator[tuple[str, int]]:
    for part in term.terms:
        if part.operation == "sum":
            yield from _like(part)
        else:
            yield _written(part, _symbol) if part.operation else (part.name, _ATOM)


def _symbol(term: Term) -> str:
    return term.name or _number(term)


def _number(term: Term) -> str:
    value = float(np.max(term.value))
    if term.unit in _PREFIXED:
        form = format_time(value, 6) if term.unit == "s" else format_quantity(value, term.unit, 6)
        text, _, unit = form.replace(",", "").partition(" ")
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"
    if abs(value) < 1e15 and value == round(value):
        return f"{value:.0f}"
    text = f"{value:.6g}"
    return f"{text}.0" if text.lstrip("-").isdigit() else text  # a whole number stands for itself alone
