"""Late first tokens: order statistics by hand, and the file on disk made again from measured rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from inferplan.catalog.calibrations import measured_tails
from inferplan.catalog.files import config_root
from inferplan.devices.constants import QUANTILES, LateTokens
from tools.accuracy.percentiles import percentiles_page
from tools.fitting.late import (
    GRID,
    ROWS,
    Kind,
    Late,
    fit_first_burst,
    fitted,
    kind_of,
    measured_of,
    quantiles,
    read_late,
    write_late,
)

KIND = Kind("vllm", "steady", ())


def late(seconds: float, model: str = "a", **more: object) -> Late:
    """A row whose p99 comes so many seconds after the predicted one of 1 s, whatever the first burst."""
    one = Late(
        name="row",
        kind=KIND,
        model=model,
        device="h100-sxm",
        warmed=True,
        aside=False,
        apart=False,
        uneven=True,
        users=0,
        prompt=100,
        ttft={name: (1.0,) * len(GRID) for name in ("median", "p90", "p95", "p99")},
        tpot=dict.fromkeys(("median", "p90", "p95", "p99"), 0.01),
        measured={("ttft", "p99"): 1.0 + seconds, ("ttft", "median"): 1.0},
    )
    return replace(one, **more)  # type: ignore[arg-type]


def test_quantiles_weigh_a_system_by_the_root_of_its_rows() -> None:
    """One row at 0.1, four at 0.5: weights 1 and 4 x 1/2, of 3 in all. The middles of the shares are at 1/6, and at
    (1 + 1/4)/3, (1 + 3/4)/3 and so on: the first and last lie at 5/12 and 11/12. The 10 % quantile is the first row's,
    the middle lies beyond 5/12, and between 1/6 and 5/12 it is linear."""
    found = quantiles([[late(0.1)], [late(0.5)] * 4], 0.0)
    assert found == pytest.approx([0.1, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert LateTokens(**KIND._asdict(), systems=2, rows=5, seconds=tuple(found)).at(0.3) == pytest.approx(0.3)


def test_a_share_between_two_quantiles_is_linear() -> None:
    tail = LateTokens(**KIND._asdict(), systems=3, rows=9, seconds=(0.0, 0.1, 0.4, 0.6, 0.8, 1.0))
    assert [tail.at(share) for share in (0.05, 0.1, 0.65, 0.85, 0.999)] == pytest.approx([0.0, 0.0, 0.25, 0.5, 1.0])


def test_two_systems_say_nothing() -> None:
    two = {("a", "h100-sxm"): [late(0.1)], ("b", "h100-sxm"): [late(0.2, "b")]}
    assert kind_of(KIND, two, 0.0).seconds == ()
    three = kind_of(KIND, two | {("c", "h100-sxm"): [late(0.3, "c")]}, 0.0)
    assert three.systems == 3 and three.seconds[QUANTILES.index(0.5)] == pytest.approx(0.2)


def test_the_first_burst_is_chosen_by_the_rows_that_may() -> None:
    """A row that is predicted right with a tenth, one kept aside and one without a warm-up that would ask for 30 %."""
    burst = Kind("sglang", "burst", ())

    def predicted(at: float) -> dict[str, tuple[float, ...]]:
        return {name: tuple(1.0 + abs(seconds - at) for seconds in GRID) for name in ("median", "p90", "p95", "p99")}

    right = late(0.0, kind=burst, users=4, ttft=predicted(0.1))
    others = [replace(right, ttft=predicted(0.3), **change) for change in ({"aside": True}, {"warmed": False})]  # type: ignore[arg-type]
    assert fit_first_burst([right, *others]) == 0.1


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = read_late(ROWS)
    write_late(rows, tmp_path / "late.csv")
    assert (tmp_path / "late.csv").read_text() == ROWS.read_text()


def test_the_file_on_disk_is_made_of_the_rows() -> None:
    assert fitted(read_late(ROWS), "again").model_dump(exclude={"provenance"}) == measured_tails().model_dump(
        exclude={"provenance"}
    )
    provenance = yaml.safe_load((config_root() / "tails.yaml").read_text())["provenance"]
    assert provenance["rows"] == len(read_late(ROWS)) == 1000


def test_stages_of_the_open_loop_by_hand() -> None:
    """Ten p99 beyond their prediction, in ms: 3, 7, 8, 16, 17 and 25 of two models with three stages, whose rows weigh
    1/sqrt(3) = 0.577, and 61, 178, 317 and 913 of two with two, which weigh 0.707: 6.293 in all. Half of it, 3.146,
    lies between the middles of the fifth row (4.5 x 0.577 = 2.598) and the sixth (3.175): 17 + 8 x 0.95 = 24.6 ms."""
    steady = [one for one in read_late(ROWS) if not one.users]
    assert sorted(round(1e3 * one.late(0.0)) for one in steady) == [3, 7, 8, 16, 17, 25, 61, 178, 317, 913]
    tail = next(one for one in measured_tails().kinds if one.load == "steady")
    assert tail.engine == "vllm" and tail.systems == 4 and 0.024 <= tail.at(0.5) <= 0.025


def test_kept_rows_are_nearer_with_the_first_burst() -> None:
    """H200's systems decide nothing: their p99 and their median of TTFT are both less off than without it."""
    kept = [one for one in read_late(ROWS) if one.aside and one.uneven]
    assert len(kept) > 100 and {one.device for one in kept} == {"h200-sxm"}
    first_burst = measured_tails().first_burst
    for statistic in ("median", "p99"):
        before, after = (
            np.mean([abs(one.predicted(statistic, at) / one.measured["ttft", statistic] - 1) for one in kept])
            for at in (0.0, first_burst)
        )
        assert after < before - 0.025


def test_the_page_is_made_of_the_rows() -> None:
    """That of the day on file: its tables are those of the fixture."""
    page = (config_root().parent / "docs" / "accuracy-percentiles.md").read_text(encoding="utf-8")
    day = page.split("Made on ")[1][:10]
    assert percentiles_page(ROWS, day) == page


def test_percentiles_of_a_row_are_read_in_seconds_too(shared: Path) -> None:
    from inferplan.validation.importers import read_file

    row = read_file(shared / "measured" / "serving_open_loop.csv", {})[1][0]
    assert measured_of(row)["ttft", "p99"] == pytest.approx(0.04597, rel=1e-3)
