"""Loaders that read weights from a network volume, against runs that their constants were not taken from."""

from __future__ import annotations

import pytest

from inferplan.catalog.loaders import loading_of
from inferplan.errors import UnknownNameError, UsageError
from inferplan.serving.cold_start import ColdStart
from tests.cases import for_each


def start_of(loader: str, storage: float, processes: int = 1) -> ColdStart:
    """The start of a replica that reads 15 GB, the size that the source gives for Llama 3 8B."""
    found = loading_of(loader)
    return ColdStart(
        rest=0.0,
        weights=15e9,
        bandwidth=storage,
        start=found.start,
        loader=loader,
        each=found.bandwidth,
        processes=processes,
    )


@for_each(
    ("loader", "seconds"),
    [
        ("safetensors", 47.0),
        ("runai-streamer:1", 43.71),
        ("runai-streamer:4", 11.19),
        ("runai-streamer:8", 7.53),
        ("runai-streamer:20", 7.62),
        ("tensorizer:1", 43.85),
        ("tensorizer:4", 14.44),
        ("tensorizer:32", 10.95),
    ],
)
def test_a_loader_reads_as_fast_as_it_was_seen_to(loader: str, seconds: float) -> None:
    """From io2 to an A10G of a g5.12xlarge, which has 16 Gbit/s to its volumes (run-ai/runai-model-streamer at f73a19a,
    docs/src/benchmarks.md); the constants are of another volume."""
    assert start_of(loader, 2e9).seconds == pytest.approx(seconds, rel=0.15)


def test_each_process_has_streams_of_its_own_until_the_storage_is_full() -> None:
    """15 GB at 0.314 GB/s a stream: one process 47.8 s, four 11.9 s, and no less than 15 GB at 2 GB/s."""
    seconds = [start_of("safetensors", 2e9, processes).seconds for processes in (1, 4, 64)]
    assert seconds == pytest.approx([15 / 0.314, 15 / 1.256, 7.5])
    assert start_of("tensorizer:2", 1e12).seconds == pytest.approx(2.2 + 15 / 0.628)
    assert start_of("safetensors", 2e9).part["kind"] == "published"
    assert ColdStart(rest=1.0).part["kind"] == "formula"
    assert ColdStart(rest=1.0, measured="graphs alone").part["kind"] == "measured"


@for_each(
    ("text", "error"),
    [
        ("torch", UnknownNameError),
        ("tensorizer", UsageError),
        ("tensorizer:", UsageError),
        ("runai-streamer:0", UsageError),
        ("runai-streamer:2.5", UsageError),
        ("safetensors:2", UsageError),
    ],
)
def test_what_is_no_loader_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        loading_of(text)
