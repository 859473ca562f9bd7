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
        (MINE.replace("name: mine", "name: ../../mine"), "not a name for a list"),
        (MINE.replace("currency: USD", "currency: dollars"), "currency"),
        (MINE.replace("instances:", "prices:"), "instances"),
        ("a: [", "not YAML"),
        (MINE + "  - {name: 4-way, gpu: h200-sxm, gpus: 4, per_hour: 9.00}\n", "more than once"),
        (MINE.replace("2026-11-20", "2099-01-01"), "2099-01-01"),
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


COLUMNS = "gpu,instance_gpus,per_instance_hour,currency,term,list,date,provider,list_kind,confidence,host_gpus"
FIRST = "h200-sxm,any,3.5,USD,on-demand,mine,2026-11-20,us,provider,high,8"


def test_a_csv_is_read_as_a_spreadsheet_writes_it(tmp_path: Path) -> None:
    """With a byte order mark (UTF-8: EF BB BF); a fixed instance, which has no host, beside GPUs one by one."""
    fixed = "b200-hgx,8,90,USD,on-demand,mine,2026-11-20,us,provider,high,"
    (tmp_path / "mine.csv").write_bytes(b"\xef\xbb\xbf" + f"{COLUMNS}\r\n{fixed}\r\n{FIRST}\r\n".encode())
    (read,) = lists_of(str(tmp_path / "mine.csv"))
    told = [(offer.gpu, offer.per_hour, offer.currency, offer.host) for offer in read.offers()]
    assert told == [("b200-hgx", 90.0, "USD", None), ("h200-sxm", 3.5, "USD", 8)]


@for_each(
    ("second", "said"),
    [
        ("h100-sxm,any,400,JPY,on-demand,mine,2026-11-20,us,provider,high,8", "currency"),
        ("h100-sxm,any,2,USD,on-demand,mine,2026-11-20,them,provider,high,8", "provider"),
        ("h100-sxm,any,2,USD,on-demand,mine,2026-11-20,us,survey,high,8", "list_kind"),
        ("h100-sxm,any,2,USD,on-demand,mine,2026-11-20,us,provider,low,8", "confidence"),
        ("h100-sxm,any,2,USD,on-demand,mine,2026-11-20,us,provider,high,4", "host_gpus"),
        ("h100-sxm,any,2,USD,on-demand,mine,2026-11-20,us,provider,high,8,9", "more values"),
        ("h200-sxm,any,2,USD,on-demand,mine,2026-11-20,us,provider,high,8", "more than once"),
    ],
)
def test_rows_of_a_list_that_differ_are_no_list(second: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(f"{COLUMNS}\n{FIRST}\n{second}\n")
    with pytest.raises(SpecError, match=said):
        lists_of(str(tmp_path / "mine.csv"))
