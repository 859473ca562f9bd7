"""Any value of any benchmark file, replaced by any other kind of value: rows, or one error that is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inferplan.errors import InputFileError
from inferplan.validation.importers import read_file
from tests.cases import for_each
from tests.cli.bad_input_files import BENCHMARKS

OTHERS: list[Any] = [None, True, 3, -3, 10**30, "x", "", [], [1], {}, {"mean": "x"}, float("inf"), float("nan")]


def broken(value: Any) -> Iterator[Any]:
    """Copies of a value in which one part is another."""
    yield from OTHERS
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        for part in broken(inner):
            if isinstance(value, dict):
                yield value | {key: part}
            else:
                yield [*value[:key], part, *value[key + 1 :]]


@for_each("name", BENCHMARKS)
def test_a_broken_value_is_one_error_or_a_row(name: str, tmp_path: Path) -> None:
    path, refused, rows = tmp_path / name, 0, 0
    for record in broken(BENCHMARKS[name]):
        path.write_text(json.dumps(record), encoding="utf-8")
        try:
            rows += len(read_file(path, {"gpu": "h100-sxm", "tp": "1", "weights": "bf16"})[1])
        except InputFileError as error:
            assert error.what.startswith(str(path))
            assert error.because or "holds no JSON objects" in error.what or "is empty" in error.what
            refused += 1
    assert min(refused, rows) > 10
