"""A service as a Prometheus server kept it: the minutes are those of its scrapes, and by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferplan.errors import InputFileError
from inferplan.measuring.range_export import Exported, read_exports
from inferplan.watching.counters import Span, read_counters
from inferplan.watching.exported import ExportedService
from inferplan.watching.minutes import Scrapes
from tests.cli.conftest import Run, run  # noqa: F401  (a fixture)
from tests.measuring.kept import answer, scraped, series
from tests.watching.planned import plan_file
from tests.watching.service import Does, Service

TARGET = {"job": "vllm", "namespace": "prod"}


def kept(texts: dict[str, list[tuple[float, str]]]) -> list[Exported]:
    found = [one for name, scrapes in texts.items() for one in scraped(scrapes, {"instance": name, **TARGET})]
    return read_exports([("kept.json", answer(found))])


def minutes(service: ExportedService, length: float = 60.0) -> list[tuple[Span, float, int]]:
    return list(service.spans(length, pytest.fail))


def counted(done: int, running: int, **more: float) -> str:
    """A vLLM that answered so many requests, of 100 tokens each and 10 in the answer; first tokens came after 0.2 s,
    further ones after 20 ms."""
    lines = {
        "num_requests_running": running, "num_requests_waiting": 0, "request_success_total": done,
        "prompt_tokens_total": 100 * done, "request_generation_tokens_sum": 10 * done,
        "time_to_first_token_seconds_count": done, "time_to_first_token_seconds_sum": 0.2 * done,
        "inter_token_latency_seconds_count": 9 * done, "inter_token_latency_seconds_sum": 0.18 * done, **more,
    }  # fmt: skip
    return "\n".join(f'vllm:{name}{{model_name="m"}} {value:g}' for name, value in lines.items())


def test_two_servers_by_hand() -> None:
    """a answers 30 requests in a minute, b 10 before it starts anew. Their scrapes are 7 s apart."""
    service = ExportedService(
        kept(
            {
                "a:8000": [(0, counted(100, 2)), (30, counted(110, 2)), (60, counted(130, 3))],
                "b:8000": [(7, counted(50, 1)), (37, counted(60, 1)), (67, counted(5, 4))],
            }
        )
    )
    assert service.servers == 2
    ((span, at, anew),) = minutes(service)
    assert (at, anew, span.servers, span.running) == (60.0, 1, 2, 7.0)
    assert span.done == 30 + 10  # what b had counted before the scrape in which it began anew is not known
    assert span.rate == pytest.approx(40 / 60)
    assert (span.prompt_tokens, span.output_tokens) == (100.0, 10.0)
    assert span.ttft.mean == pytest.approx(0.2)
    assert span.gap.mean == pytest.approx(0.02)


def test_a_server_that_comes_later_has_its_own_second_of_a_round() -> None:
    """a is scraped at 1,000 s and every 30 s, b from 1,067 s on: 7 s into a round. a is gone in the last two rounds,
    which are at 1,120 and 1,150 s as if b had been scraped when a was."""
    texts = {
        "a:8000": [(1000 + 30 * round_, counted(10 * round_, 1)) for round_ in range(4)],
        "b:8000": [(1067 + 30 * round_, counted(100 * round_, 2)) for round_ in range(4)],
    }
    service = ExportedService(kept(texts))
    assert service.servers == 2
    found = [(at, span.servers, span.done) for span, at, _ in minutes(service, 30.0)]
    assert [at for at, _, _ in found] == [1030.0, 1060.0, 1090.0, 1120.0, 1150.0]
    assert found[0][1:] == (1, 10.0)


def test_rounds_that_were_not_kept_are_counted() -> None:
    """b lacks two scrapes, and one came 8 s late: it is of its round all the same."""
    every = [(1000 + 30 * round_, counted(10 * round_, 1)) for round_ in range(6)]
    texts = {
        "a:8000": every,
        "b:8000": [(at + (8 if at == 1120 else 0), text) for at, text in (*every[:2], *every[4:])],
    }
    found = [(at, span.servers) for span, at, _ in minutes(ExportedService(kept(texts)), 30.0)]
    assert [at for at, _ in found] == [1030.0, 1060.0, 1090.0, 1120.0, 1150.0]
    assert [servers for _, servers in found][:1] == [2]


def test_one_scrape_of_each_is_none() -> None:
    with pytest.raises(InputFileError) as refused:
        ExportedService(kept({"a:8000": [(0, counted(1, 1))], "b:8000": [(0, counted(1, 1))]}))
    assert refused.value.what == "kept.json has one moment of each server"


def test_what_cannot_be_read_is_said_once_for_each_scrape() -> None:
    said: list[str] = []
    broken = counted(20, 1).replace("num_requests_running", "other")
    texts = {"a": [(0, counted(10, 1)), (60, broken), (120, counted(30, 1))]}
    found = list(ExportedService(kept(texts)).spans(60.0, said.append))
    assert len(said) == 1 and "vllm:num_requests_running" in said[0]
    assert [(at, span.done) for span, at, _ in found] == [(60.0, 0.0), (120.0, 20.0)]


@pytest.mark.parametrize("offset", [0.0, 13.0])
def test_minutes_are_those_of_a_service_that_was_read_as_it_ran(offset: float) -> None:
    """A server is lost and comes back; the second one is read some seconds after the first."""
    service = Service(load=Does(rate=20.0), lost=(4, 8))
    live, texts = Scrapes(servers=("a", "b")), dict[str, list[tuple[float, str]]](a=[], b=[])
    expected = []
    for at, found in service.scrapes(12):
        for name, text in zip("ab", found):
            if text is not None:
                texts[name].append((at + offset * (name == "b"), text))
        read = {name: None if text is None else read_counters(text, name) for name, text in zip("ab", found)}
        ended = live.add(at, read)
        if ended is not None:
            expected.append((ended[0], ended[1]))
    replayed = ExportedService(kept(texts))
    assert replayed.servers == 2
    found_again = minutes(replayed)
    assert [anew for _, _, anew in found_again] == [anew for _, anew in expected]
    for (span, _, _), (other, _) in zip(found_again, expected, strict=True):
        assert (span.servers, span.done, span.running) == (other.servers, other.done, other.running)
        assert span.ttft == other.ttft
    assert {span.servers for span, _, _ in found_again} == {1, 2}


def test_a_stretch_without_anything_is_passed_over() -> None:
    """Nothing is known of ten minutes: one longer minute, and no server is lost."""
    service = ExportedService(
        kept({"a": [(0, counted(0, 1)), (60, counted(60, 1)), (660, counted(120, 1)), (720, counted(180, 1))]})
    )
    assert [(span.seconds, span.servers, span.done) for span, _, _ in minutes(service)] == [
        (60.0, 1, 60.0), (600.0, 1, 60.0), (60.0, 1, 60.0),
    ]  # fmt: skip


def without(name: str) -> list[Exported]:
    texts = [(at, "\n".join(line for line in counted(9, 1).splitlines() if name not in line)) for at in (0.0, 30.0)]
    return kept({"a:8000": texts})


@pytest.mark.parametrize("name", ["time_to_first_token_seconds_sum", "prompt_tokens_total", "num_requests_waiting"])
def test_a_metric_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(InputFileError) as refused:
        ExportedService(without(name))
    assert f"vllm:{name}" in refused.value.render()


def test_metrics_that_may_be_missing_are_named_too() -> None:
    (note,) = ExportedService(without("nothing")).notes
    for name in ("prefix_cache_hits_total", "kv_cache_usage_perc", "e2e_request_latency_seconds_bucket"):
        assert f"vllm:{name}" in note


def test_other_engines_are_refused() -> None:
    with pytest.raises(InputFileError) as refused:
        ExportedService(read_exports([("kept.json", answer([series("tgi_queue_size", [(1, "2")], instance="a")]))]))
    assert "TGI" in refused.value.render()


def test_the_command_replays_an_export(run: Run, tmp_path: Path) -> None:  # noqa: F811
    plan = plan_file(tmp_path)
    texts: dict[str, list[tuple[float, str]]] = {"a:8000": [], "b:8000": []}
    for at, found in Service(load=Does(rate=20.0)).scrapes(4):
        for name, text in zip(texts, found):
            texts[name].append((1_764_547_200 + at, text))  # 1 December 2025, 0:00 UTC
    every = [one for name, scrapes in texts.items() for one in scraped(scrapes, {"instance": name, **TARGET})]
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for number, path in enumerate(paths):
        path.write_text(answer(every[number::2]), encoding="utf-8")
    replay = [word for path in paths for word in ("--replay", str(path))]
    ran = run("watch", *replay, "--plan", str(plan), "--profile", str(tmp_path / "day.csv"), "--format", "jsonl")
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert len(lines) == 4 + 1  # the minutes, and the whole
    assert lines[0]["servers"] == 2
    assert lines[0]["requests_per_s"] == pytest.approx(20.0, rel=0.2)
    assert (tmp_path / "day.csv").read_text().splitlines()[1].startswith("0,")
