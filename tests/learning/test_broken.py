"""Records with numbers that are none, cut lines and scrapes, servers that begin anew, and records of other engines."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

from inferplan.errors import InputFileError
from inferplan.learning import logs
from inferplan.learning.observed import StepLoad, differ, figure
from inferplan.learning.records import read_records
from tests.cases import for_each
from tests.learning.test_formats import DECODE, LLAMA_CPP, PREFILL, SGLANG, TGI, TRTLLM, VLLM, deployed, read

BROKEN = "lines in which a number is none"


def test_numbers_of_a_record() -> None:
    assert [figure(one) for one in ("4", "4.0", "1e+06", ".5", 4, 0, 1e15)] == [4.0, 4.0, 1e6, 0.5, 4.0, 0.0, 1e15]
    wrong = ("7.1.2", ".", "", "4x", "nan", "+Inf", "-4", "²", "9" * 400, "1e16", 10**400, float("nan"), -1, True, None)
    assert [figure(one) for one in wrong] == [None] * len(wrong)
    assert [figure(one, whole=True) for one in ("4.0", 4.5, 1e-320)] == [4.0, None, None]
    assert [differ(one) for one in ((20, 22), (20, 23), (20, 18), (1, 2), (1, 3))] == [False, True, False, False, True]


VLLM_LINE = VLLM.splitlines()[2] + "\n"
OTHERS = {
    "sglang log": (SGLANG, "sglang"),
    "vllm log": (VLLM, "vllm"),
    "trtllm log": (TRTLLM.format(3, "", 40.0, "num_scheduled_requests: 9, ", 1, 2000, 8, ""), "trtllm"),
    "llama.cpp": (LLAMA_CPP.format(1, 2, 3, 4, 5) * 2, "llama.cpp"),
    "tgi": (TGI.format(1.0, 5, 1.0, 50, 16, 1000, 4) * 2, "none"),
}


@for_each("name", OTHERS)
def test_a_record_of_another_engine(name: str, tmp_path: Path) -> None:
    text, engine = OTHERS[name]
    other = "sglang" if engine == "vllm" else "vllm"
    with pytest.raises(InputFileError, match=f"another engine than {other}") as refused:
        read(tmp_path / "own.txt", text, 100.0, other)
    assert refused.value.hint == f"--engine {engine}"


LOGS = {
    "milliseconds": (VLLM_LINE, "20.00 ms", "7.1.2 ms"),
    "no milliseconds": (VLLM_LINE, "20.00 ms", ". ms"),
    "share of the cache": (VLLM_LINE, "8.0%", "1.2.3%"),
    "sequences": (VLLM_LINE, "16 gen", "9" * 400 + " gen"),
    "TensorRT-LLM": (
        TRTLLM.format(3, "", 40.0, "num_scheduled_requests: 8, ", 0, 0, 8, ", 'cached_kv_tokens': 8000"),
        "40.0ms",
        "1.2.3ms",
    ),
}


@for_each("name", LOGS)
def test_lines_of_logs_with_numbers_that_are_none(name: str, tmp_path: Path) -> None:
    line, right, wrong = LOGS[name]
    assert right in line
    text = VLLM.splitlines()[0] + "\n" + line + line.replace(right, wrong)
    found = read(tmp_path / "own.log", text, engine="trtllm" if "iter = " in line else "vllm")
    assert (len(found.observed), found.passed_over) == (1, {BROKEN: 1})


def test_states_that_are_missing_and_caches_of_no_size(tmp_path: Path) -> None:
    line = TRTLLM.format(3, "", 40.0, "num_scheduled_requests: 8, ", 0, 0, 8, ", 'cached_kv_tokens': 8000")
    found = read(tmp_path / "own.log", line + line.replace("'num_ctx_tokens': 0, ", ""), engine="trtllm")
    assert (len(found.observed), found.passed_over) == (1, {"lines without the states of their step": 1})
    with pytest.raises(InputFileError, match="--context"):
        read(tmp_path / "pool.log", "GPU KV cache size: , tokens\n" + VLLM_LINE)
    mean = (
        "INFO 08-25 17:09:16 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
        "throughput: {} tokens/s, Running: 32 reqs, Waiting: 0 reqs, GPU KV cache usage: 16.0%, Prefix cache hit\n"
    )
    text = "".join(mean.format(rate) for rate in ("1600.0", "1600.0", "1.2.3", "1600.0", "1600.0"))
    found = read(tmp_path / "means.log", text, 700.0)
    assert [one.where.rpartition(":")[2] for one in found.observed] == ["2", "5"]
    assert found.passed_over[BROKEN] == 1


@for_each("right, wrong", [("#running-req: 4,", "#running-req: 4x,"), ("#token: 4000", "#token: 4.0.0"),
                           ("#token: 4000", "#token: nan"), ("#token: 4000", "#token: -4000"),
                           ("400.0", "inf"), ("400.0", "-4")])  # fmt: skip
def test_no_window_goes_over_a_broken_line_of_sglang(right: str, wrong: str, tmp_path: Path) -> None:
    """Of six lines the fourth is broken: the windows to it and from it are lost, 10 ms a step are the others."""
    line = DECODE.format(n=1, running=4, used=4000, rate=400.0)
    assert right in line
    found = read(tmp_path / "own.log", line * 3 + line.replace(right, wrong) + line * 2, engine="sglang")
    assert [one.where.rpartition(":")[2] for one in found.observed] == ["2", "3", "6"]
    assert {one.seconds for one in found.observed} == {0.01}
    assert found.passed_over == {BROKEN: 1}


def test_intervals_and_ranks_of_sglang(tmp_path: Path) -> None:
    line, prompts = DECODE.format(n=1, running=4, used=4000, rate=400.0), PREFILL.format(number=1, new=100, running=4)
    for wrong in (0, -5, "9" * 400):
        with pytest.raises(InputFileError, match="decode_log_interval is"):
            read(tmp_path / "own.log", f"decode_log_interval={wrong}\n{line}{prompts}{line}", engine="sglang")
    bare = line.replace(" TP0]", "]")
    text = bare + "moved EP0 to host\n" + bare
    assert len(read(tmp_path / "moved.log", text, engine="sglang").observed) == 1


def test_four_times_the_log_takes_four_times_as_long() -> None:
    """Where the rest of the text was copied for each line, it took up to sixteen times as long."""
    line = TRTLLM.format(3, "", 40.0, "num_scheduled_requests: 8, ", 0, 0, 8, ", 'cached_kv_tokens': 8000")

    def seconds(lines: int) -> float:
        begun = process_time()
        assert len(logs.read(line * lines, "own.log").observed) == lines
        return process_time() - begun

    assert seconds(20_000) < 8 * min(seconds(5000) for _ in range(2))


def scrape(steps: int, changes: dict[str, str] | None = None) -> str:
    """Of vLLM: so many steps of 8 sequences, 10 ms each, with 8 x 1,000 tokens of 160,000 in the cache."""
    gaps = 8 * steps
    series = {
        "num_requests_running": "8",
        "kv_cache_usage_perc": "0.05",
        "prompt_tokens_total": "700",
        "iteration_tokens_total_count": str(steps),
        "inter_token_latency_seconds_count": str(gaps),
        "inter_token_latency_seconds_sum": str(gaps * 0.01),
        "time_to_first_token_seconds_count": "8",
        **(changes or {}),
    }
    text = "".join(f'vllm:{name}{{engine="0"}} {value}\n' for name, value in series.items() if value)
    return text + 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10000"} 1.0\n'


WRONG = {
    "a gauge that is NaN": ({"kv_cache_usage_perc": "NaN"}, "kv_cache_usage_perc is not a number"),
    "a gauge without end": ({"kv_cache_usage_perc": "+Inf"}, "kv_cache_usage_perc is not a number"),
    "a gauge below zero": ({"kv_cache_usage_perc": "-0.5"}, "kv_cache_usage_perc is not a number"),
    "requests that are NaN": ({"num_requests_running": "NaN"}, "num_requests_running is not a number"),
    "a counter that is NaN": ({"iteration_tokens_total_count": "NaN"}, "iteration_tokens_total_count is not a number"),
    "a counter that is huge": ({"prompt_tokens_total": "1e300"}, "prompt_tokens_total is not a number"),
    "a counter of no digits": ({"inter_token_latency_seconds_sum": "1.2.3"}, "latency_seconds_sum is not a number"),
}


@for_each("name", WRONG)
def test_samples_that_are_no_numbers(name: str, tmp_path: Path) -> None:
    """The second of five scrapes is broken: its two windows are counted, the others are 10 ms a step."""
    changes, why = WRONG[name]
    text = scrape(1000) + scrape(2000, changes) + "".join(scrape(steps) for steps in (3000, 4000, 5000))
    found = read(tmp_path / "own.txt", text)
    assert [one.seconds for one in found.observed] == pytest.approx([0.01, 0.01])
    assert [one.steps for one in found.observed] == [((1.0, StepLoad(decodes=8.0, context=pytest.approx(1000.0))),)] * 2
    ((said, count),) = found.passed_over.items()
    assert (count, why in said) == (2, True)


def test_counters_that_fall_and_scrapes_that_are_cut(tmp_path: Path) -> None:
    """A server that began anew in one file; two replicas in two files, which make no window with each other; prompts
    that fall; a scrape that lacks a counter, over which one window goes."""
    first, anew = [scrape(steps) for steps in (1000, 2000)], [scrape(steps) for steps in (500, 1500, 2500)]
    found = read(tmp_path / "anew.txt", "".join([*first, *anew]))
    assert len(found.observed) == 3
    ((said, count),) = found.passed_over.items()
    assert (count, "a counter fell" in said) == (1, True)
    for name, scrapes in (("one.txt", first), ("two.txt", [scrape(steps) for steps in (3000, 4000)])):
        (tmp_path / name).write_text("".join(scrapes), encoding="utf-8")
    (both,) = read_records([str(tmp_path / "one.txt"), str(tmp_path / "two.txt")], deployed())
    assert [one.where.rpartition("/")[2] for one in both.observed] == ["one.txt: scrape 2", "two.txt: scrape 2"]
    assert not both.passed_over
    with pytest.raises(InputFileError, match="time no step\nbecause: 1 windows in which a counter fell"):
        read(tmp_path / "falls.txt", scrape(1000) + scrape(2000, {"prompt_tokens_total": "600"}))
    cut = scrape(2000, {"time_to_first_token_seconds_count": ""})
    found = read(tmp_path / "cut.txt", scrape(1000) + cut + scrape(3000))
    assert [one.seconds for one in found.observed] == pytest.approx([0.01])
    assert sum(found.passed_over.values()) == 1
    with pytest.raises(InputFileError, match="--context"):
        text = (scrape(1000) + scrape(2000)).replace('num_gpu_blocks="10000"', 'num_gpu_blocks="²"')
        read(tmp_path / "blocks.txt", text)


def test_a_window_that_begins_idle_says_nothing(tmp_path: Path) -> None:
    """Between 0 and 1 requests the mean of both scrapes is none of what decoded; between 1 and 2 it may be."""
    text = scrape(1000, {"num_requests_running": "0"}) + "".join(
        scrape(steps, {"num_requests_running": "1", "inter_token_latency_seconds_count": str(steps),
                       "inter_token_latency_seconds_sum": str(steps * 0.01)})
        for steps in (2000, 3000)
    )  # fmt: skip
    text = text.replace('_seconds_count{engine="0"} 8000\n', '_seconds_count{engine="0"} 1000\n')
    text = text.replace('_seconds_sum{engine="0"} 80.0\n', '_seconds_sum{engine="0"} 10.0\n')
    found = read(tmp_path / "own.txt", text)
    assert [one.steps[0][1].decodes for one in found.observed] == [1.0]
    assert found.passed_over == {"windows in which nothing ran for a while": 1}


def test_which_of_several_files_times_no_step(tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text(VLLM, encoding="utf-8")
    (tmp_path / "idle.log").write_text(VLLM_LINE.replace("16 gen", "0 gen"), encoding="utf-8")
    with pytest.raises(InputFileError, match=r"in [^,]*idle\.log time no step"):
        read_records([str(tmp_path / "good.log"), str(tmp_path / "idle.log")], deployed())


FPM = (
    '{{"wall_time": 0.02, "scheduled_requests": {{"num_prefill_requests": 0, "sum_prefill_tokens": 0, '
    '"sum_prefill_kv_tokens": 0, "num_decode_requests": 8, "sum_decode_kv_tokens": {}}}}}\n'
)
ENDED = "records that end before their end"


@for_each(
    "name, cut, kept", [("a line of its own", "\n", 12), ("another record behind it", "", 11), ("the last", None, 12)]
)
def test_a_record_that_was_being_written_as_the_server_was_killed(
    name: str, cut: str | None, kept: int, tmp_path: Path
) -> None:
    """Of twelve records, and of a thirteenth 40 characters; the next run of the server appends to the same file."""
    lines = [FPM.format(8000 + place) for place in range(12)]
    half = lines[0][:40]
    text = "".join(lines) + half if cut is None else "".join([*lines[:6], half + cut, *lines[6:]])
    found = read(tmp_path / "own.jsonl", text)
    assert (len(found.observed), found.passed_over) == (kept, {ENDED: 1})
    with pytest.raises(InputFileError, match=r"own\.jsonl:1[01]: not JSON"):  # the fourth
        read(tmp_path / "own.jsonl", "".join([*lines[:6], *[half + "\n"] * 4, *lines[6:]]))


def test_examples_of_openmetrics_are_no_values(tmp_path: Path) -> None:
    """Behind a value OpenMetrics may have a time in seconds, and an example with a value and a time of its own."""
    plain = "".join(scrape(100 * n) for n in (1, 2, 3))
    marked = plain.replace(
        'prompt_tokens_total{engine="0"} 700', 'prompt_tokens_total{engine="0"} 700 1.5 # {id="a"} 1 2'
    )
    marked = marked.replace('running{engine="0"} 8', 'running{engine="0",model="a}b{\\"c"} 8 1764547200.125')
    assert marked.count("# {id=") == marked.count("764547200.125") == 3
    bare, found = (read(tmp_path / "own.txt", text) for text in (plain, marked))
    assert [one.steps for one in found.observed] == [one.steps for one in bare.observed] and len(bare.observed) == 2
    assert found.passed_over == {}
