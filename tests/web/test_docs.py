"""docs/web.md says what is so: its example, its keys, its limits, its errors."""

from __future__ import annotations

import json
import re

import pytest

from inferplan.web.limits import LIMITS
from inferplan.web.tasks import STATUS
from tests.web.conftest import ROOT, Web

PAGE = (ROOT / "docs" / "web.md").read_text(encoding="utf-8")


def test_the_example_is_answered(web: Web) -> None:
    found = re.search(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    view = web.post("/api/view", json.loads(found[1])).json
    assert view["cost"]["usd_per_h"] == pytest.approx(4 * 2.49)
    rows = re.findall(r"^\| (`.*?) \|", PAGE.partition("| key of a view")[2].partition("\n\n")[0], re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}
    assert keys == set(view)


def test_every_path_is_described(web: Web) -> None:
    paths = {path.replace("{id}", "ID") for path in web.get("/api/openapi.json").json["paths"]}
    assert set(re.findall(r"`(?:GET|POST|DELETE) (/api/[\w/]+)`", PAGE)) == paths


def test_limits_are_those_in_force() -> None:
    said = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", PAGE.partition("## Limits")[2], re.MULTILINE))
    assert said["body of a request"] == f"{LIMITS.body // 1024} KiB, sent within {LIMITS.body_seconds:g} s"
    inside = said["nesting, values and characters of one text in it"]
    assert inside == f"{LIMITS.depth}, {LIMITS.items:,}, {LIMITS.text:,}"
    assert said["points of a curve"] == f"{LIMITS.points:,}"
    assert said["views of a comparison"] == f"{LIMITS.views}"
    assert said["requests priced at once, and waiting"] == f"{LIMITS.pricing}, {LIMITS.waiting}"
    answers = said["time of an answer, and of the whole catalogue"]
    assert answers == f"{LIMITS.seconds:g} s, {LIMITS.start_seconds:g} s"
    assert said["requests of a person waiting, where people have links"] == f"{LIMITS.waiting_each}"
    assert said["jobs of a person at once, and of all"] == f"{LIMITS.jobs}, {LIMITS.jobs_of_all}"
    assert said["time of one of them"] == f"{LIMITS.job_seconds / 60:g} min"
    assert said["memory of each process"] == f"{LIMITS.memory // 2**30} GiB"


def test_statuses_of_exit_codes() -> None:
    for code, status in ((1, 500), (2, 400), (3, 409), (4, 404)):
        assert STATUS[code] == status
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {status} |"))
        assert f"exit code {code}" in row
