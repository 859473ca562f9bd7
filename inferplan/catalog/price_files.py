"""A price list of the user's own: read from a file or the web, checked, stored beside those that are shipped."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from inferplan.catalog.files import names, validate
from inferplan.catalog.price_lists import Instance, PriceList, every_list, own_folder, require_dated
from inferplan.catalog.yaml_text import parse
from inferplan.errors import InputFileError, SpecError, UsageError
from inferplan.files import read_text, save
from inferplan.measuring.document import fetch_document, is_url

_LARGEST = 1 << 20
"""Bytes of the largest list: those that are shipped have three thousand."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_COLUMNS = ("gpu", "instance_gpus", "per_instance_hour", "currency", "term", "list", "date", "provider")
"""What a CSV has to have of ``inferplan prices --format csv``."""
_ONCE = ("currency", "provider", "list_kind", "confidence", "source")
"""Columns of which a list has one value."""


@dataclass(frozen=True, kw_only=True)
class PriceChange:
    """One line of a list before and after; ``None``: it was not there, or is not there any more."""

    listing: str
    before: Instance | None
    after: Instance | None


@dataclass(frozen=True, kw_only=True)
class StoredList:
    """A list that was stored. replaced: one of its name was there before. unknown: its devices that are not on file."""

    listing: PriceList
    path: Path
    replaced: bool
    changes: tuple[PriceChange, ...]
    unknown: tuple[str, ...]


def update_prices(source: str) -> list[StoredList]:
    """Read, check and store the lists of a file (YAML, or CSV as ``inferplan prices --format csv`` writes it) or of an
    address of https. One of a name that is there is replaced; one that is shipped stays, and is not read any more.

    Raises ``SpecError`` for what is no list, before anything is stored; ``InputFileError``, ``NetworkError``,
    ``UsageError`` as :func:`inferplan.measuring.document.fetch_document`.
    """
    found, folder = lists_of(source), own_folder()
    if folder is None:
        raise UsageError(
            "there is no folder for price lists of your own",
            because="INFERPLAN_PRICE_FOLDER is empty, or nobody's home is known",
            hint="INFERPLAN_PRICE_FOLDER=DIR",
        )
    before = {listing.name: listing for listing in every_list()}
    for listing in found:
        if not _NAME.fullmatch(listing.name):
            raise SpecError(
                f"{source}: name: {listing.name!r} is not a name for a list", hint="such as name: our-offer"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputFileError(f"cannot write {folder}", because=str(error.strerror)) from None
    stored, known = [], set(names("hardware"))
    for listing in found:
        path = folder / f"{listing.name}.yaml"
        save(path, json.dumps(listing.model_dump(mode="json", exclude_defaults=True), indent=1) + "\n")
        old = before.get(listing.name)
        unknown = tuple(dict.fromkeys(sold.gpu for sold in listing.instances if sold.gpu not in known))
        changes = _changes(listing.name, [] if old is None else old.instances, listing.instances)
        stored.append(
            StoredList(listing=listing, path=path, replaced=old is not None, changes=changes, unknown=unknown)
        )
    return stored


def lists_of(source: str) -> list[PriceList]:
    """The price lists in a file or at an address: one of a YAML, any number of a CSV."""
    text = fetch_document(source, _LARGEST) if is_url(source) else read_text(Path(source), _LARGEST)
    text = text.removeprefix("\ufeff")  # spreadsheets begin a CSV with it
    if Path(source).suffix.lower() == ".csv":
        found = _of_csv(source, text)
    else:
        found = [validate(Path(source), parse(Path(source), text), PriceList)]
    for listing in found:
        require_dated(listing, source)
    return found


def _of_csv(source: str, text: str) -> list[PriceList]:
    rows = list(csv.DictReader(io.StringIO(text)))
    missing = [name for name in _COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise SpecError(
            f"{source}: no price list: {'no rows' if not rows else 'it has no ' + ', '.join(missing)}",
            hint="the columns of inferplan prices --format csv, or a YAML (docs/cost.md)",
        )
    if any(None in row for row in rows):
        raise SpecError(f"{source}: a row has more values than there are columns", hint="quote values that hold commas")
    lists: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        lists.setdefault(row["list"], []).append({key: (value or "").removeprefix("'") for key, value in row.items()})
    return [validate(Path(source), _list_of_rows(source, name, own), PriceList) for name, own in lists.items()]


def _list_of_rows(source: str, name: str, rows: list[dict[str, str]]) -> dict[str, Any]:
    """The fields of a list from its rows; its date is the newest of them. Raises ``SpecError`` where rows differ in
    what a list has once: its currency above all, which no price of an instance says.
    """
    single = [row for row in rows if row["instance_gpus"] == "any"]  # a host is of GPUs that are sold one by one
    once = {"host_gpus": single, **dict.fromkeys(_ONCE, rows)}
    for column, of in once.items():
        if len(values := dict.fromkeys(row.get(column, "") for row in of)) > 1:
            raise SpecError(
                f"{source}: rows of the list {name!r} have {len(values)} values of {column}",
                because=f"a list has one, and these are {', '.join(repr(value) for value in islice(values, 3))}",
                hint="another name in the column list for each of them",
            )
    newest = max(row["date"] for row in rows)
    first = rows[0]
    return {
        "name": name,
        "provider": first["provider"],
        "source": first.get("source") or source,
        "date": newest,
        "currency": first["currency"],
        "confidence": first.get("confidence") or "low",
        "kind": first.get("list_kind") or "provider",
        "host": (single[0].get("host_gpus") or None) if single else None,
        "instances": [_instance(row, newest) for row in rows],
    }


def _instance(row: dict[str, str], newest: str) -> dict[str, Any]:
    gpus = row["instance_gpus"]
    found: dict[str, Any] = {
        "gpu": row["gpu"],
        "gpus": int(gpus) if gpus.isdecimal() else gpus,
        "per_hour": row["per_instance_hour"],
        "name": row.get("instance", ""),
        "term": row["term"],
        "length": row.get("length", ""),
        "note": row.get("note", ""),
    }
    return found if row["date"] == newest else {**found, "date": row["date"]}


def _changes(name: str, before: list[Instance], after: list[Instance]) -> tuple[PriceChange, ...]:
    """Lines whose price is another one, and those that came or went: by GPU, size, name, term and length."""
    old, new = ({sold.line: sold for sold in lines} for lines in (before, after))
    found = []
    for line in sorted({**old, **new}, key=str):
        one, other = old.get(line), new.get(line)
        if one is None or other is None or one.per_hour != other.per_hour:
            found.append(PriceChange(listing=name, before=one, after=other))
    return tuple(found)
