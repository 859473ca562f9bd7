"""What a scrape says, by hand."""

from __future__ import annotations

import pytest

from inferplan.errors import InputFileError
from inferplan.watching.counters import Counters, Histogram, Span, read_counters

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.40
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 500.0
vllm:generation_tokens_total{engine="0",model_name="m"} 999.0
vllm:request_generation_tokens_sum{engine="0",model_name="m"} 240.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 1.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 300.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2",model_name="m"} 8.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.5
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 4.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 0.0
sglang:token_usage{model_name="m"} 0.3
sglang:prompt_tokens_total{model_name="m"} 800.0
sglang:generation_tokens_total{model_name="m"} 400.0
sglang:num_requests_total{model_name="m"} 8.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 100.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 20.0
sglang:time_to_first_token_seconds_count{model_name="m"} 10.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 2.0
"""


def test_a_scrape_of_vllm() -> None:
    """Ranks add up, but for the share of the cache, of which the fullest counts; 1,500 tokens in 10 prompts."""
    found = read_counters(VLLM, "a")
    assert (found.running, found.waiting, found.cache, found.done) == (5.0, 1.0, 0.4, 4.0)
    span = Span.between(60.0, [(_nothing(found), found)])
    assert (span.prompt_tokens, span.output_tokens, span.hits) == (150.0, 60.0, 0.2)
    assert span.rate == pytest.approx(10 / 60)
    assert span.ttft.mean == pytest.approx(0.15)
    assert span.gap.mean is None


def test_a_scrape_of_sglang() -> None:
    """Tokens of prompts are counted as answers end: 800 in 8."""
    found = read_counters(SGLANG, "a")
    span = Span.between(60.0, [(_nothing(found), found)])
    assert (span.prompt_tokens, span.output_tokens, span.hits) == (100.0, 50.0, 0.15)
    assert span.rate == pytest.approx(10 / 60)


def _nothing(like: Counters) -> Counters:
    empty = dict.fromkeys(("done", "prompts", "prompt", "output", "cached", "running", "waiting"), 0.0)
    histograms = dict.fromkeys(("ttft", "gap", "tpot", "e2el"), Histogram())
    return Counters(engine=like.engine, cache=0.0, **histograms, **empty)


def test_a_percentile_lies_inside_its_bucket() -> None:
    """Of 10 the 5th is 3 of the 6 between 0.1 and 0.2; the 9th is above the last edge (as ``histogram_quantile``)."""
    ttft = read_counters(VLLM, "a").ttft
    assert ttft.percentile(50) == pytest.approx(0.15)
    assert ttft.bounds(50) == (0.1, 0.2)
    assert ttft.percentile(10) == pytest.approx(0.05)
    assert ttft.percentile(90) == 0.2
    assert Histogram().percentile(50) is None


def test_a_server_that_began_anew() -> None:
    found = read_counters(VLLM, "a")
    assert _nothing(found).falls(found)
    assert not found.falls(_nothing(found))
    assert not found.falls(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trtllm_request_success_total 3\n", "TensorRT-LLM counts no tokens"),
        ("llamacpp:tokens_predicted_total 3\n", "llama.cpp"),
        ("<html>404</html>", "no metric of vLLM or SGLang"),
        ("vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:x 1\n", "num_requests_waiting"),
    ],
)
def test_what_cannot_be_watched(text: str, said: str) -> None:
    with pytest.raises(InputFileError) as refused:
        read_counters(text, "a")
    assert said in str(refused.value)
