"""The form that is picked at a speed, against what was measured best: three forms by hand."""

from __future__ import annotations

import pytest

from inferplan.validation.predict import Prediction
from inferplan.validation.rows import Measured, Row
from inferplan.validation.score import Scored
from tests.cases import for_each
from tools.accuracy.frontier import pick, share_of_best


def form(name: str, measured: tuple[float, float], predicted: tuple[float, float]) -> Scored:
    """A form with its milliseconds a token and its tokens per second and GPU, measured and predicted."""

    def figures(values: tuple[float, float]) -> dict[tuple[str, str], float]:
        return {("tpot", "mean"): values[0] * 1e-3, ("throughput", "mean"): values[1]}

    row = Row(where=name, cells={"id": name}, run=None, measured=Measured(figures=figures(measured)))
    return Scored(row=row, prediction=Prediction(figures=figures(predicted)))


WIDE, NARROW, SLOW = form("wide", (24, 900), (20, 800)), form("narrow", (12, 300), (10, 350)), form(
    "slow", (60, 2000), (45, 2500)
)  # fmt: skip
FORMS = [WIDE, NARROW, SLOW]


@for_each(
    ("speed", "picked", "share"),
    [
        (15, SLOW, 1.0),  # 66.7 ms: the slow one is predicted best, and is
        (20, SLOW, 0.0),  # 50 ms: predicted at 45, measured at 60, so its users are too slow
        (30, WIDE, 1.0),  # 33.3 ms
        (45, WIDE, 0.0),  # 22.2 ms: predicted at 20, measured at 24; the best is the narrow one's 300
        (80, NARROW, 1.0),  # 12.5 ms
    ],
)
def test_a_pick_counts_what_it_was_measured_at_where_it_keeps_the_speed(
    speed: float, picked: Scored, share: float
) -> None:
    found = share_of_best(FORMS, speed)
    assert pick(FORMS, speed) is picked
    assert found is not None and found[0] == share


def test_a_worse_pick_is_a_share_of_the_best() -> None:
    forms = [WIDE, form("better", (24, 1000), (20, 700))]
    found = share_of_best(forms, 40)
    assert found is not None and found[0] == pytest.approx(0.9) and found[2] == 1000


def test_where_no_form_was_as_fast_nothing_is_held_against_a_pick() -> None:
    assert share_of_best(FORMS, 100) is None  # 10 ms: predicted of the narrow one, measured of none
