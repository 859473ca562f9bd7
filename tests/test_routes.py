"""Bytes on each level of nested domains, against counts by hand and counts of every case."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_hardware, names
from inferplan.devices.constants import IDEAL
from inferplan.devices.hardware import HardwareSpec, Link
from inferplan.errors import MissingFactError
from inferplan.estimate.phase import run_step
from inferplan.estimate.roofline import OpCost, price
from inferplan.work.formats import find_format
from inferplan.work.ops import Collective, Exchange
from inferplan.work.parallel import Parallelism
from inferplan.work.routes import chance_reached, route
from inferplan.work.step import Segment, Step
from tests.builders import chip
from tests.cases import for_each

BF16, FP8 = find_format("bf16"), find_format("fp8-tile")
MESSAGE = 4096 * 7168


def levels(name: str, group: int, span: int | None = None) -> list[tuple[str, float, float]]:
    found = load_hardware(name).levels(group, span or group)
    return [(level.link.name.split()[0], level.size, level.bandwidth) for level in found]


def collective(pattern: str, group: int, elements: float = MESSAGE, span: int | None = None) -> Collective:
    return Collective(name="c", pattern=pattern, elements=float(elements), group=group, span=span or group, format=BF16)


def ideal(op: Collective | Exchange, gpu: str) -> float:
    return float(price(op, load_hardware(gpu), IDEAL).time)


# Which levels a group uses --------------------------------------------------------------------------------------------


def test_a_group_inside_one_domain_has_one_level() -> None:
    assert levels("h200-sxm", 8) == [("NVLink", 8.0, 450e9)]
    assert levels("gb200", 72) == [("NVLink", 72.0, 900e9)]
    assert levels("mi300x", 4) == [("Infinity", 4.0, 192e9)]


def test_a_group_over_nodes_has_two() -> None:
    assert levels("h200-sxm", 64) == [("NVLink", 8.0, 450e9), ("scale-out", 8.0, 50e9)]
    assert levels("mi300x", 16) == [("Infinity", 8.0, 448e9), ("scale-out", 2.0, 50e9)]
    assert levels("gb200", 144) == [("NVLink", 72.0, 900e9), ("scale-out", 2.0, 50e9)]


def test_bridged_pairs_in_a_host_in_a_cluster() -> None:
    """Bridges join pairs alone: a ring over all eight cards of a host is as slow as PCIe, with bridges or without."""
    card = load_hardware("a100-80gb-pcie")
    assert levels("a100-80gb-pcie", 32) == [("PCIe", 8.0, 31e9), ("scale-out", 4.0, 25e9)]
    assert card.bridged.levels(32, 32) == card.levels(32, 32)
    assert [(one.link.bandwidth, one.size) for one in card.bridged.levels(2, 2)] == [(300e9, 2.0)]


@for_each("name", [name for name in names("hardware") if load_hardware(name).bridge is not None])
def test_a_bridge_never_slows(name: str) -> None:
    card = load_hardware(name)
    for ranks in (1, 2, 4, 8):
        asked = Request(model="llama-3.1-8b", gpu=card.name, parallel=Parallelism(tp=ranks))
        for new, past in ((1.0, 500.0), (2000.0, 0.0)):
            step = Step(segments=(Segment(batch=1.0, new=new, past=past),))
            fitted = run_step(assemble(replace(asked, nvlink_bridge=True)), step).time
            assert float(fitted) <= float(run_step(assemble(asked), step).time)


def test_ranks_that_lie_a_node_apart_share_no_node() -> None:
    """Two ranks of a group of two, eight devices apart: nothing goes over NVLink; every second device: four a node."""
    assert levels("h200-sxm", 2, 16) == [("scale-out", 2.0, 50e9)]
    assert levels("h200-sxm", 8, 16) == [("NVLink", 4.0, 450e9), ("scale-out", 2.0, 50e9)]


def test_what_no_link_joins_is_refused() -> None:
    with pytest.raises(MissingFactError, match="no link on file joins 16 x h20"):
        load_hardware("h20").levels(16, 16)


def node(rails: int | None, latency: str = "0 s") -> HardwareSpec:
    """Eight devices over 100 GB/s; a network of 10 GB/s a device with so many ports a node."""
    inner = Link(name="inner", bandwidth="100 GB/s", domain=8)
    return chip(1e12, 1e15, link=[inner, Link(name="net", bandwidth="10 GB/s", rails=rails, latency=latency)])


def test_fewer_rails_than_devices_are_shared() -> None:
    """8 devices over 4 rails of 20 GB/s: 10 each; 4 of the devices alone 20; 2 of them no more than a port."""
    every_other = [node(4).levels(2 * ranks, 16)[1].bandwidth for ranks in (8, 4, 2)]
    assert every_other == [10e9, 20e9, 20e9]
    assert node(None).levels(4, 16)[1].bandwidth == 10e9


def test_a_level_is_no_faster_than_its_latency() -> None:
    op = collective("all_gather", 16, 1e6)
    assert float(price(op, node(8, "30 us"), IDEAL).time) == pytest.approx(30e-6 + 0.5 * 2e6 / 8 / 10e9)


# Bytes on them --------------------------------------------------------------------------------------------------------


@for_each(
    ("pattern", "inner", "outer"),
    [
        ("all_reduce", 2 * 7 / 8, 2 * 3 / 4 / 8),
        ("all_gather", 7 / 8, 3 / 4 / 8),
        ("reduce_scatter", 7 / 8, 3 / 4 / 8),
        ("all_to_all", 7 / 32, 24 / 32),
        ("send", 0.0, 1.0),
    ],
)
def test_bytes_on_the_levels_of_four_nodes_of_eight(pattern: str, inner: float, outer: float) -> None:
    assert route(pattern, (8.0, 4.0), (False, False)) == pytest.approx((inner, outer), rel=1e-15)


def test_only_the_switch_that_adds_saves_bytes() -> None:
    assert route("all_reduce", (8.0, 4.0), (True, False)) == pytest.approx((1.0, 2 * 3 / 4 / 8))
    assert route("all_reduce", (8.0, 4.0), (False, True)) == pytest.approx((2 * 7 / 8, 1 / 8))
    assert route("all_reduce", (1.0,), (False,)) == (0.0,)


@for_each("pattern", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_levels_add_up_to_a_flat_group(pattern: str) -> None:
    """Every byte that leaves a rank crosses one level: hierarchy saves network, not the sum."""
    flat = route(pattern, (64.0,), (False,))[0]
    assert sum(route(pattern, (2.0, 4.0, 8.0), (False,) * 3)) == pytest.approx(flat, rel=1e-14)


def test_an_all_reduce_over_two_nodes_is_bound_by_its_rails() -> None:
    """4,096 x 7,168 bf16 on 16 H200: 58.7 MB/8 over a port of 50 GB/s is 146.8 us; a flat ring takes 2.2 ms."""
    assert ideal(collective("all_reduce", 16), "h200-sxm") == pytest.approx(MESSAGE * 2 / 8 / 50e9, rel=1e-12)


def test_an_all_reduce_inside_an_nvlink_rack_is_what_it_was() -> None:
    assert ideal(collective("all_reduce", 16), "gb200") == pytest.approx(65.24e-6, rel=1e-4)


def test_published_all_reduce_of_four_nodes_is_above_the_bound() -> None:
    """4 GiB on 4 nodes of 8 B200 at 377 GB/s of bus bandwidth (hardware notes of ml-engineering, August 2026)."""
    measured = 2 * 31 / 32 * 2**32 / 377e9
    assert 0.7 < ideal(collective("all_reduce", 32, 2**31), "b200-hgx") / measured < 0.75


# Tokens and experts ---------------------------------------------------------------------------------------------------


def counted(experts: int, top_k: int, held: set[int], groups: int = 1, top_groups: int = 1) -> float:
    """Share of the ways to choose a token's experts that reach one of ``held``."""
    each, hits, ways = experts // groups, 0, 0
    for chosen in combinations(range(groups), top_groups):
        allowed = [expert for expert in range(experts) if expert // each in chosen]
        for own in combinations(allowed, top_k):
            ways += 1
            hits += bool(held.intersection(own))
    return hits / ways


@for_each("routing", [(1, 1), (4, 2), (8, 3), (2, 1)])
@for_each("share", [1 / 16, 1 / 8, 1 / 4, 1 / 2])
@for_each("top_k", [1, 3])
def test_reached_is_the_share_of_all_choices(routing: tuple[int, int], share: float, top_k: int) -> None:
    held = set(range(round(16 * share)))
    assert chance_reached(16, top_k, share, *routing) == pytest.approx(counted(16, top_k, held, *routing), rel=1e-12)


def exchange(mode: str = "normal", nodes: int = 2, **changed: object) -> Exchange:
    """DeepSeek-V3's experts over nodes of 8."""
    ranks = 8 * nodes
    shape: dict[str, object] = {"tokens": 1.0, "width": 7168, "experts": 256, "top_k": 8, "format": FP8}
    sizes = {"parts": ranks, "group": ranks, "span": ranks}
    return Exchange(name="x", direction="dispatch", mode=mode, **{**shape, **sizes, **changed})  # type: ignore[arg-type]


def test_a_token_crosses_once_for_each_node() -> None:
    """Two nodes: it has an expert on the other in all but C(128, 8)/C(256, 8) = 0.35 % of the cases."""
    inner, outer = exchange().copies((8.0, 2.0))
    assert outer == pytest.approx(1 - 0.003490, abs=1e-6)
    assert inner + outer == pytest.approx(15 * (1 - comb(240, 8) / comb(256, 8)), rel=1e-12)  # of 15 other ranks


def test_experts_of_four_groups_lie_on_four_nodes_at_most() -> None:
    """DeepSeek-V3: 8 groups on 8 nodes, experts in 4 of them. C(96, 8)/C(128, 8) of 4 nodes have none."""
    limited = exchange(nodes=8, groups=8, top_groups=4).copies((8.0, 8.0))[1]
    assert limited == pytest.approx(7 / 8 * 4 * (1 - 0.092747), rel=1e-5)
    assert limited < exchange(nodes=8).copies((8.0, 8.0))[1]


def test_low_latency_sends_to_every_expert() -> None:
    assert exchange("low_latency", nodes=4).copies((8.0, 4.0)) == pytest.approx((8 * 7 / 32, 8 * 24 / 32))


def test_sliced_experts_need_a_token_on_every_rank_of_the_group() -> None:
    """Four groups of two ranks, one expert of four: the token goes to 2 of 8 ranks, 1 - 1/8 of them another one."""
    op = exchange(nodes=1, parts=4, experts=4, top_k=1)
    assert op.copies((8.0,)) == pytest.approx((2 * 7 / 8,))


def test_balanced_experts_lie_on_different_ranks() -> None:
    assert exchange("nvlink", nodes=1, balanced=True).copies((8.0,)) == (7.0,)
    assert exchange("nvlink", nodes=8, balanced=True).copies((64.0,)) == pytest.approx((8 * 63 / 64,))


def test_tokens_travel_with_their_scales() -> None:
    """7,168 fp8 and 56 scales of four bytes are 7,392 bytes (DeepEP's message without its header)."""
    assert exchange(tokens=1.0).work().wire == pytest.approx(sum(exchange().copies((16.0,))) * 7392)


@for_each(
    ("mode", "crowding", "mean_share", "longer"),
    [
        ("low_latency", 1.5, 1.0, (1.5, 1.5)),
        ("low_latency", 1.5, 1 / 16, (1.0, 1.0)),  # one rank sends everything: who receives most gets 1.5/16 of it
        ("low_latency", 3.0, 0.5, (1.5, 1.5)),
        ("normal", 2.0, 1.0, (2.0, 1 / 0.996510)),
        ("normal", 2.0, 0.6, (1.2, 1.0)),
        ("normal", 16.0, 0.5, (0.5 / 0.407705, 1.0)),
    ],
)
def test_all_wait_for_the_fullest_sender_or_the_busiest_receiver(
    mode: str, crowding: float, mean_share: float, longer: tuple[float, float]
) -> None:
    """Of two nodes of 8: a rank has an expert of a token with 1 - C(240, 8)/C(256, 8) = 0.407705, a node with
    1 - C(128, 8)/C(256, 8) = 0.996510, so that they get at most 1/0.4077 and 1/0.9965 times what a mean one does."""
    once = exchange(mode).sent((8.0, 2.0), (False, False))
    most = exchange(mode, crowding=crowding, mean_share=mean_share).sent((8.0, 2.0), (False, False))
    assert [a / b for a, b in zip(most, once)] == pytest.approx(longer, rel=1e-5)


def test_a_lone_prompt_crowds_nobody() -> None:
    """DeepSeek-V3, 8 ranks, one prompt of 4,096 tokens on one of them: its dispatch carries its own copies, in fp8
    with scales 7,392 bytes a token, whoever is popular; where every rank has one it lasts until the busiest has all."""
    deployment = assemble(
        Request(model="deepseek-v3", gpu="gb200", engine="sglang", parallel=Parallelism(dp=8, ep=8), expert_skew=0.8)
    )

    def dispatch(prompts: float) -> OpCost:
        step = Step(segments=(Segment(batch=prompts, new=4096.0, past=0.0),))
        return {cost.op.name: cost for cost in run_step(deployment, step).costs}["ffn.dispatch"]

    lone, every = dispatch(1.0), dispatch(8.0)
    assert isinstance(lone.op, Exchange)
    assert float(lone.work.wire) == pytest.approx(4096 * 7392 * sum(lone.op.copies((8.0,))), rel=1e-12)
    assert float(every.work.wire) > 1.1 * float(lone.work.wire)


def moe_costs(gpu: str, engine: str, tokens: float, wide: bool, ranks: int) -> dict[str, OpCost]:
    parallel = Parallelism(dp=ranks, ep=ranks)
    deployment = assemble(Request(model="deepseek-v3", gpu=gpu, engine=engine, ideal=True, parallel=parallel))
    segment = Segment(batch=float(ranks), new=tokens, past=0.0)
    if not wide:
        segment = Segment(batch=ranks * tokens, new=1.0, past=4096.0)
    return {cost.op.name: cost for cost in run_step(deployment, Step(segments=(segment,))).costs}


@for_each(
    ("gpu", "engine", "wide", "kernels"),
    [
        ("h200-sxm", "sglang", True, ("dispatch.normal", "combine.normal")),
        ("h200-sxm", "sglang", False, ("dispatch.low_latency", "combine.low_latency")),
        ("h200-sxm", "trtllm", False, ("dispatch.low_latency", "combine.low_latency")),
        ("gb200", "trtllm", False, ("dispatch.nvlink", "combine.nvlink")),
        ("gb200", "sglang", False, ("dispatch.low_latency", "combine.low_latency")),
        ("h200-sxm", "none", False, ("dispatch.normal", "combine.normal")),
    ],
)
def test_engines_choose_the_kernel(gpu: str, engine: str, wide: bool, kernels: tuple[str, str]) -> None:
    priced = moe_costs(gpu, engine, 64.0, wide, 16)
    dispatch, combine = priced["ffn.dispatch"].op, priced["ffn.combine"].op
    assert (dispatch.kernel, combine.kernel) == kernels
    assert (dispatch.label, combine.label) == ("bf16" if engine == "none" else "fp8", "bf16")


def test_a_decode_over_two_nodes_by_hand() -> None:
    """64 tokens a rank in bf16 over a port of 50 GB/s: one stays at home where none of its experts is away.

    Of its four groups j are away with C(4, j) C(4, 4 - j)/C(8, 4); then C(128 - 32 j, 8)/C(128, 8) choose none of them.
    """
    home = sum(comb(4, j) * comb(4, 4 - j) / comb(8, 4) * comb(128 - 32 * j, 8) / comb(128, 8) for j in range(5))
    dispatch = moe_costs("h200-sxm", "none", 64.0, False, 16)["ffn.dispatch"]
    assert float(dispatch.time) == pytest.approx(64 * 14336 * (1 - home) / 50e9, rel=1e-12)


def test_no_exchange_without_attention_data_parallelism() -> None:
    parallel = Parallelism(tp=8, ep=8)
    deployment = assemble(Request(model="deepseek-v3", gpu="h200-sxm", ideal=True, parallel=parallel))
    step = Step(segments=(Segment(batch=8.0, new=1.0, past=1000.0),))
    assert not [cost for cost in run_step(deployment, step).costs if isinstance(cost.op, Exchange)]


# Published figures ----------------------------------------------------------------------------------------------------


@for_each(
    ("nodes", "dispatch", "combine"), [(2, 43e9, 43e9), (4, 58e9, 57e9), (8, 51e9, 50e9)], ids=["EP16", "EP32", "EP64"]
)
def test_deepep_normal_is_above_the_bound(nodes: int, dispatch: float, combine: float) -> None:
    """DeepEP docs/legacy.md: 4,096 tokens, at most 4 groups; its bytes count the copy that stays on the own node."""
    top = min(nodes, 4)
    for rate, fmt in ((dispatch, FP8), (combine, BF16)):
        op = exchange(nodes=nodes, tokens=4096.0, format=fmt, groups=nodes, top_groups=top)
        counted_bytes = 4096 * 7168 * fmt.width * nodes * chance_reached(256, 8, 1 / nodes, nodes, top)
        assert 0.4 < ideal(op, "h100-sxm") / (counted_bytes / rate) < 1.0


@for_each(
    ("nodes", "dispatch", "combine"),
    [(2, 118e-6, 195e-6), (4, 155e-6, 273e-6), (8, 173e-6, 314e-6), (16, 192e-6, 369e-6), (32, 194e-6, 360e-6)],
)
def test_deepep_low_latency_is_above_the_bound(nodes: int, dispatch: float, combine: float) -> None:
    """DeepEP docs/legacy.md: 128 tokens."""
    for seconds, fmt in ((dispatch, FP8), (combine, BF16)):
        op = exchange("low_latency", nodes=nodes, tokens=128.0, format=fmt)
        assert 0.6 < ideal(op, "h100-sxm") / seconds < 1.0


@for_each(
    ("gpu", "nodes", "dispatch", "combine"),
    [
        ("h100-sxm", 2, 90e9, 81e9),
        ("h100-sxm", 4, 61e9, 61e9),
        ("b200-hgx", 2, 90e9, 91e9),
        ("b200-hgx", 1, 726e9, 740e9),
    ],
)
def test_deepep_v2_is_above_the_bound(gpu: str, nodes: int, dispatch: float, combine: float) -> None:
    """DeepEP README: 8,192 tokens, any experts, "logical" bandwidth: what stays on the own node or rank counts."""
    domains = nodes if nodes > 1 else 8
    for rate, fmt in ((dispatch, FP8), (combine, BF16)):
        counted_bytes = 8192 * 7168 * fmt.width * domains * chance_reached(256, 8, 1 / domains)
        assert 0.6 < ideal(exchange(nodes=nodes, tokens=8192.0, format=fmt), gpu) / (counted_bytes / rate) < 1.0


def test_an_nvlink_bridge_is_priced_where_it_is_asked_for() -> None:
    """NVIDIA GA102 white paper: 4 links x 14.0625 GB/s = 56.25 GB/s in each direction; PCIe 4.0 x16: 31 GB/s. Two ranks
    of a ring send (2 - 1) x 2 / 2 of the message each: 2 MB take 2e6 / 31e9 = 64.5 us, and 35.56 us over a bridge."""
    card = load_hardware("rtx-3090")
    message = collective("all_reduce", 2, 1e6)
    assert ideal(message, "rtx-3090") == pytest.approx(64.5e-6, rel=1e-3)
    assert float(price(message, card.bridged, IDEAL).time) == pytest.approx(35.56e-6, rel=1e-3)


def test_the_estimate_says_whether_the_cards_have_bridges() -> None:
    asked = Request(model="llama-3.1-8b", gpu="h100-pcie", parallel=Parallelism(tp=2))
    sold, fitted = assemble(asked), assemble(replace(asked, nvlink_bridge=True))
    assert sold.hardware.bridge_line(2).startswith("network: PCIe 5.0 x16; with NVLink bridges")
    assert sold.hardware.bridge_line(1) == load_hardware("h100-sxm").bridge_line(8) == ""
    assert fitted.hardware.bridge_line(2) == "network: with NVLink bridges (300.0 GB/s, 2 cards), which are sold apart"


# Cards in slots with the constants of their NVLink relatives ----------------------------------------------------------


def reduced(gpu: str, elements: float, group: int) -> float:
    deployment = assemble(Request(model="llama-3.3-70b", gpu=gpu))
    op = collective("all_reduce", group, elements)
    return float(price(op, deployment.hardware, deployment.calibration).time)


@for_each("gpu", ["h100-pcie", "h100-nvl", "h200-nvl", "a100-80gb-pcie", "a100-40gb-pcie", "a30"])
def test_hops_over_pcie_are_not_those_of_nvlink(gpu: str) -> None:
    """Among four L40S, the one card in slots whose collectives were timed, vLLM's kernel takes 13.3 us for the smallest
    message (aiconfigurator's table), NCCL's among four V100 22.3 us (haohervchb/sglang-V100, pull request 2)."""
    assert 0.95 * 13.3e-6 < reduced(gpu, 8192, 4) < 22.3e-6


@for_each("gpu", ["h100-sxm", "h200-sxm", "a100-80gb-sxm"])
def test_hops_over_nvlink_stay(gpu: str) -> None:
    assert reduced(gpu, 8192, 4) < 7e-6


def test_large_messages_over_pcie_reach_what_was_measured() -> None:
    """Three A100s over PCIe 4.0: bus bandwidth 20 GB/s (nccl-tests issue 178); of a ring 2 (n - 1)/n of the bytes."""
    message = 2**30
    rate = message * 2 * 2 / 3 / reduced("a100-80gb-pcie", message / 2, 3)
    assert rate == pytest.approx(20e9, rel=0.15)
