"""Files of traffic classes on the command line: what is refused, with file and line; rates; the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferplan.catalog.classes import load_classes
from inferplan.catalog.files import names
from tests.cases import for_each
from tests.cli.conftest import Run

GOOD = """\
classes:
  - name: chat
    share: 0.7
    prompt: "200"
    output: "uniform:40:0.5"
    ttft: 500 ms
    priority: 0
    weight: 2
  - name: batch
    share: 0.3
    prompt: "600"
    output: "20"
    e2e: 1 min
    priority: 1
"""
SIMULATE = "simulate llama-3.1-8b --gpu h100-sxm --classes mix.yaml"


def write(folder: Path, text: str = GOOD) -> None:
    (folder / "mix.yaml").write_text(text, encoding="utf-8")


@for_each(
    ("old", "new", "said"),
    [
        ("weight: 2", "wieght: 2", "mix.yaml:8: classes.0.wieght: unknown field; did you mean weight?"),
        ("share: 0.7", "share: 0.6", "mix.yaml: the shares of the classes add up to 0.9, not to 1"),
        ("share: 0.7", "share: -0.7", "mix.yaml:3: classes.0.share"),
        ("share: 0.7", "share: .nan", "mix.yaml:3: classes.0.share"),
        ('prompt: "200"', 'prompt: "2OO"', "mix.yaml:2: '2OO' is not a length"),
        ('prompt: "200"', "", "mix.yaml:2: classes.0.prompt: Field required"),
        ("ttft: 500 ms", "ttft: 500", "mix.yaml:6: classes.0.ttft"),
        ("ttft: 500 ms", "ttft: 0 s", "mix.yaml:6: classes.0.ttft"),
        ("ttft: 500 ms", "percentile: 100", "mix.yaml:6: classes.0.percentile"),
        ("priority: 0", "priority: 0.5", "mix.yaml:7: classes.0.priority"),
        ("weight: 2", "weight: 0", "mix.yaml:8: classes.0.weight"),
        ("name: batch", "name: chat", "mix.yaml: two classes of traffic are named 'chat'"),
        ("    share: 0.3\n", "", "mix.yaml:9: a class has a share of the requests or a rate"),
        ("share: 0.3", "rate: 3", "mix.yaml:9: some classes have shares and some have rates"),
    ],
)
def test_a_wrong_file_is_refused_where_it_is_wrong(
    old: str, new: str, said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in GOOD
    write(tmp_path, GOOD.replace(old, new, 1))
    answer = run(*f"{SIMULATE} --rate 4".split())
    assert answer.code == 2 and said in answer.err and not answer.out


def test_an_empty_list_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "classes: []\n")
    assert "mix.yaml:1: classes" in run(*f"{SIMULATE} --rate 4".split()).err


def test_rates_are_shares_of_their_sum(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD.replace("share: 0.7", "rate: 9").replace("share: 0.3", "rate: 3"))
    mix = load_classes("mix.yaml")
    assert mix.rate == 12 and [one.share for one in mix.classes] == [0.75, 0.25]
    answer = run(*f"{SIMULATE} --requests 400 --queue priority --format json".split())
    record = json.loads(answer.out)
    assert answer.code == 0
    assert record["conditions"]["traffic"]["arrivals"]["rate"] == 12
    assert record["conditions"]["queue"] == "priority"
    assert [(one["name"], one["priority"], one["weight"]) for one in record["classes"]] == [
        ("chat", 0, 2),
        ("batch", 1, 1),
    ]
    assert sum(one["requests"]["arrived"] for one in record["classes"]) == record["requests"]["arrived"]
    beside = run(*f"{SIMULATE} --rate 4".split())
    assert beside.code == 2 and "they make 12 requests per second" in beside.err
    users = run(*f"{SIMULATE} --concurrency 4".split())
    assert users.code == 2 and "--concurrency 4 with classes" in users.err


def test_users_are_of_every_class(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    answer = run(*f"{SIMULATE} --concurrency 20 --queue fair".split())
    assert answer.code == 0
    assert "0.7 chat with prompt 200, output uniform:40:0.5, 0.3 batch with prompt 600, output 20" in answer.out
    assert "classes: every class meets its limits" in answer.out
    assert "admitted by weighted service" in answer.out


def test_the_shipped_files_are_whole() -> None:
    for name in names("classes"):
        assert sum(one.share for one in load_classes(name).classes) == pytest.approx(1)
