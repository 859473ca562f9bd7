"""``inferplan regions``: its record and tables, the clock of a region, and prices of a list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from inferplan.regions.reading import by_hour, load_regions, read_regions
from tests.cli.conftest import Run
from tests.json_page import listed

FILE = """
service: {model: llama-3.2-1b, gpu: l4, prompt: "256", output: "32", ttft: 300 ms}
regions:
  west:
    utc: -1
    load: [0, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    access: 20 ms
    hired: {per_hour: 2}
    carbon: 500
  east:
    hired: {per_hour: 1}
    carbon: 100
    pue: 1.5
  far:
    hired: {per_hour: 0.1}
    carbon: 0
network:
  - {between: [west, east], rtt: 80 ms}
  - {between: [west, far], rtt: 290 ms}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file with some lines replaced, in the folder of the test."""
    monkeypatch.chdir(tmp_path)

    def file(*changes: tuple[str, str]) -> str:
        text = FILE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "own.yaml").write_text(text)
        return "own.yaml"

    return file


def test_the_record_adds_up(run: Run, write) -> None:
    """One hour of 40 requests/s, 08:00 in the west, which is 09:00 UTC: 144,000 requests. The far region's network
    takes 310 of 300 ms; the east is half the price of the west, a fifth of its grams and half more of its energy."""
    record = run("regions", write(), "--format", "json").json
    for part in ("routings", "regions", "users", "busiest", "ways", "lost", "hours"):
        assert sorted(record[part][0]) == sorted(listed("regions", f"{part}[]")), part
    routings = {one["routing"]: one for one in record["routings"]}
    (home, cheap), ways = (routings["nearest"], routings["cost"]), {one["region"]: one for one in record["ways"]}
    assert ways["far"]["requests_per_s"] is None
    assert "nothing of the limit on TTFT" in ways["far"]["closed"]
    replicas = {one: -(-40 // ways[one]["requests_per_s"]) for one in ("west", "east")}
    assert home["cost_per_day"] == pytest.approx(2 * replicas["west"])
    assert cheap["cost_per_day"] == pytest.approx(1 * replicas["east"])
    assert (home["served_away"], cheap["served_away"]) == (0, pytest.approx(1))
    assert (home["network_mean_s"], cheap["network_mean_s"]) == (pytest.approx(0.02), pytest.approx(0.1))
    assert home["carbon_g_per_day"] == pytest.approx(500 * home["kwh_per_day"])
    assert routings["carbon"]["carbon_g_per_day"] == pytest.approx(100 * routings["carbon"]["kwh_per_day"])
    if replicas["west"] == replicas["east"]:
        assert cheap["kwh_per_day"] == pytest.approx(1.5 * home["kwh_per_day"])
    assert record["users"][0]["requests_per_day"] == pytest.approx(144_000)
    (busy,) = [one for one in record["busiest"] if one["routing"] == "cost"]
    assert (busy["hour_utc"], busy["requests_per_s"]) == (9, pytest.approx(40))
    assert busy["ttft_s"] == pytest.approx(busy["server_ttft_s"] + 0.1)
    assert busy["ttft_s"] <= 0.3
    assert record["hours"][9]["cost"]["east"]["from"] == {"west": pytest.approx(40)}
    lost = {(one["routing"], one["region"]): one for one in record["lost"]}
    assert lost["cost", "far"]["others_hold"]
    assert lost["cost", "east"]["missed_share"] == pytest.approx(1)
    assert lost["cost", "east"]["more_gpus"] == {"west": replicas["west"]}
    assert lost["cost", "east"]["more_cost_per_day"] == pytest.approx(24 * 2 * replicas["west"])


def test_more_round_trips_close_a_way(run: Run, write) -> None:
    """Three round trips of 100 ms to the east are all of 300 ms; with TLS people stay in the west."""
    name = write(("regions:\n  west", "round_trips: 3\nregions:\n  west"))
    record = run("regions", name, "--format", "json").json
    assert [one["region"] for one in record["ways"] if one["closed"]] == ["east", "far"]
    assert {one["routing"]: one["served_away"] for one in record["routings"]} == dict.fromkeys(
        ("nearest", "cost", "carbon"), 0
    )


def test_data_go_to_stdout_and_rows_are_the_routings(write) -> None:
    """The solver's own lines would be in the way of a program that reads them: another process is asked."""
    asked = [sys.executable, "-m", "inferplan", "regions", write(), "--format"]
    root = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    out = subprocess.run([*asked, "json"], capture_output=True, text=True, check=True, env=root).stdout
    assert json.loads(out)["currency"] == "USD"


def test_the_clock_of_a_region() -> None:
    """What holds from 06:00 on a clock 5.5 hours ahead holds from 00:30 UTC: half of the first hour. One 5 hours
    behind reads 19:00 at midnight UTC."""
    steps = [(0.0, 0.0), (6 * 3600.0, 10.0)]
    assert by_hour(steps, 5.5)[[0, 1, 18, 19]] == pytest.approx([5, 10, 5, 0])
    assert by_hour([(hour * 3600.0, float(hour)) for hour in range(24)], -5.0)[:2] == pytest.approx([19, 20])


def test_prices_of_a_list_by_hour_and_the_load_of_a_profile(write, tmp_path: Path) -> None:
    """A g6.xlarge is one L4 at 0.805 (configs/prices/aws-us-east-1); twice that in the hour at 09:00 UTC. The profile
    rises at 08:30 on a clock an hour behind: the hour at 09:00 UTC is sized for 20 and has 15 on average."""
    (tmp_path / "day.csv").write_text("time,rate\n00:00,1\n08:30,2\n09:00,1\n")
    factor = [1.0] * 24
    factor[8] = 2.0
    loads = yaml.safe_load(FILE)["regions"]["west"]["load"]
    name = write(
        (f"load: {loads}", "load: day.csv\n    peak: 20"),
        ("hired: {per_hour: 2}", f"hired: {{prices: aws-us-east-1, factor: {factor}}}"),
    )
    asked = read_regions(*load_regions(name)).question
    (users,) = asked.users
    assert users.most[8:11] == pytest.approx([10, 20, 10])
    assert users.mean[8:11] == pytest.approx([10, 15, 10])
    single = next(one for one in asked.sites[0].hired if one.gpus == 1)
    assert single.price[8:11] == pytest.approx([0.805, 1.61, 0.805])
    assert "g6.xlarge" in single.said
    assert np.sum(asked.sites[1].hired[0].price) == pytest.approx(24)
