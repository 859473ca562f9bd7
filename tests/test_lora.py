"""LoRA adapters: parameters, memory and a step against counts by hand."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.answers.emit import launch
from inferplan.answers.emit.engines import command
from inferplan.answers.explain import Explainer
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import names
from inferplan.devices.constants import Calibration, Fit
from inferplan.errors import InferplanError, InputFileError, SpecError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import run_step
from inferplan.estimate.roofline import price
from inferplan.estimate.run import estimate
from inferplan.models.adapter_folder import read_adapter
from inferplan.models.lora import loaded_bytes, parameters, slot_bytes
from inferplan.reports.estimate import estimate_report
from inferplan.work.adapters import LoraAsked
from inferplan.work.ops import GroupedMatmul
from inferplan.work.parallel import Parallelism
from inferplan.work.step import decode, prefill
from tests.cases import for_each

# Llama 3.1 8B: 32 layers, width 4096, 8 KV heads of 128, feed-forward 14336. r (d_in + d_out), matrix by matrix.
BY_MATRIX = {
    "q": 16 * (4096 + 4096),
    "k": 16 * (4096 + 1024),
    "v": 16 * (4096 + 1024),
    "o": 16 * (4096 + 4096),
    "gate": 16 * (4096 + 14336),
    "up": 16 * (4096 + 14336),
    "down": 16 * (14336 + 4096),
}
ADAPTER = 32 * sum(BY_MATRIX.values())
SEVEN = LoraAsked(rank=16, slots=8, active=4)


def served(lora: LoraAsked = SEVEN, **changes: Any) -> Deployment:
    return assemble(Request(**({"model": "llama-3.1-8b", "gpu": "h100-sxm", "lora": lora} | changes)))


def adapter_ops(deployment: Deployment, step: Any) -> list[GroupedMatmul]:
    ops = [op for stage in build(deployment, step) for op in stage.ops]
    return [op for op in ops if isinstance(op, GroupedMatmul) and op.adapter]


def test_parameters_of_an_adapter_on_all_seven_matrices_are_those_that_peft_prints() -> None:
    """``print_trainable_parameters`` of r = 16 on all linear layers of Llama 3.1 8B: 41,943,040."""
    assert ADAPTER == 41_943_040
    deployment = served()
    assert deployment.lora is not None and parameters(deployment.lora, deployment.model) == ADAPTER


@for_each(("step", "tokens"), [(decode(8.0, 1000.0, 1000.0), 8), (prefill(8.0, 100.0), 800)])
@for_each("ideal", [True, False])
def test_a_step_has_two_flop_a_token_and_parameter_and_reads_the_active_adapters_once(step, tokens, ideal) -> None:
    found = adapter_ops(served(ideal=ideal), step)
    assert sum(float(op.work().flop * op.count) for op in found) == 2 * tokens * ADAPTER
    assert sum(float(op.resident() * op.count) for op in found) == 4 * ADAPTER * 2
    assert {op.name for op in found} == {
        f"{name}.lora_{way}"
        for name in ("attn.qkv", "attn.out", "ffn.gate_up", "ffn.down")
        for way in ("shrink", "expand")
    }


def test_the_traffic_of_the_merged_projection_by_hand() -> None:
    """q, k and v of 8 tokens with 4 adapters: x once, three parts of 16 a token, the output read and added to."""
    shrink, expand = (op.work() for op in adapter_ops(served(), decode(8.0, 64.0, 64.0))[:2])
    assert (shrink.read, shrink.write) == (2 * (8 * 4096 + 4 * 4096 * 48), 2 * 8 * 48)
    assert expand.read == 2 * (8 * 3 * 16 + 4 * 16 * 6144 + 8 * 6144)
    assert expand.write == 2 * 8 * 6144


def test_no_more_adapters_are_read_than_the_step_has_sequences() -> None:
    for sequences in (1.0, 3.0):
        found = adapter_ops(served(), decode(sequences, 64.0, 64.0))
        assert sum(float(op.resident() * op.count) for op in found) == sequences * ADAPTER * 2


def test_slots_lie_in_memory_whatever_is_active_and_take_room_from_the_cache() -> None:
    without, load = served(LoraAsked()), StaticLoad(batch=8.0)
    for active in (0, 1, 8):
        found = estimate(served(LoraAsked(rank=16, slots=8, active=active)), load).footprint
        assert found.adapters == 8 * ADAPTER * 2
        bare = estimate(without, load).footprint
        assert bare.kv_pool - found.kv_pool == pytest.approx(8 * ADAPTER * 2, rel=1e-12)
        assert found.total - bare.total == pytest.approx(8 * ADAPTER * 2, rel=1e-12)
        assert found.terms("total").value == pytest.approx(float(found.total), rel=1e-12)


def test_no_active_adapter_is_no_adapter_to_the_last_bit() -> None:
    load = StaticLoad(batch=8.0)
    none, idle = (estimate(served(lora), load) for lora in (LoraAsked(), LoraAsked(rank=16, slots=8, active=0)))
    assert (none.ttft, none.tpot, none.e2el) == (idle.ttft, idle.tpot, idle.e2el)
    assert none.band("tpot") == idle.band("tpot")


def test_division_is_that_of_vllm() -> None:
    """tp 4, A whole and B divided of q, k, v, gate, up; A divided and B whole of o and down."""
    columns = (4096 + 1024) + 2 * (4096 + 256) + 2 * (4096 + 3584)
    rows = (1024 + 4096) + (3584 + 4096)
    deployment = served(parallel=Parallelism(tp=4))
    assert estimate(deployment, StaticLoad()).footprint.adapters == 8 * 2 * 32 * 16 * (columns + rows)
    found = adapter_ops(deployment, decode(8.0, 64.0, 64.0))
    assert sum(float(op.k * op.n * op.count) for op in found) == 32 * 16 * (columns + rows)
    halves = served(parallel=Parallelism(pp=2))
    assert estimate(halves, StaticLoad()).footprint.adapters == 8 * ADAPTER


def test_ranks_beyond_the_kv_heads_have_copies_of_them() -> None:
    deployment = served(model="llama-3.1-8b", parallel=Parallelism(tp=16))
    columns = (4096 + 256) + 2 * (4096 + 128) + 2 * (4096 + 896)
    assert estimate(deployment, StaticLoad()).footprint.adapters == 8 * 2 * 32 * 16 * (
        columns + (256 + 4096) + (896 + 4096)
    )


def test_a_slot_holds_what_is_merged_and_a_load_brings_what_is_adapted() -> None:
    deployment = served(LoraAsked(rank=16, modules=("q", "v")))
    adapters, model = deployment.lora, deployment.model
    assert adapters is not None
    merged = 32 * sum(BY_MATRIX[name] for name in ("q", "k", "v"))
    assert estimate(deployment, StaticLoad()).footprint.adapters == 2 * merged
    own = 32 * (BY_MATRIX["q"] + BY_MATRIX["v"])
    assert loaded_bytes(adapters, model, model.sequence, Parallelism()) == 2 * own
    assert {op.name for op in adapter_ops(deployment, prefill(1.0, 64.0))} == {
        "attn.qkv.lora_shrink",
        "attn.qkv.lora_expand",
    }


@for_each("modules", [(), ("q", "v"), ("o",)])
def test_slots_and_operators_agree_for_every_model_on_file(modules: tuple[str, ...]) -> None:
    """Memory is counted from tensors, a step from matmuls: the same elements wherever adapters are known."""
    known = 0
    for model in names("models"):
        asked = LoraAsked(rank=8, modules=modules)
        try:
            deployment = served(asked, model=model, gpu="b200-hgx", ideal=True, parallel=Parallelism(tp=2))
        except InferplanError:
            continue
        known += 1
        held = sum(float(op.k * op.n * op.count) for op in adapter_ops(deployment, decode(4.0, 64.0, 64.0)))
        footprint = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0)
        assert footprint.adapters == held * deployment.lora.format.width, model  # type: ignore[union-attr]
    assert known > 100


def test_nothing_measured_stands_behind_the_kernels_and_no_band_is_claimed() -> None:
    found = estimate(served(), StaticLoad(batch=8.0))
    assert found.band("tpot") is None and found.band("ttft") is None
    costs = [cost for cost in found.decode.costs if cost.op.kernel == "grouped_matmul.adapter"]
    assert len(costs) == 8 and {cost.basis for cost in costs} <= {"transferred", "extrapolated"}
    assert found.tpot > estimate(served(LoraAsked()), StaticLoad(batch=8.0)).tpot


def test_every_face_says_that_the_kernels_were_not_measured() -> None:
    """On the terminal of an estimate as in JSON; not where no adapter runs, nor for an ideal device."""
    found = estimate_report(estimate(served(), StaticLoad(batch=8.0)))
    said = "LoRA: no adapter kernel was measured"
    assert any(note.startswith(f"note: {said}") for note in found.notes)
    assert any(note.startswith(said) for note in found.record["model_notes"])
    for quiet in (served(LoraAsked()), served(LoraAsked(rank=16, active=0)), served(ideal=True)):
        assert not any("no adapter kernel" in note for note in quiet.warnings)


def test_a_shrink_and_an_expand_by_hand() -> None:
    """One row, one adapter of rank 16 on 4096 x 4096 under vLLM's blocks, on 132 SMs that share 3.35 TB/s.

    A shrink block takes 256 of k: 256 x (1 + 16) x 2 B in, 16 x 2 B out. 16 blocks for 132 SMs, so that one takes
    132/3.35e12 s a byte and not 1/3.35e12; and two launches, for its output is zeroed. An expand block has 128 columns:
    16 x (1 + 128) x 2 B in, and 2 x 128 x 2 B of the output, which is read and written.
    """
    fit = Fit(memory=0.5, overhead=3e-6, launch=0.5)
    calibration = Calibration(name="own", constants={"matmul": {"bf16": fit}})
    deployment = served(LoraAsked(rank=16, modules=("o",)))
    shrink, expand = (
        price(op, deployment.hardware, calibration) for op in adapter_ops(deployment, decode(1.0, 8.0, 8.0))
    )
    alone = 132 / 3.35e12
    assert float(shrink.time) == pytest.approx(2 * 1.5e-6 + (256 * 17 * 2 + 32) * alone / 0.5, rel=1e-12)
    assert float(expand.time) == pytest.approx(1.5e-6 + (16 * 129 * 2 + 512) * alone / 0.5, rel=1e-12)


def test_many_blocks_take_the_time_of_their_bytes() -> None:
    """32 rows with 32 adapters of rank 64 on 14336 inputs: 32 x 64 x 14336 x 2 B of weights, 32 x 14336 x 2 B in."""
    calibration = Calibration(name="own", constants={"matmul": {"bf16": Fit()}})
    deployment = served(LoraAsked(rank=64, slots=32, modules=("down",)))
    shrink = price(adapter_ops(deployment, decode(32.0, 8.0, 8.0))[0], deployment.hardware, calibration)
    assert float(shrink.time) == pytest.approx((33 * 64 + 32 - 64) * 14336 * 2 / 3.35e12, rel=2e-3)


@for_each("gpu", ["h100-sxm", "a100-80gb-sxm", "l40s"])
def test_a_step_never_takes_less_time_with_more_adapters_of_a_higher_rank_or_with_more_rows(gpu: str) -> None:
    step = decode(np.array([1.0, 7.0, 31.0, 32.0, 33.0, 127.0, 128.0, 129.0]), 512.0, 512.0)
    found = np.array(
        [
            [
                run_step(served(LoraAsked(rank=rank, slots=32, active=active), gpu=gpu), step).time
                for rank in (8, 16, 24, 64, 256)
            ]
            for active in (0, 1, 2, 5, 8, 32)
        ]
    )
    for axis, name in enumerate(("active adapters", "rank", "batch")):
        assert np.all(np.diff(found, axis=axis) >= -1e-12), name


def test_constants_of_adapters_that_somebody_measured_stand_before_those_of_a_matmul() -> None:
    found = Calibration(
        name="own",
        constants={
            "matmul": {"bf16": Fit(math=0.5)},
            "grouped_matmul.adapter": {"bf16": Fit(math=0.25)},
        },
    )
    fit = found.fit("grouped_matmul.adapter", "bf16")
    assert fit is not None
    assert (fit.math, fit.basis) == (0.25, "calibrated")


@for_each(
    ("lora", "changes", "said"),
    [
        ({"slots": 4}, {}, "no adapters were asked for"),
        ({"rank": 16, "modules": ("lm_head",)}, {}, "'lm_head' is not a matrix"),
        ({"rank": 16, "slots": 2, "active": 3}, {}, "--max-loras 3"),
        ({"rank": 16, "active": 2}, {}, "there are 1"),
        ({"rank": 16}, {"model": "mixtral-8x7b", "parallel": Parallelism(tp=2)}, "--lora-modules q,k,v,o"),
        ({"rank": 16}, {"model": "deepseek-v3", "parallel": Parallelism(tp=8)}, "are not known here"),
        ({"rank": 16, "modules": ("o",)}, {"model": "deepseek-v3", "parallel": Parallelism(tp=8)}, "on mla layers"),
        ({"rank": 16, "modules": ("gate",)}, {"model": "mixtral-8x7b", "parallel": Parallelism(tp=2)}, "has no gate"),
        ({"rank": 16}, {"model": "whisper-large-v3"}, "is no plain decoder"),
    ],
)
def test_what_is_not_known_is_refused_by_name(lora, changes, said) -> None:
    with pytest.raises(UsageError, match=said):
        served(LoraAsked(**lora), **changes)


def test_attention_of_a_model_with_experts_can_be_adapted() -> None:
    deployment = served(
        LoraAsked(rank=8, modules=("q", "k", "v", "o")), model="mixtral-8x7b", parallel=Parallelism(tp=2)
    )
    adapters = deployment.lora
    assert adapters is not None  # 32 layers of width 4096 with 8 KV heads of 128
    assert parameters(adapters, deployment.model) == 32 * 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024))


# --- folders ----------------------------------------------------------------------------------------------------------

NAMES = {"q": "self_attn.q_proj", "v": "self_attn.v_proj", "down": "mlp.down_proj"}
SHAPES = {"q": (4096, 4096), "v": (4096, 1024), "down": (14336, 4096)}


def folder(path: Path, ranks: dict[str, int], layers: int = 32, **config: Any) -> Path:
    """An adapter as PEFT writes it, with a header that says so and no data behind it but zeros of the file system."""
    fields = {"peft_type": "LORA", "r": max(ranks.values()), "lora_alpha": 32, "bias": "none", "use_dora": False}
    fields["target_modules"] = [NAMES[name].partition(".")[2] for name in ranks]
    (path / "adapter_config.json").write_text(json.dumps(fields | config))
    header: dict[str, Any] = {}
    end = 0
    for layer in range(layers):
        for name, rank in ranks.items():
            inputs, outputs = SHAPES[name]
            for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                begin, end = end, end + 2 * prod(shape)
                where = f"base_model.model.model.layers.{layer}.{NAMES[name]}.lora_{half}.weight"
                header[where] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (path / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


def test_a_folder_says_its_matrices_and_ranks(tmp_path: Path) -> None:
    where = folder(tmp_path, {"q": 16, "v": 16})
    stored = read_adapter(where)
    own = 32 * (BY_MATRIX["q"] + BY_MATRIX["v"])
    assert (stored.ranks, stored.elements, stored.size) == ({"q": 16, "v": 16}, own, 2 * own)
    deployment = served(LoraAsked(folder=str(where), slots=2))
    assert deployment.lora is not None
    assert (deployment.lora.rank, deployment.lora.modules) == (16, {"q", "v"})
    assert estimate(deployment, StaticLoad()).footprint.adapters == 2 * 2 * 32 * sum(BY_MATRIX[n] for n in "qkv")


def test_a_rank_of_its_own_for_one_matrix(tmp_path: Path) -> None:
    where = folder(tmp_path, {"q": 8, "down": 16}, r=8, rank_pattern={"down_proj": 16})
    deployment = served(LoraAsked(folder=str(where)))
    adapters, model = deployment.lora, deployment.model
    assert adapters is not None and adapters.rank == 16
    own = 32 * (8 * (4096 + 4096) + 16 * (14336 + 4096))
    assert parameters(adapters, model) == own
    assert loaded_bytes(adapters, model, model.sequence, Parallelism()) == 2 * own
    with pytest.raises(UsageError, match=r"rank 16 exceeds the rank of a slot, 8"):
        served(LoraAsked(folder=str(where), rank=8))
    assert served(LoraAsked(folder=str(where), rank=64)).lora.rank == 64  # type: ignore[union-attr]


def test_slots_may_have_room_for_more_than_the_adapter_in_the_folder_changes(tmp_path: Path) -> None:
    where = folder(tmp_path, {"q": 16, "v": 16})
    adapters = served(LoraAsked(folder=str(where), modules=("q", "k", "v", "o"))).lora
    assert adapters is not None and adapters.modules == {"q", "k", "v", "o"}
    model = served(LoraAsked(rank=16)).model
    assert parameters(adapters, model) == 32 * (BY_MATRIX["q"] + BY_MATRIX["v"])
    assert slot_bytes(adapters, model, model.sequence, Parallelism()) == 2 * 32 * sum(BY_MATRIX[n] for n in "qkvo")


@for_each(
    ("config", "said"),
    [
        ({"use_dora": True}, "use_dora is not known here: DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias is not known"),
        ({"layers_to_transform": [0, 1]}, "layers_to_transform"),
        ({"a_new_field": None}, "'a_new_field' means"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"r": 0}, "r is 0"),
        ({"r": 32}, "has rank 16, adapter_config.json says 32"),
        ({"target_modules": ["q_proj"]}, r"v_proj\.lora_A\.weight is none of the matrices"),
        ({"target_modules": ["q_proj", "v_proj", "o_proj"]}, "o_proj is not adapted in pairs"),
        ({"target_modules": ["q_proj", "c_attn"]}, "c_attn is not known"),
        ({"target_modules": r".*\.q_proj"}, "target_modules is"),
        ({"rank_pattern": {r"^model\.layers\.0\..*": 4}}, "rank_pattern"),
    ],
)
def test_a_field_that_means_other_work_is_refused_by_its_name(tmp_path: Path, config, said) -> None:
    with pytest.raises(SpecError, match=said):
        read_adapter(folder(tmp_path, {"q": 16, "v": 16}, **config))


def test_an_adapter_of_another_model_is_no_adapter_of_this_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no adapter of llama-3\.1-8b") as error:
        served(LoraAsked(folder=str(folder(tmp_path, {"q": 16, "v": 16}, layers=28))))
    assert "5,963,776 parameters, its config promises 6,815,744" in error.value.render()


def test_a_folder_without_its_files(tmp_path: Path) -> None:
    for where in (tmp_path / "none", tmp_path):
        with pytest.raises(InputFileError):
            read_adapter(where)
    (folder(tmp_path, {"q": 16}) / "adapter_model.safetensors").unlink()
    with pytest.raises(InferplanError):
        read_adapter(tmp_path)


def test_what_is_emitted_is_what_was_modelled(tmp_path: Path) -> None:
    asked = Request(model="llama-3.1-8b", gpu="h100-sxm", lora=LoraAsked(rank=16, slots=4, modules=("q", "v")))
    words = command(launch(asked, 4096))
    at = words.index("--enable-lora")
    assert words[at : at + 8] == [
        *("--enable-lora", "--max-loras", "4", "--max-lora-rank", "16"),
        *("--lora-target-modules", "q_proj", "v_proj"),
    ]
    stored = replace(asked, lora=LoraAsked(folder=str(folder(tmp_path, {"q": 64, "down": 64}))))
    words = command(launch(stored, 4096))
    assert words[words.index("--max-lora-rank") :][:5] == [
        *("--max-lora-rank", "64", "--lora-target-modules", "q_proj", "down_proj")
    ]
    with pytest.raises(UsageError, match="--lora-rank 32"):
        command(launch(replace(asked, lora=LoraAsked(rank=24)), 4096))
    with pytest.raises(UsageError, match=r"vllm@0\.20"):
        command(launch(replace(asked, engine="vllm@0.18"), 4096))
    with pytest.raises(UsageError, match="adapters in sglang are not supported"):
        command(launch(replace(asked, engine="sglang"), 4096))


@for_each("gpu", ["h100-sxm", "l4"])
def test_operators_of_an_adapter_are_explained(gpu: str) -> None:
    explainer = Explainer(request=Request(model="llama-3.1-8b", gpu=gpu, lora=SEVEN), load=StaticLoad(batch=8.0))
    found_names = [name for name in explainer.names() if "lora" in name]
    assert len(found_names) == 16  # shrink and expand of four projections, in both phases
    for name in found_names[:2]:
        found = explainer.explain(name)
        phase = explainer.phases[name.partition(".")[0]]
        assert found.value == pytest.approx(float(phase.by_operator()[name.partition(".")[2]]))
    assert explainer.explain("memory.adapters").value == 8 * ADAPTER * 2
