"""The measured serving rows with their predictions, which take minutes: kept in ``build/priced`` until code changes."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import inferplan
from inferplan.catalog.files import config_root
from inferplan.errors import InputFileError
from inferplan.validation.importers import read_file
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored

FILES = ("serving.csv", "serving_inferencex.csv")
"""The closed-loop files of a folder of measured rows."""
MOST_USERS = 1024
"""Rows of more users are left out: each takes minutes, and all of them are of one model on pools apart."""
_KEPT = Path(__file__).parents[2] / "build" / "priced"
_UNUSED_ROOMS = ("planning", "reports", "web", "cli")
"""Rooms that no prediction of a row asks."""
_MADE_OF_THEM = ("bands.yaml", "forms.yaml", "bands.py", "support.py")
"""Configs that are made from the predictions, and what reads them."""


@lru_cache(maxsize=4)
def priced_rows(folder: Path) -> tuple[Scored, ...]:
    """The rows of both files under ``folder``, priced with the constants on file.

    Raises ``InputFileError`` where a file is missing.
    """
    return tuple(scored for name in FILES for scored in priced_file(folder / name))


def priced_file(path: Path) -> list[Scored]:
    """The rows of one file, without bands. Raises ``InputFileError`` where it is missing."""
    if not path.is_file():
        raise InputFileError(f"no measured rows at {path}", hint="the folder of serving.csv")
    kept = _KEPT / f"{path.stem}-{_digest(path)}.pickle"
    if not kept.is_file():
        os.nice(10)
        rows = [row for row in read_file(path, {})[1] if row.run is None or (row.run.concurrency or 0) <= MOST_USERS]
        scored = [_plain(one) for one in price_rows(rows, Pricing(processes=os.cpu_count()))]
        _KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(scored))
    found: list[Scored] = pickle.loads(kept.read_bytes())
    return found


def _plain(one: Scored) -> Scored:
    """Without its bands, which are made from such rows."""
    return one if one.prediction is None else replace(one, prediction=replace(one.prediction, bands={}))


def _digest(path: Path) -> str:
    """What predictions depend on: the rows, the code and the constants."""
    found = hashlib.sha256(path.read_bytes())
    for file in _sources():
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    package = Path(inferplan.__file__).parent
    code = (file for file in package.rglob("*.py") if file.relative_to(package).parts[0] not in _UNUSED_ROOMS)
    for file in (*sorted(code), *sorted(config_root().rglob("*.yaml"))):
        if file.name not in _MADE_OF_THEM:
            yield file
