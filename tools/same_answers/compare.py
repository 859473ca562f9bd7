"""Where two answers differ: JSON to a part in a thousand million, exit codes and classes of errors."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, isnan
from typing import Any

TOLERANCE = 1e-9
VOLATILE = frozenset({"made", "date", "version", "elapsed_s", "wall_s", "cpu_s"})
"""Keys of a record that say when it was made, not what it says."""


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, old value, new value) of every leaf that differs; a missing key or row is a leaf of its own."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in VOLATILE:
                yield from differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new)):
            yield from differences(one, other, f"{path}[{place}]")
    elif not _equal(old, new):
        yield path, old, new


def _equal(old: Any, new: Any) -> bool:
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (old, new))
    if numbers:
        return old == new or isclose(old, new, rel_tol=TOLERANCE) or (isnan(old) and isnan(new))
    return type(old) is type(new) and bool(old == new)


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()
