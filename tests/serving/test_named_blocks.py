"""Blocks of a file cut into those of an engine: hits by hand, and what the file does not know."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.traffic import traces
from inferplan.traffic.block_names import FileNames
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.requests import ClosedLoop, Requests
from tests.cases import for_each

ALONE = ClosedLoop(concurrency=1, burst=True)


def mooncake(tmp_path: Path, *prompts: tuple[int, list[int]]) -> Requests:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1000 * at, "input_length": tokens, "output_length": 2, "hash_ids": names}
        for at, (tokens, names) in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return traces.read_trace(path)


def found(sent: Requests, engine: str, **options: object) -> list[int]:
    """Tokens that each request finds, one request after another."""
    made = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine=engine))
    records = simulate(made, sent.in_loop(ALONE), options=Options(**options)).records  # type: ignore[arg-type]
    return [records.cached.get(request, 0) for request in range(len(sent))]


@for_each(
    "tokens, engine, hits",
    [
        (1024, "vllm", 1008),  # 63 of 64 blocks of 16: the last token is computed
        (800, "vllm", 784),  # the file's second block has 288 tokens, 18 blocks, of which the last token is computed
        (810, "vllm", 800),
        (1024, "trtllm", 992),  # blocks of 32
        (1024, "sglang", 1008),  # pages of one token, followed as blocks of 16
    ],
)
def test_the_same_prompt_twice(tmp_path: Path, tokens: int, engine: str, hits: int) -> None:
    sent = mooncake(tmp_path, (tokens, [1, 2]), (tokens, [1, 2]))
    assert found(sent, engine) == [0, hits]


def test_what_prompts_share_of_a_block_in_which_they_part_is_not_found(tmp_path: Path) -> None:
    """The second goes on from the first, whose last 288 tokens are in another block of the file: 512 are known."""
    sent = mooncake(tmp_path, (800, [1, 2]), (1600, [1, 3, 4, 5]), (1600, [1, 3, 4, 5]))
    assert found(sent, "vllm") == [0, 512, 1584]
    # 288 more at most, 18 blocks
    assert sent.in_blocks(16).hashes.hidden == 288  # type: ignore[union-attr]


@for_each(
    "prompts, block, most",
    [
        ([(512, [1]), (512, [2])], 16, 496),  # 511 alike at most
        ([(512, [1]), (300, [2])], 16, 288),  # all of the second but its last token
        ([(300, [1]), (512, [2])], 16, 288),
        ([(300, [1]), (300, [2])], 64, 256),  # 299
        ([(300, [1]), (300, [1])], 16, 0),  # the same
        ([(600, [1, 2]), (1000, [1, 3]), (1024, [1, 4])], 32, 64 + 480),  # 88 of the first, then 488 of the second
        ([(600, [1, 2]), (1024, [3, 4])], 16, 496),  # the second blocks are behind others
    ],
)
def test_what_a_file_may_hide(prompts: list[tuple[int, list[int]]], block: int, most: int) -> None:
    names = FileNames.of([one for _, one in prompts], [tokens for tokens, _ in prompts], 512)
    assert names.cut(block).hidden == most


@for_each("block, shared", [(16, 5), (32, 2), (64, 1), (24, 3), (48, 1)])
def test_blocks_larger_than_those_of_the_file_are_shared_whole_or_not(block: int, shared: int) -> None:
    """Two prompts of ten blocks of 16 tokens that have five of them, 80 tokens, in common."""
    names = FileNames.of([tuple(range(10)), (0, 1, 2, 3, 4, 15, 16, 17, 18, 19)], [160, 160], 16).cut(block)
    first, second = (list(one) for one in names)
    assert len(first) == len(second) == 160 // block
    assert [one == other for one, other in zip(first, second)] == [at < shared for at in range(160 // block)]
    assert first[1:] == list(names[0][1:]) and first[-1] == names[0][-1] and first[::-1] == list(names[0][::-1])


def test_blocks_of_adapters_are_cut_too(tmp_path: Path) -> None:
    sent = mooncake(tmp_path, *[(1024, [1, 2])] * 40).naming(Popularity(count=2, skew=0.0), seed=1)
    names = sent.in_blocks(32).hashes
    assert names is not None and sent.adapters is not None
    assert {len(one) for one in names} == {32}
    assert len({tuple(one) for one in names}) == len(set(sent.adapters.tolist())) == 2


def test_a_tier_keeps_the_blocks_of_the_engine(tmp_path: Path) -> None:
    """Another prompt that fills the cache drives the first out; 1,008 of its tokens come back from the host."""
    made = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    tokens = 512 * 240
    sent = mooncake(tmp_path, (1024, [1, 2]), *[(tokens, list(range(k, k + 240))) for k in (1000, 2000, 3000, 4000)])
    again = mooncake(tmp_path, (1024, [1, 2]))
    assert isinstance(sent.hashes, FileNames) and isinstance(again.hashes, FileNames)
    both = Requests(
        prompt=np.append(sent.prompt, again.prompt),
        output=np.append(sent.output, again.output),
        hashes=FileNames([*sent.hashes.prompts, *again.hashes.prompts], 512),
        hash_block=512,
    )
    host = CacheTier(name="host", capacity=200e9, bandwidth=50e9)
    records = simulate(made, both.in_loop(ALONE), options=Options(tiers=(host,))).records
    assert records.loaded[5] == (1008,)
    assert records.cached[5] == pytest.approx(1008)
