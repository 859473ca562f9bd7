"""Which shapes are measured: what serving runs and corners, of the design's models, the user's, and one held out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.designs import CPU, GPU, Design, largest_step, require_room
from calibrate.samples import key_of
from calibrate.shapes import (
    MULTIPLES,
    UNFUSED,
    Candidate,
    candidates,
    choose,
    drawn,
    group_of,
    held_out_shapes,
    operand_bytes,
    ordered,
)
from inferplan.catalog.files import load_hardware
from inferplan.errors import InfeasibleError, UnknownNameError
from inferplan.estimate.roofline import price
from inferplan.work.formats import find_format
from inferplan.work.ops import Attention, GroupedMatmul, Matmul, Op
from tests.cases import for_each

BF16 = find_format("bf16")
MIB = 2**20
SMALL = replace(GPU, models=("llama-3.1-8b",), tp=(1,), others=(), quantised=(), quantised_models=(), held_out=())


def matmul(m: float, n: int = 1024, k: int = 1024) -> Matmul:
    return Matmul(name="m", m=m, k=k, n=n, weight=BF16, input=BF16, output=BF16)


@pytest.fixture(scope="module")
def found() -> dict[str, Candidate]:
    """Shapes of the H200 that a visit of 8 ms and 15 % of its memory allow, as a run takes them."""
    hardware = load_hardware("h200-sxm")
    return {
        key: candidate
        for key, candidate in candidates(GPU, hardware).items()
        if operand_bytes(candidate.op) <= 0.15 * hardware.usable
        and float(price(candidate.op, hardware, UNFUSED).time) <= 8e-3
    }


@pytest.fixture(scope="module")
def chosen(found: dict[str, Candidate]) -> list[Op]:
    """As many as 450 s have time for."""
    return choose(found.values(), 619, "bf16")


def of(chosen: list[Op], kind: type[Op], label: str = "") -> list[Any]:
    return [op for op in chosen if isinstance(op, kind) and op.label.startswith(label)]


def test_most_matmuls_are_weights_that_serving_multiplies(chosen: list[Op]) -> None:
    """M up to the 8192 tokens that vLLM and SGLang step with on 141 GB; 16 MiB: a layer's projection, not a router."""
    rows = of(chosen, Matmul, "bf16")
    real = [op for op in rows if 1 <= op.m <= 8192 and op.k * op.n * 2 >= 16 * MIB]
    assert len(rows) >= 40
    assert len(real) >= len(rows) / 2
    tokens = np.array([float(op.m) for op in real])
    assert {(tokens < 8).any(), ((tokens >= 8) & (tokens < 512)).any(), (tokens >= 512).any()} == {True}


def test_attention_has_the_heads_of_large_models_windows_and_chunks(chosen: list[Op]) -> None:
    """32/8 heads: Llama-3.1-8B; 64/8: the 70B; 128 latent heads over eight: DeepSeek-V3; Gemma 3 looks back 1024."""
    attention = of(chosen, Attention)
    decode = {(op.heads, op.kv_heads) for op in attention if op.kernel == "attention.decode" and op.label == "bf16"}
    assert {(32, 8), (64, 8)} <= decode
    assert {op.heads for op in attention if op.kernel == "mla.decode"} >= {16}
    for kernel in ("attention.decode", "attention.prefill"):
        windows = [op for op in attention if op.kernel == kernel and op.mask.kind == "window"]
        assert len(windows) >= 4
        assert {op.mask.size for op in windows} == {1024}
    assert sum(op.kernel == "attention.prefill" and op.past > 0 for op in attention) >= 10


def test_no_step_holds_more_tokens_than_an_engine_takes(found: dict[str, Candidate]) -> None:
    """But latents are expanded over all tokens that a chunk looks back on (DeepSeek's attn.kv_b)."""
    for candidate in found.values():
        op = candidate.op
        if isinstance(op, Matmul) and op.name != "attn.kv_b":
            assert op.m <= 8192
        if isinstance(op, GroupedMatmul):
            assert op.m <= 8192 * 8
        if isinstance(op, Attention):
            assert op.batch * op.new <= 8192


@for_each(("gpu", "tokens"), [("h200-sxm", 8192), ("b200-sxm", 16384), ("t4", 8192)])
def test_the_largest_step_is_that_of_engines(gpu: str, tokens: int) -> None:
    """vLLM 0.18 and SGLang 0.5 raise their 8192 to 16384 on 160 GB and more; TensorRT-LLM has 8192 everywhere."""
    assert largest_step(load_hardware(gpu)) == tokens


def test_expert_rows_are_skewed(found: dict[str, Candidate]) -> None:
    """A router with favourites reaches fewer experts than one that draws evenly: E(1 - (1 - k/E)^T)."""
    rows = [c.op for c in found.values() if isinstance(c.op, GroupedMatmul) and c.op.experts == 128 and c.op.m == 64]
    assert rows
    for op in rows:
        assert 8 < op.touched < 0.95 * 128 * (1 - (1 - 8 / 128) ** (64 / 8))


def test_half_of_each_kernel_and_format_is_what_serving_runs(found: dict[str, Candidate], chosen: list[Op]) -> None:
    groups: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for op in chosen:
        candidate = found[key_of(op)]
        if candidate.part == "usual":
            groups[group_of(op)].append(candidate)
    assert len(groups) >= 25
    for group, members in groups.items():
        if any(c.served for c in found.values() if group_of(c.op) == group):
            assert sum(c.served > 0 for c in members) >= len(members) // 2, group


def test_no_size_is_chosen_that_a_recipe_cannot_hold(found: dict[str, Candidate]) -> None:
    """qwen3-30b-a3b's experts of 768 are 192 over four devices and 96 over eight: no blocks of 128."""
    quantised = [c.op for c in found.values() if isinstance(c.op, GroupedMatmul) and c.op.weight.name == "fp8-block"]
    assert {op.n for op in quantised} | {op.k for op in quantised} == {2048, 768, 1536, 384}
    for candidate in found.values():
        op = candidate.op
        if isinstance(op, Matmul) and op.weight.name == "int4":
            assert op.k % 128 == 0
            assert op.n % 64 == 0


def test_adapters_are_those_beside_every_matrix_of_a_model(found: dict[str, Candidate]) -> None:
    """Llama 3.1 8B: 4096 wide, heads of 4096 + 2 x 1024, feed-forward 2 x 14336. Three ranks into one shrink of q, k
    and v, two of gate and up, one of the others; 64 rows reach 8 slots of rank 16, or 4 of rank 64."""
    ways = {"shrink": set(), "expand": set()}
    for candidate in found.values():
        op = candidate.op
        if isinstance(op, GroupedMatmul) and op.adapter and op.m == 64:
            ways[op.adapter].add((op.k, op.n, op.slices, op.experts))
            assert op.touched == op.experts and candidate.served > 0
    for rank, slots in ((16, 8), (64, 4)):
        assert ways["shrink"] >= {(4096, 3 * rank, 1, slots), (4096, rank, 1, slots), (4096, 2 * rank, 1, slots),
                                  (14336, rank, 1, slots)}  # fmt: skip
        assert ways["expand"] >= {(rank, 6144, 3, slots), (rank, 4096, 1, slots), (rank, 28672, 2, slots)}


@for_each(
    "gpu, expected",
    [
        ("b200-sxm", {("fp4", "nvfp4")}),
        ("mi355x", {("fp4", "mxfp4")}),
        ("h200-sxm", {("nvfp4xbf16", "nvfp4"), ("mxfp4xbf16", "mxfp4")}),
    ],
)
def test_fp4_is_the_makers_own_and_elsewhere_weights_alone(gpu: str, expected: set[tuple[str, str]]) -> None:
    """A B200 multiplies nvfp4, an MI355X mxfp4; an H200 neither, and takes both beside inputs of 16 bits."""
    design = replace(SMALL, quantised=("nvfp4", "mxfp4"), quantised_models=("llama-3.1-8b",))
    found = candidates(design, load_hardware(gpu)).values()
    narrow = {(c.op.label, c.op.weight.name) for c in found if isinstance(c.op, Matmul) and c.op.weight.bits == 4}
    assert narrow == expected


def test_a_model_is_held_out_whole(found: dict[str, Candidate], chosen: list[Op]) -> None:
    """Qwen2.5-7B: 28/4 heads and a feed-forward of 18944, which no other model of the design has."""
    held = held_out_shapes(GPU, load_hardware("h200-sxm"))
    of_it = [op for op in chosen if key_of(op) in held]
    assert abs(len(of_it) - 619 / 8) <= 2
    assert {"matmul", "attention.decode", "attention.prefill", "norm"} <= {op.kernel for op in of_it}
    for candidate in found.values():
        op = candidate.op
        own = isinstance(op, Matmul) and {op.k, op.n} & {37888, 18944}
        own = own or (isinstance(op, Attention) and (op.heads, op.kv_heads) == (28, 4))
        assert (candidate.part == "held out") >= bool(own), "a shape of its widths belongs to it"
        assert (candidate.part == "held out") == (key_of(op) in held)


def test_a_model_of_the_users_gets_half_of_the_shapes() -> None:
    """mistral-7b-v0.3: a vocabulary of 32768 and a feed-forward of 14336, which llama-3.1-8b has too."""
    hardware = load_hardware("h200-sxm")
    design = replace(SMALL, own=("mistral-7b-v0.3",))
    found = candidates(design, hardware)
    parts = [found[key_of(op)].part for op in choose(found.values(), 200, "bf16")]
    assert parts.count("own") == 100
    assert 0 < parts[:40].count("own") - 15 < 10, "from the beginning"
    assert any(isinstance(c.op, Matmul) and c.op.n == 32768 and c.part == "own" for c in found.values())


def test_the_model_held_out_is_another_when_the_user_asks_for_it() -> None:
    assert GPU.stranger == "qwen2.5-7b"
    assert replace(GPU, own=("qwen2.5-7b",)).stranger == "mistral-7b-v0.3"
    assert GPU.fitted_to(["qwen2.5-7b"]).stranger == "mistral-7b-v0.3", "a run asked for it, a fit of its file does not"
    assert GPU.fitted_to(GPU.held_out).stranger is None


@for_each(
    ("name", "memory", "error", "says"),
    [
        ("llama-9.9-8b", 1e12, UnknownNameError, "llama-9.9-8b"),
        ("deepseek-v3", 16e9, InfeasibleError, "cannot hold deepseek-v3"),
    ],
)
def test_a_model_that_is_unknown_or_too_large_is_refused(name: str, memory: float, error: Any, says: str) -> None:
    """DeepSeek-V3: 671 G parameters are 84 GB a device over eight, in 8 bits."""
    with pytest.raises(error, match=says):
        require_room(replace(GPU, own=(name,)), memory)
    require_room(replace(GPU, own=("deepseek-v3",)), 141e9)


def test_a_model_comes_by_path(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 640, "intermediate_size": 1664,'
        ' "num_attention_heads": 10, "num_key_value_heads": 5, "num_hidden_layers": 2, "vocab_size": 9000,'
        ' "tie_word_embeddings": false, "torch_dtype": "bfloat16", "max_position_embeddings": 4096}'
    )
    found = candidates(replace(SMALL, own=(str(path),)), load_hardware("h200-sxm"))
    own = [c.op for c in found.values() if c.part == "own"]
    assert {op.n for op in own if isinstance(op, Matmul)} == {1280, 640, 3328, 9000}


@for_each(("gpu", "base"), [("h200-sxm", "bf16"), ("t4", "fp16"), ("v100-sxm2-32gb", "fp16")])
def test_the_base_format_is_one_that_the_device_has(gpu: str, base: str) -> None:
    hardware = load_hardware(gpu)
    design = SMALL.on(hardware)
    assert design.base == base
    labels = {group_of(c.op)[1] for c in candidates(SMALL, hardware).values() if c.op.kernel == "matmul"}
    assert labels == {base}


@for_each(("design", "gpu"), [(SMALL, "h200-sxm"), (CPU, "xeon-8480plus")])
def test_designed_shapes_cover_each_kernel(design: Design, gpu: str) -> None:
    small = replace(design, models=design.models[:1], quantised_models=())
    chosen = choose(candidates(small, load_hardware(gpu)).values(), 90, design.base)
    assert len({key_of(op) for op in chosen}) == len(chosen) <= 90
    groups = {group_of(op)[0] for op in chosen}
    assert {"matmul", "attention.prefill", "attention.decode"} <= groups
    flops = [float(op.work().flop) for op in chosen if op.kernel == "matmul"]
    assert np.log10(max(flops) / min(flops)) > 3, "sizes span orders of magnitude"
    assert all(operand_bytes(op) > 0 for op in chosen)


def test_what_serving_runs_and_what_is_farthest_take_turns() -> None:
    """1 and 2 rows are served; of the others 4096 is farthest from both, then 64 (geometric middle of 1 and 4096)."""
    pool = [Candidate(op=matmul(float(m)), served=float(m == 1)) for m in (64, 1, 128, 4096)]
    assert [op.m for op in ordered(pool, 3)] == [1, 4096, 64 if _gap(64) > _gap(128) else 128]
    assert [op.m for op in ordered(pool, 1)] == [1]


def _gap(m: int) -> float:
    """Squared distance, in powers of two of FLOP and bytes, to the nearer of 1 and 4096 rows (weight: 1024 squared)."""

    def logs(rows: int) -> tuple[float, float]:
        return np.log2(2 * rows * 2**20), np.log2(2 * (2**20 + 2 * rows * 1024))

    own = logs(m)
    return min(sum((a - b) ** 2 for a, b in zip(own, logs(other))) for other in (1, 4096))


def test_shapes_are_drawn_by_what_they_are_served() -> None:
    """Nine to one within a class: the first comes first in nine of ten draws, within four standard deviations."""
    pool = [Candidate(op=matmul(2.0), served=0.9), Candidate(op=matmul(3.0), served=0.1), Candidate(op=matmul(4.0))]
    first = [next(drawn(pool, seed)) for seed in range(500)]
    assert abs(first.count(0) - 450) < 4 * (500 * 0.9 * 0.1) ** 0.5
    assert 2 not in first


def test_multiples_are_those_that_torch_kernels_ask_for() -> None:
    """The shapes know them without torch; on an H200, of fp4 on a B200, every recipe says the same."""
    pytest.importorskip("torch")
    from calibrate.kernels.linear import recipe
    from calibrate.kernels.operands import OperandPool
    from tests.calibrate.standin import standin

    inputs = {"fp8": "fp8", "fp8-block": "fp8", "int8": "int8", "int4": "bf16", "nvfp4": "nvfp4", "mxfp4": "mxfp4"}
    assert set(inputs) == set(MULTIPLES)
    for name, (k, n) in MULTIPLES.items():
        with standin("b200-hgx" if "fp4" in name else "h200-sxm"):
            pool = OperandPool("cuda", 1 << 20)
            assert recipe(find_format(name), find_format(inputs[name]), BF16, pool).multiples == (n, k), name
