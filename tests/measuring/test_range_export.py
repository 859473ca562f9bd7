"""Exports of a Prometheus server, in each form that it or its tools write; what is none is refused by its reason."""

from __future__ import annotations

import json

import pytest

from inferplan.errors import InputFileError
from inferplan.measuring.range_export import is_export, read_exports
from tests.cases import for_each
from tests.measuring.kept import answer, series

RUNNING = "vllm:num_requests_running"
TWO = [
    series(RUNNING, [(100, "3"), (115, "4")], instance="a:8000", job="vllm", model_name="m"),
    series(RUNNING, [(100, "1")], instance="b:8000", job="vllm", model_name="m"),
    series("up", [(100, "1")], instance="c:9100", job="node"),
]
FORMS = {
    "answer": answer(TWO),
    "data": json.dumps(json.loads(answer(TWO))["data"]),
    "sorted by jq": json.dumps(json.loads(answer(TWO)), sort_keys=True, indent=2),
    "promtool": json.dumps(TWO),
}


@for_each("form", FORMS)
def test_forms_of_an_export(form: str) -> None:
    """Each server by itself; what no engine wrote is passed over."""
    assert is_export(FORMS[form])
    first, second = read_exports([("kept.json", FORMS[form])])
    assert (first.where, second.where) == ("kept.json: a:8000", "kept.json: b:8000")
    assert [(at, [(one.name, one.value) for one in found]) for at, found in first.moments] == [
        (100.0, [(RUNNING, "3")]),
        (115.0, [(RUNNING, "4")]),
    ]
    assert first.moments[0][1][0].known == {"instance": "a:8000", "job": "vllm", "model_name": "m"}
    assert second.names == {RUNNING}


def test_files_may_hold_a_part_each() -> None:
    """One of a metric, one of another, and two moments of a third, each with ``value``."""
    where = {"instance": "a:8000"}
    files = [
        ("1.json", answer([series(RUNNING, [(10, "3"), (20, "4")], **where)])),
        ("2.json", answer([series("vllm:num_requests_waiting", [(10, "0"), (20, "1")], **where)])),
    ]
    for at, value in ((10, "7"), (20, "9")):
        one = {"metric": {"__name__": "vllm:prompt_tokens_total", **where}, "value": [at, value]}
        files.append((f"at{at}.json", answer([one], "vector")))
    (found,) = read_exports(files)
    assert [(at, sorted(float(one.value) for one in samples)) for at, samples in found.moments] == [
        (10.0, [0.0, 3.0, 7.0]),
        (20.0, [1.0, 4.0, 9.0]),
    ]


PLAIN = {"instance": "a:8000"}
NONE = {
    "two models": (answer([series(RUNNING, [], model_name=name, **PLAIN) for name in "mn"]), "model_name is m, n"),
    "two jobs": (answer([series(RUNNING, [], job=name, **PLAIN) for name in "pq"]), "job is p, q"),
    "two Prometheus": (answer([series(RUNNING, [], prometheus_replica=n, **PLAIN) for n in "01"]), "replica is 0, 1"),
    "a rate": (answer([{"metric": {"instance": "a"}, "values": [[1, "2"]]}]), "rate()"),
    "a native histogram": (answer([{"metric": {"__name__": "vllm:x"}, "histograms": []}]), "vllm:x is a native"),
    "of nothing": (answer([]), "no series of an engine"),
    "of other things": (answer([TWO[2]]), "no series of an engine"),
    "a number": (answer([1, "2"], "scalar"), "a scalar"),
    "an error": ('{"status": "error", "errorType": "bad_data", "error": "parse error: x"}', "parse error: x"),
    "cut": (FORMS["answer"][:-20], "kept.json"),
    "a value that is none": (answer([{"metric": {"__name__": RUNNING}, "values": [[1, 2]]}]), "[1, 2]"),
    "a time that is none": (answer([{"metric": {"__name__": RUNNING}, "values": [["1", "2"]]}]), "['1', '2']"),
    "a switch for a time": (answer([{"metric": {"__name__": RUNNING}, "values": [[True, "2"]]}]), "[True, '2']"),
    "three for two": (answer([{"metric": {"__name__": RUNNING}, "values": [[1, "2", "3"]]}]), "[1, '2', '3']"),
    "no label is text": (answer([{"metric": {"__name__": RUNNING, "a": 3}, "values": []}]), "series 1 has no labels"),
    "the year 10000": (answer([{"metric": {"__name__": RUNNING}, "values": [[253402300800, "2"]]}]), "from 1970"),
    "milliseconds": (answer([{"metric": {"__name__": RUNNING}, "values": [[1.7e12, "2"]]}]), "counted from 1970"),
    "before 1970": (answer([{"metric": {"__name__": RUNNING}, "values": [[-1, "2"]]}]), "counted from 1970"),
    "no values": (answer([{"metric": {"__name__": RUNNING}}]), "no values"),
    "no labels": (json.dumps([{"metric": {}}, 3]), "kept.json"),
}


@for_each("case", NONE)
def test_what_is_no_export_of_one_deployment(case: str) -> None:
    text, said = NONE[case]
    assert is_export(text)
    with pytest.raises(InputFileError) as refused:
        read_exports([("kept.json", text)])
    assert said in refused.value.render()


def test_a_moment_in_words_and_labels_as_prometheus_writes_them() -> None:
    """1,764,547,200 s are 2025-12-01, 0:00 UTC (date -u -d @1764547200). A label may hold what has to be escaped."""
    series_of = [series(RUNNING, [(1764547200, "3"), (0, "1")], pod="p", instance="a", path='b\\c"d\ne')]
    (found,) = read_exports([("kept.json", answer(series_of))])
    assert found.where == "kept.json: p/a"
    assert found.at(1764547200.0) == "kept.json: p/a, 2025-12-01 00:00:00"
    assert [at for at, _ in found.moments] == [0.0, 1764547200.0]
    assert found.moments[0][1][0].labels == r'{instance="a",path="b\\c\"d\ne",pod="p"}'
    (alone,) = read_exports([("kept.json", answer([series(RUNNING, [(1, "3")])])), ("other.json", answer([TWO[2]]))])
    assert alone.where == "kept.json, other.json"


def test_what_an_export_is_stands_at_its_beginning() -> None:
    """In its first 10,000 characters, after white space."""
    assert is_export("\n  " + FORMS["promtool"])
    assert not is_export("# " + FORMS["promtool"])
    assert not is_export("[" + " " * 10_000 + FORMS["promtool"][1:])


def test_the_first_five_of_many_deployments_are_named() -> None:
    many = [series(RUNNING, [], model_name=name, **PLAIN) for name in "gfedcba"]
    with pytest.raises(InputFileError) as refused:
        read_exports([("kept.json", answer(many))])
    assert "model_name is a, b, c, d, e; only" in refused.value.because
    assert 'model_name="a"' in refused.value.hint


@for_each("text", ['{"version": 1, "at": 60}', '[{"isl": 3}]', "vllm:num_requests_running 3", ""])
def test_other_records_are_none(text: str) -> None:
    assert not is_export(text)
