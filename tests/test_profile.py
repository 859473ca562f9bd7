"""Load profiles: files read and refused, arrivals of the rates that they give, the shipped ones from their traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferplan.catalog.files import names
from inferplan.catalog.profiles import load_profile
from inferplan.errors import InferplanError, InputFileError, UnknownNameError, UsageError
from inferplan.traffic import traces
from inferplan.traffic.profile import DAY, Profile, profile_of, read_profile
from inferplan.traffic.requests import Requests
from tests.cases import for_each

STEPS = Profile(name="two steps", starts=(0.0, 100.0, 300.0), rates=(1.0, 4.0, 0.0), end=400.0)


def written(folder: Path, text: str) -> Path:
    path = folder / "day.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_hours(tmp_path: Path) -> None:
    found = read_profile(written(tmp_path, "time,rate\n00:00,2\n08:30,10.5\n18:00:30,4\n"))
    assert found.starts == (0.0, 30_600.0, 64_830.0)
    assert (found.rates, found.end, found.name) == ((2.0, 10.5, 4.0), DAY, "day")
    assert found.peak == 10.5
    assert found.mean == pytest.approx((2 * 30_600 + 10.5 * 34_230 + 4 * 21_570) / 86_400)


def test_classes_are_added(tmp_path: Path) -> None:
    """Each holds its rate until its own next row."""
    found = read_profile(
        written(tmp_path, "time,class,rate\n0,chat,2\n0,code,1\n3600,chat,5\n7200,code,0\n10800,chat,0.5\n")
    )
    assert found.starts == (0.0, 3600.0, 7200.0, 10_800.0)
    assert found.rates == (3.0, 6.0, 5.0, 0.5)
    assert found.classes == ("chat", "code")


@for_each(
    ("text", "said"),
    [
        ("", "is empty"),
        ("time,rate\n", "has no rows"),
        ("time,rate,users\n0,1,2\n", "unknown columns: users"),
        ("time,rate,rate\n0,1,2\n", "first line"),
        ("rate\n1\n", "first line"),
        ("time,rate\n0,1\n0,2\n", ":3: time 0 is not after"),
        ("time,rate\n60,1\n", ":2: the first time is 60, not 0"),
        ("time,rate\n0,1\n24:00,2\n", ":3: time 24:00 is not within a day"),
        ("time,rate\n0,1\n12:60,2\n", ":3: time is '12:60', neither"),
        ("time,rate\n0,-1\n", ":2: rate is -1"),
        ("time,rate\n0,nan\n", ":2: rate is nan"),
        ("time,rate\n0,much\n", ":2: rate is 'much'"),
        ("time,rate\n0\n", ":2: has 1 columns where 2"),
        ("time,rate,class\n0,1,\n", ":2: class is empty"),
        ("time,rate\n0,0\n", "has no requests at all"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputFileError) as refused:
        read_profile(written(tmp_path, text))
    assert said in str(refused.value)


def test_bad_steps() -> None:
    for starts, rates in (((1.0,), (1.0,)), ((0.0, 5.0, 5.0), (1.0, 1.0, 1.0)), ((0.0,), (-1.0,)), ((), ())):
        with pytest.raises(UsageError):
            Profile(name="bad", starts=starts, rates=rates)


def test_steps_are_stated_in_the_place_of_a_file() -> None:
    """By hand: seven hours at 0.5 and seventeen at 2 are 7 * 1,800 + 17 * 7,200 = 135,000 requests."""
    found = load_profile("00:00=0.5, 07:00=2")
    assert (found.starts, found.rates, found.end) == ((0.0, 25_200.0), (0.5, 2.0), DAY)
    assert found.expected(DAY) == pytest.approx(135_000)
    assert found.mean == pytest.approx(135_000 / 86_400)
    assert load_profile("0=1,3600=3").starts == (0.0, 3600.0)


@for_each(
    "text, said",
    [
        ("00:00=1,x=2", "'x=2' is no step of a profile"),
        ("00:00=1,25:00=2", "'25:00=2' is no step of a profile"),
        ("0=many", "'0=many' is no step of a profile"),
        ("07:00=1", "a profile begins at 0"),
        ("00:00=1,00:00=2", "steps of a profile follow each other"),
        ("00:00=-1", "a rate is 0 to 1,000,000 requests/s"),
        ("00:00=0", "no requests at all"),
    ],
)
def test_what_is_no_step_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        load_profile(text)
    assert said in error.value.render()


def test_the_largest_rate_of_a_time() -> None:
    """By hand, on both sides of every edge and over the end of the period of 400 s."""
    assert STEPS.most(0.0, 0.0) == 1.0
    assert STEPS.most(0.0, 99.9) == 1.0
    assert STEPS.most(0.0, 100.0) == 4.0
    assert STEPS.most(300.0, 399.0) == 0.0
    assert STEPS.most(300.0, 400.0) == 1.0  # the next period begins
    assert STEPS.most(350.0, 520.0) == 4.0
    assert STEPS.most(710.0, 790.0) == 0.0
    assert STEPS.most(310.0, 10_000.0) == 4.0


def test_steps_repeat() -> None:
    assert list(STEPS.steps(450.0)) == [(0.0, 1.0), (100.0, 4.0), (300.0, 0.0), (400.0, 1.0)]
    assert STEPS.expected(450.0) == 100 + 800 + 0 + 50
    assert STEPS.mean == pytest.approx(900 / 400)
    assert STEPS.scaled(8.0).rates == (2.0, 8.0, 0.0)


def test_constant_arrivals_are_the_rates() -> None:
    """One a second, then four, then none, and from the start again."""
    arrival = STEPS.arrivals(402.0, "constant")
    expected = [*np.arange(0, 100, 1.0), *np.arange(100, 300, 0.25), 400.0, 401.0]
    assert arrival == pytest.approx(np.array(expected))


def test_poisson_arrivals_have_the_rates() -> None:
    """Counts of a step are Poisson: mean and variance of 200 days are those of the rate (within five deviations)."""
    counts = np.array([np.histogram(STEPS.arrivals(400.0, seed=seed), [0, 100, 300, 400])[0] for seed in range(200)])
    for index, mean in enumerate((100.0, 800.0)):
        assert abs(counts[:, index].mean() - mean) < 5 * np.sqrt(mean / 200)
        assert counts[:, index].var(ddof=1) == pytest.approx(mean, rel=5 * np.sqrt(2 / 199))
    assert counts[:, 2].max() == 0


def test_a_profile_of_a_trace_has_its_requests() -> None:
    """Ten requests in 900 s: the end is one mean gap (100 s) behind the last, 1,000 s; the last bin takes the rest."""
    arrival = np.array([0.0, 10, 20, 30, 310, 320, 610, 700, 890, 900])
    found = profile_of(Requests(prompt=np.ones(10, int), output=np.ones(10, int), arrival=arrival))
    assert found.end == pytest.approx(1000.0)
    assert found.starts == (0.0, 300.0, 600.0)
    assert found.rates == pytest.approx((4 / 300, 2 / 300, 4 / 400))
    with pytest.raises(UsageError, match="arrival times"):
        profile_of(Requests(prompt=np.ones(2, int), output=np.ones(2, int)))


@for_each("name", [name for name in names("profiles") if name.startswith("azure-2023")])
def test_shipped_profiles_are_of_their_traces(shared: Path, name: str) -> None:
    trace = traces.read_trace(shared / "traces" / f"azure_llm_2023_{name.rsplit('-', 1)[1]}.csv")
    found, computed = load_profile(name), profile_of(trace)
    assert found.starts == computed.starts
    assert found.rates == pytest.approx(computed.rates, abs=5e-5)
    assert found.end == pytest.approx(computed.end, abs=5e-4)
    assert trace.arrival is not None  # and the first bin, counted anew
    assert found.rates[0] * 300 == pytest.approx(np.sum(trace.arrival < 300), abs=0.02)


def test_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no profile named 'azure-2023-cnv'") as refused:
        load_profile("azure-2023-cnv")
    assert "azure-2023-conv" in refused.value.hint
    with pytest.raises(InferplanError, match="licence"):
        (tmp_path / "own.yaml").write_text("name: own\nsource: me\nstep: 1 h\nend: 24 h\nrates: [1]\n")
        load_profile(str(tmp_path / "own.yaml"))


AT_SIX = """0 7 0 4 8 0 4 0 0 4 3 3 23 0 0 10 1 11 0 2 8 5 6 2 3 24 6 3 9 7 0 10 3 11 1 2 12 4 2 12 21 13 8"""
"""Chats of BurstGPT that came from 06:00 to 07:00 of each working day, counted from the trace."""


def test_days_that_are_shipped() -> None:
    """Azure's conversations of 2024: at 14:00 UTC of Monday to Friday 266,955, 269,237, 247,164, 249,182 and 207,049
    came, at 22:00 149,597, 147,377, 123,202, 126,815 and 98,589; another count of the same file has a mean of 185,431
    an hour on these days (executed_P1_Azure_Trace_Analysis.md)."""
    azure = load_profile("azure-2024-conv")
    assert (len(azure.rates), azure.end) == (24, DAY)
    assert azure.rates[14] == pytest.approx((266_955 + 269_237 + 247_164 + 249_182 + 207_049) / 5 / 3600, rel=1e-4)
    assert azure.rates[22] == pytest.approx((149_597 + 147_377 + 123_202 + 126_815 + 98_589) / 5 / 3600, rel=1e-4)
    assert azure.mean * 3600 == pytest.approx(185_431, rel=1e-4)
    assert (azure.rates.index(azure.peak), min(azure.rates)) == (14, azure.rates[22])
    campus, counts = load_profile("burstgpt-conv"), list(map(int, AT_SIX.split()))
    assert (len(campus.rates), campus.end, len(counts)) == (24, DAY, 43)
    assert campus.rates[6] == pytest.approx(sum(counts) / 43 / 3600, abs=5e-6)
