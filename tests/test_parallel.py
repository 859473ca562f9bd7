"""What divisions do to the work of a replica, and what its ranks send each other."""

from __future__ import annotations

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.graph import build
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import Phase, decode_phase, prefill_phase
from inferplan.work.parallel import Parallelism, divisors, split_layers
from inferplan.work.step import decode
from tests.builders import chip, dense, deploy
from tests.cases import for_each

GPU = chip(1e12, 1e15, link=1e11)
EXPERTS, TOP_K, WIDTH = 8, 2, 64
MOE = {"kind": "moe", "experts": EXPERTS, "top_k": TOP_K, "d_ff": 32}


def phases(batch: float, **degrees: int) -> list[Phase]:
    model = dense(layers=4, d_model=WIDTH, heads=4, d_ff=64, vocab=256)
    deployment = deploy(model, GPU, parallel=Parallelism(**degrees))
    load = StaticLoad(batch=batch, prompt=32.0, output=2.0)
    return [prefill_phase(deployment, load), decode_phase(deployment, load, 32.0)]


@for_each("batch", [1.0, 3.0, 4.0, 9.0])
@for_each("degrees", [{"dp": 4}, {"dp": 8}, {"dp": 4, "pp": 4}, {"dp": 2, "pp": 2}])
def test_ranks_do_the_flop_of_the_sequences_there_are(batch: float, degrees: dict[str, int]) -> None:
    for divided, whole in zip(phases(batch, **degrees), phases(batch)):
        assert float(divided.flop) == pytest.approx(float(whole.flop), rel=1e-12)


def test_a_pipeline_cuts_what_one_attention_rank_has() -> None:
    """Four sequences on four attention ranks are one each: there is nothing to cut into microbatches."""
    for phase in phases(4.0, dp=4, pp=4):
        assert float(phase.microbatches) == 1.0
    assert [float(phase.microbatches) for phase in phases(8.0, dp=4, pp=4)] == [2.0, 2.0]


@for_each(
    ("degrees", "copies"),
    [
        ({"dp": 8, "ep": 8}, 7 * 2 / 8),  # one of the 8 experts on each of the 7 others, two of them the token's
        ({"dp": 2, "tp": 2, "ep": 4}, 3 * 13 / 28),  # two experts a rank: not reached with C(6, 2)/C(8, 2) = 15/28
        ({"dp": 2, "tp": 2, "ep": 2}, 3 * 22 / 28),  # half of each of four: C(4, 2)/C(8, 2) = 6/28
        ({"dp": 4, "ep": 1}, 3),  # every rank has a slice of every expert: all tokens to all
    ],
)
def test_tokens_go_once_to_each_rank_of_their_experts(degrees: dict[str, int], copies: float) -> None:
    model = dense(layers=1, d_model=WIDTH, heads=4, d_ff=1, vocab=256, ffn=MOE)
    parallel = Parallelism(**degrees)
    (stage,) = build(deploy(model, GPU, parallel=parallel), decode(8.0, 16.0))
    sent = {op.name: op.work().wire for op in stage.ops if op.name in ("ffn.dispatch", "ffn.combine")}
    own = 8.0 / (parallel.dp * parallel.tp) * WIDTH * 2  # ranks with the same tokens share the sending
    assert sent == {"ffn.dispatch": pytest.approx(copies * own), "ffn.combine": pytest.approx(copies * own)}


def test_the_last_stage_has_the_tied_table_and_no_other_input() -> None:
    model = dense(layers=2, d_model=WIDTH, heads=4, d_ff=64, vocab=256, tied=True, positions=4096)
    deployment = deploy(model, GPU, parallel=Parallelism(pp=2))
    first, last = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=2.0).stages
    assert first.weights - last.weights == 4096 * WIDTH * 2


@for_each("number", [1, 2, 12, 49, 97, 360])
def test_divisors(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_index_keys_are_state_that_is_read() -> None:
    """A sparse model's decode reads a key of 132 bytes for every cached position in each layer that has an indexer."""
    deployment = assemble(Request(model="deepseek-v3.2", gpu="h200-sxm", ideal=True, parallel=Parallelism(tp=8)))
    (stage,) = build(deployment, decode(4.0, 9999.0))
    read = sum(op.resident() * op.count for op in stage.ops if op.name == "attn.index.select")
    assert read == 61 * 4 * 10000 * (128 + 4)


def test_layers_that_do_not_divide_are_those_of_vllm() -> None:
    """vLLM, tests/distributed/test_pipeline_partition.py, test_uneven_auto_partition: its own table."""
    table = {(2, 2): [1, 1], (3, 2): [2, 1], (3, 3): [1, 1, 1], (4, 3): [1, 2, 1], (5, 3): [2, 2, 1]}
    assert {asked: split_layers(*asked) for asked in table} == table
