"""Price lists of one's own: read, checked, stored, and asked as every other list is."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.catalog.price_files import lists_of, update_prices
from inferplan.catalog.price_lists import every_list, price_book
from inferplan.errors import InferplanError, NetworkError, SpecError, UsageError
from tests.cases import for_each
from tests.cli.conftest import Run, run  # noqa: F401

MINE = """name: mine
provider: us
source: an offer by mail
date: 2026-11-20
currency: USD
confidence: high
instances:
  - {name: 4-way, gpu: h200, gpus: 4, per_hour: 14.20}
  - {name: 1-way, gpu: my-chip, gpus: 1, per_hour: 2.00, term: reserved, length: 1 year}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERPLAN_PRICE_FOLDER", str(tmp_path / "prices"))
    return tmp_path


def test_a_list_is_stored_and_asked(folder: Path) -> None:
    (folder / "mine.yaml").write_text(MINE)
    (stored,) = update_prices(str(folder / "mine.yaml"))
    assert (stored.replaced, len(stored.changes), stored.unknown) == (False, 2, ("my-chip",))
    bill = price_book().bill("h200-sxm", 4, 1)  # four of the next provider are 4 x 4.59
    assert (bill.offer.source, bill.per_hour) == ("mine", 14.20)
    assert price_book(["mine"]).bill("h200-sxm", 1, 1).per_hour == 14.20
    (folder / "mine.yaml").write_text(
        MINE.replace("14.20", "13.00").replace("gpus: 1, per_hour: 2.00", "gpus: 2, per_hour: 2.00")
    )
    (again,) = update_prices(str(folder / "mine.yaml"))
    told = [(one.before and one.before.per_hour, one.after and one.after.per_hour) for one in again.changes]
    assert again.replaced and sorted(told, key=str) == [(14.20, 13.00), (2.00, None), (None, 2.00)]
    assert price_book().bill("h200-sxm", 4, 1).per_hour == 13.00


def test_what_prices_writes_is_read_back(folder: Path, run: Run) -> None:  # noqa: F811
    """All shipped lists through CSV: nothing changes."""
    (folder / "all.csv").write_text(run("prices", "--format", "csv").out)
    shipped = {listing.name: listing for listing in every_list()}
    read = {listing.name: listing for listing in lists_of(str(folder / "all.csv"))}
    assert read.keys() == shipped.keys()
    for name, listing in read.items():
        keys = [sorted((str(o) for o in one.offers()), key=str) for one in (listing, shipped[name])]
        assert keys[0] == keys[1], name
    assert all(not one.changes for one in update_prices(str(folder / "all.csv")))


@for_each(
    ("text", "said"),
    [
        (MINE.replace("per_hour: 14.20", "per_hour: -1"), "per_hour"),
        (MINE.replace("name: mine", "name: ../../mine"), "no name of a list"),
        (MINE.replace("currency: USD", "currency: dollars"), "currency"),
        (MINE.replace("instances:", "prices:"), "instances"),
        ("a: [", "not YAML"),
    ],
)
def test_what_is_no_list_changes_nothing(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERPLAN_PRICE_FOLDER", str(tmp_path / "prices"))
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(SpecError, match=said):
        update_prices(str(tmp_path / "bad.yaml"))
    assert not (tmp_path / "prices").exists()


def test_what_is_not_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[type[InferplanError]] = []
    for source in ("http://example.org/x.yaml", "ftp://example.org/x.yaml", "https://127.0.0.1:1/x.yaml"):
        with pytest.raises((UsageError, NetworkError)) as told:
            update_prices(source)
        refused.append(told.type)
    assert refused == [UsageError, UsageError, NetworkError]
    monkeypatch.setenv("INFERPLAN_PRICE_FOLDER", "")
    (folder / "mine.yaml").write_text(MINE)
    with pytest.raises(UsageError, match="no folder"):
        update_prices(str(folder / "mine.yaml"))
