"""What a stored price list changes."""

from __future__ import annotations

from collections.abc import Sequence

from inferplan.catalog.bills import price_text
from inferplan.catalog.price_files import PriceChange, StoredList
from inferplan.catalog.price_lists import Instance
from inferplan.figures import Figure, record, side_by_side
from inferplan.table import Report


def updated_report(stored: Sequence[StoredList]) -> Report:
    """Each line whose price is another one now, and where the lists lie."""
    rows = [_row(change) for one in stored for change in one.changes]
    notes = [
        f"{one.listing.name} ({one.listing.provider}, {one.listing.date}): {_counts(one)}; stored as {one.path}"
        for one in stored
    ]
    notes += [f"{one.listing.name}: not on file as GPUs: {', '.join(one.unknown)}" for one in stored if one.unknown]
    return Report(
        record={
            "lists": [{"list": one.listing.name, "path": str(one.path), "replaced": one.replaced} for one in stored],
            "changes": [record(row) for row in rows],
        },
        tables=[side_by_side("prices that changed", rows)] if rows else [],
        notes=notes,
        rows=[record(row) for row in rows],
    )


def _counts(one: StoredList) -> str:
    came = sum(change.before is None for change in one.changes)
    went = sum(change.after is None for change in one.changes)
    changed = len(one.changes) - came - went
    what = "in place of the list of that name" if one.replaced else "a new list"
    return f"{what}; {changed} prices changed, {came} new, {went} gone"


def _row(change: PriceChange) -> list[Figure]:
    sold = change.after or change.before
    assert sold is not None
    return [
        Figure("list", change.listing, "list", left=True),
        Figure("gpu", sold.gpu, "GPU", left=True),
        Figure("instance", sold.name or None, "instance", absent="", left=True),
        Figure("instance_gpus", sold.gpus, "GPUs", "{}"),
        Figure("term", sold.term, "term", text=", ".join(filter(None, (sold.term, sold.length))), left=True),
        Figure("old_per_hour", _price(change.before), "old", price_text),
        Figure("new_per_hour", _price(change.after), "new", price_text),
    ]


def _price(sold: Instance | None) -> float | None:
    return None if sold is None else sold.per_hour
