"""Quantities: text with a unit in, SI floats out, and back again for people.

GB is 1e9 bytes and GiB is 2**30; both are accepted where written. A bare number is an error, because it has no unit.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from inferplan.validators import BeforeValidator

Num = float | npt.NDArray[np.float64]
"""A load value: one float or an array of float64. Structure (layers, heads, ranks) is always int."""
Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
"""Which elements of an array are meant."""

_SI = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SI |= {"P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def _scaled(symbol: str, prefixes: str, base: float = 1.0, binary: bool = False) -> dict[str, float]:
    table = {prefix + symbol: _SI[prefix] * base for prefix in ["", *prefixes]}
    if binary:
        table |= {prefix + symbol: factor * base for prefix, factor in _BINARY.items()}
    return table


_BYTES = _scaled("B", "kKMGTP", binary=True)
_TIME = _scaled("s", "numµ") | {"min": 60.0, "h": 3600.0, "d": 86400.0}
UNITS: dict[str, dict[str, float]] = {
    "bytes": _BYTES,
    "bytes/s": {f"{u}/s": f for u, f in (_BYTES | _scaled("b", "kKMGT", base=1 / 8)).items()},
    "FLOP/s": {f"{u}/s": f for s in ("FLOP", "OP") for u, f in _scaled(s, "MGTPE").items()},
    "seconds": _TIME,
    "watts": _scaled("W", "mkM"),
    "hertz": _scaled("Hz", "kKMGT"),
}
_RATES = frozenset({"bytes/s", "FLOP/s", "hertz"})
"""Times are work over these: nothing that could be divided by is zero, or so small that a time overflows."""
HOURS_PER_MONTH = 730.0
"""365 days of 24 hours over 12 months."""
MOST_PUE = 5.0
"""Power usage effectiveness is the energy of a data centre over that of its IT equipment (ISO/IEC 30134-2): 1 or more.
A number above this bound, which is ours, is taken for a slip."""
MOST = 10**15
"""The largest count (tokens, sequences, elements along a dimension) that anything here can mean."""
_QUANTITY = re.compile(r"^\s*([-+]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*$", re.ASCII)


def parse_quantity(value: Any, dimension: str) -> float:
    """Parse text such as ``"4.8 TB/s"`` into SI.

    ``dimension`` is a key of :data:`UNITS`. Raises ``ValueError`` for a bare number, an unknown unit or a negative or
    infinite quantity; the message names the units that would work.
    """
    known = UNITS[dimension]
    examples = ", ".join(list(known)[:8])
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; write it as text with one of: {examples}")
    match = _QUANTITY.match(value)
    if not match:
        raise ValueError(f"{value!r} is not a quantity; write a number and one of: {examples}")
    number, unit = match.groups()
    if unit not in known:
        problem = "has no unit" if not unit else f"has the unit {unit!r}, which is not one of {dimension}"
        raise ValueError(f"{value!r} {problem}; use one of: {examples}")
    result = _without_groups(number, value) * known[unit]
    if not 0.0 <= result < float("inf"):
        raise ValueError(f"{value!r} must be zero or more, and finite")
    if dimension in _RATES and result < 1.0:
        raise ValueError(f"{value!r} is not a positive rate; leave the field out if the device lacks it")
    return result


_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?", re.ASCII)


def _without_groups(number: str, text: str) -> float:
    """A number whose commas stand before thousands. Raises ``ValueError`` for one that may stand before decimals, as
    in much of Europe: ``3,5`` does, and ``3,500`` may.
    """
    plain, decimal = number.replace(",", ""), text.replace(",", ".")
    if "," in number and not _GROUPED.fullmatch(number):
        raise ValueError(f"{text!r} has a comma that no three digits follow; write {decimal.strip()} with a point")
    if number.count(",") == 1 and "." not in number:
        raise ValueError(
            f"{text!r} may be {text.replace(',', '').strip()} or {decimal.strip()}; write one without a comma"
        )
    return float(plain.replace("_", ""))


def _quantity(dimension: str) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_quantity(value, dimension))


Bytes = Annotated[float, _quantity("bytes")]
BytesPerSecond = Annotated[float, _quantity("bytes/s")]
FlopPerSecond = Annotated[float, _quantity("FLOP/s")]
Seconds = Annotated[float, _quantity("seconds")]
Watts = Annotated[float, _quantity("watts")]
Hertz = Annotated[float, _quantity("hertz")]


def _engineering(value: float, unit: str, steps: list[tuple[float, str]], digits: int) -> str:
    if value == 0 or not np.isfinite(value):
        return f"{value:.{digits}g} {unit}"
    one = _one(digits)
    factor, prefix = next((step for step in steps if abs(value) >= step[0] * one), steps[-1])
    scaled = value / factor
    magnitude = max(abs(scaled), 1.0) if abs(scaled) >= one else abs(scaled)
    decimals = max(0, digits - 1 - int(np.floor(np.log10(magnitude))))
    return f"{scaled:,.{decimals}f} {prefix}{unit}"


def _one(digits: int) -> float:
    """What is written as one with so many significant digits: less keeps them all in the next smaller unit."""
    return 1.0 - 0.5 * 10.0**-digits


_UP = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]
_DOWN = [(1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n")]


def format_quantity(value: float, unit: str, digits: int = 4) -> str:
    """``format_quantity(3.35e12, "B/s")`` is ``"3.350 TB/s"``: decimal prefixes, ``digits`` significant digits."""
    return _engineering(value, unit, _UP + _DOWN[1:] if 0 < abs(value) < _one(digits) else _UP, digits)


def format_parameters(count: float) -> str:
    """Parameters, or tokens, as model names count them: ``"1.03T"``, ``"70.6B"``, ``"494M"``."""
    unit, size = next((unit, size) for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("", 1.0)) if count >= size)
    return f"{count / size:,.3g}{unit}"


def format_bytes(value: float, digits: int = 4) -> str:
    """Bytes with decimal prefixes: GB is 1e9."""
    return _engineering(value, "B", _UP, digits)


def format_time(value: float, digits: int = 4) -> str:
    """Seconds as s, ms, us or ns."""
    return _engineering(value, "s", _DOWN, digits)


def format_tokens(value: float) -> str:
    """Tokens in whole numbers: ``"131,072 tokens"``; ``"no limit"`` for infinitely many."""
    return f"{value:,.0f} tokens" if math.isfinite(value) else "no limit"


def parse_number(text: str) -> float:
    """A number in the digits 0 to 9, which may be infinite or no number. Raises ``ValueError`` for other text."""
    try:
        return float(text if text.isascii() else "")
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a number") from None


def parse_whole(text: str) -> int:
    """A whole number in the digits 0 to 9, at most :data:`MOST`. Raises ``ValueError`` for other text."""
    if not (text.isascii() and text.strip().isdigit()) or len(text.strip()) > len(str(MOST)):
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text)


def parse_count(text: str) -> int:
    """A token or request count such as ``4096``, ``8k`` or ``128Ki``. Raises ``ValueError`` when it is none."""
    match = re.fullmatch(r"\s*([\d_]+(?:\.\d+)?)\s*([kKMG]i?)?\s*", text, re.ASCII)
    if not match:
        raise ValueError(f"{text[:40]!r} is not a count; write 4096, 8k (8000) or 8Ki (8192)")
    number, prefix = match.groups()
    factor = 1.0 if not prefix else _BINARY.get(prefix.capitalize(), _SI.get(prefix[0], 1.0))
    try:
        count = float(number.replace("_", "")) * factor
    except ValueError:
        raise ValueError(f"{text!r} is not a count; write 4096, 8k (8000) or 8Ki (8192)") from None
    if count > MOST:
        raise ValueError(f"{text[:30]!r} is more than anything here can count ({MOST:.0e})")
    if abs(count - round(count)) > 1e-9 * max(count, 1.0):
        raise ValueError(f"{text!r} is not a count: it must be whole")
    return round(count)
