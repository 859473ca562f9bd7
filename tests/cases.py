"""A test over many cases that stays one test: it runs each case, and lists those that fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

SHOWN = 20
"""Failed cases that are listed; the others are counted."""

Cases = Iterable[Any] | Callable[[], Iterable[Any]]
Ids = Sequence[object] | Callable[[Any], object] | None
Test = Callable[..., None]


class CasesFailed(AssertionError):
    """Some cases of a test failed: ``lines`` names each with the first line of its error."""

    def __init__(self, lines: list[str], ran: int) -> None:
        more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        super().__init__("\n".join([f"{len(lines)} failures in {ran} cases", *lines[:SHOWN], *more]))
        self.lines = lines


def for_each(names: str | Sequence[str], cases: Cases, ids: Ids = None) -> Callable[[Test], Test]:
    """Runs a test on every case: ``@for_each("name, size", [("a", 1), ("b", 2)])``.

    ``pytest.mark.parametrize`` makes a test of every case, which is collected, set up and reported by itself; this
    makes one test. ``cases`` may be a function, called when the test runs: to collect it loads no catalogue. Each case
    has a ``monkeypatch`` and an empty ``tmp_path`` of its own; other fixtures are those of the test. ``ids`` names
    the cases where they fail: a list, or a function of a value.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def over_all(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def loop(**fixtures: Any) -> None:
            found = list(cases() if callable(cases) else cases)
            assert found, "there is no case"
            failed: list[str] = []
            skipped: list[str] = []
            first: BaseException | None = None
            for index, case in enumerate(found):
                values = (case,) if len(wanted) == 1 else tuple(case)
                try:
                    _run(test, dict(zip(wanted, values, strict=True)), fixtures, index)
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except (Exception, pytest.fail.Exception) as error:
                    first = first or error
                    failed += [f"{_name(index, values, ids)}: {line}" for line in _lines(error)]
            if failed:
                raise CasesFailed(failed, len(found)) from first
            if len(skipped) == len(found):
                pytest.skip(skipped[0])

        left = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        loop.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return loop

    return over_all


def _run(test: Test, values: dict[str, Any], fixtures: dict[str, Any], index: int) -> None:
    """One case, which leaves nothing behind that the next could meet."""
    own = dict(fixtures)
    if isinstance(folder := own.get("tmp_path"), Path):
        own["tmp_path"] = folder / f"case-{index}"
        own["tmp_path"].mkdir()
    if (captured := own.get("capsys")) is not None:
        captured.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in own:
            own["monkeypatch"] = patch
        test(**values, **own)


def _name(index: int, values: tuple[Any, ...], ids: Ids) -> str:
    if ids is None or callable(ids):
        return ", ".join(str(ids(value) if ids else value) for value in values)[:100]
    return str(ids[index])


def _lines(error: BaseException) -> list[str]:
    if isinstance(error, CasesFailed):  # of a loop within this one
        return error.lines
    return [f"{type(error).__name__}: {error}".partition("\n")[0][:200]]
