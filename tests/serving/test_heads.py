"""Heads that draft from a model's hidden states: EAGLE-3, block drafts, and prediction modules beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferplan.answers.drafting import Drafting
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.drafts import draft_alone, head_beside
from inferplan.catalog.files import load_model
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.memory import Footprint
from inferplan.models.prediction import draft_models, head_models
from inferplan.models.spec import DraftHead, ModelSpec
from inferplan.serving.options import Options
from inferplan.serving.rounds import Decodes, Round
from inferplan.serving.simulator import draft_times, simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.serving.step_times import Reach, step_times
from inferplan.serving.techniques.speculation import Speculation, prompt_with_drafts, speculate
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.work.ops import Matmul
from inferplan.work.parallel import Parallelism
from inferplan.work.step import decode
from tests.cases import for_each

LAYER: dict[str, Any] = {
    "mixer": {"kind": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128},
    "ffn": {"kind": "mlp", "d_ff": 14336},
}
EAGLE3: dict[str, Any] = {
    "name": "eagle3",
    "source": "https://huggingface.co/yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "features": 3,
    "vocab": 32000,
    "layers": [{**LAYER, "mixer": {**LAYER["mixer"], "input_scale": 2}}],
}
BLOCK: dict[str, Any] = {
    "name": "dflash",
    "source": "none: a shape to compute by hand",
    "features": 5,
    "own_head": False,
    "block": True,
    "layers": [{**LAYER, "repeat": 2}],
}


def test_published_parameters_of_a_head() -> None:
    """The card of a head of Qwen3-4B with SpecForge's shape (heads of 80) has 202,700,416, of which the two maps
    between its 32,000 words and the model's 151,936 are no parameters."""
    layer = {
        "mixer": {"kind": "attention", "heads": 32, "kv_heads": 8, "head_dim": 80, "input_scale": 2},
        "ffn": {"kind": "mlp", "d_ff": 9728},
    }
    head = DraftHead.model_validate({**EAGLE3, "layers": [layer]})
    whole = head_models(load_model("qwen3-4b"), head).whole
    assert whole.parameters["total"] == 202_700_416 - 32_000 - 151_936


@for_each(
    "model, published",
    [  # by hand from the configs of Tencent/AngelSlim: projection of three states, attention over twice the width,
        # three matrices, 32,000 words, four norms
        ("qwen3-8b", 3 * 4096**2 + 8192 * (4096 + 2048) + 4096**2 + 3 * 4096 * 12288 + 32000 * 4096 + 4 * 4096),
        ("qwen3-32b", 3 * 5120**2 + 10240 * (8192 + 2048) + 8192 * 5120 + 3 * 5120 * 25600 + 32000 * 5120 + 4 * 5120),
    ],
)
def test_heads_on_file(model: str, published: int) -> None:
    found = draft_models(load_model(model), "eagle3")
    assert found is not None
    assert found.whole.parameters["total"] == published


def llama() -> ModelSpec:
    """Llama-3.1-8B with both heads in its file."""
    return ModelSpec.model_validate({**load_model("llama-3.1-8b").to_dict(), "drafts": [EAGLE3, BLOCK]})


def drafting(
    path: Path, head: dict[str, Any], length: int = 3, engine: str = "vllm", **parallel: int
) -> tuple[Deployment, Speculation]:
    """Llama-3.1-8B on H100s and a head in a file of its own beside it."""
    file = path / "head.yaml"
    file.write_text(yaml.safe_dump(head), encoding="utf-8")
    request = Request(model="llama-3.1-8b", gpu="h100-sxm", engine=engine, parallel=Parallelism(**parallel))
    return assemble(request), Drafting(model=str(file), length=length, acceptance=0.7).on(request, request.parallel)


def multiplied(model: Deployment) -> dict[str, float]:
    """Elements of the matrices that a decode of one token multiplies, by operator."""
    found: dict[str, float] = {}
    for op in (op for stage in build(model, decode(1.0, 100.0)) for op in stage.ops):
        if isinstance(op, Matmul):
            found[op.name] = found.get(op.name, 0.0) + float(op.k * op.n * op.count)
    return found


def test_the_size_of_an_eagle_3_head() -> None:
    """Of Llama-3.1-8B, by hand, and 811 MiB as published (sgl-project/SpecForge's llama3-8B-eagle3: one layer, 32,000
    words, beside tables of token ids that are no parameters).
    """
    found = draft_models(llama(), "eagle3")
    assert found is not None
    d = 4096
    fuse, head = 3 * d * d, 32000 * d
    layer = 2 * d * (4096 + 2 * 1024) + 4096 * d + 3 * d * 14336
    assert found.whole.parameters["total"] == fuse + layer + head + 4 * d == 424_689_664
    ids = 32000 * 8 + 128256
    assert (2 * found.whole.parameters["total"] + ids) / 2**20 == pytest.approx(811, rel=1e-3)
    assert found.whole.parameters["total"] - found.later.parameters["total"] == fuse
    assert found.whole.kv_elements_per_token * 32 == load_model("llama-3.1-8b").kv_elements_per_token


def test_what_a_pass_multiplies(tmp_path: Path) -> None:
    """The three hidden states are fused once for each token of the model; q, k and v read both of two states."""
    request = Request(model="llama-3.1-8b", gpu="h100-sxm")
    model = llama()
    drafts = draft_alone(request, "eagle3", lambda _: model)
    first, later = multiplied(drafts.first), multiplied(drafts.later)
    assert first["joined"] == 3 * 4096 * 4096
    assert "joined" not in later
    assert first["attn.qkv"] == later["attn.qkv"] == 2 * 4096 * (4096 + 2 * 1024)
    assert first["head"] == 32000 * 4096


def test_a_block_draft_keeps_features_and_runs_once(tmp_path: Path) -> None:
    """Of a prompt five hidden states are fused, and keys and values of two layers made of them: nothing else."""
    request = Request(model="llama-3.1-8b", gpu="h100-sxm")
    model = llama()
    drafts = draft_alone(request, "dflash", lambda _: model)
    kept = 2 * 2 * 8 * 128
    assert sum(multiplied(drafts.first).values()) == 5 * 4096 * 4096 + 4096 * kept
    assert sum(multiplied(drafts.later).values()) == pytest.approx(
        2 * (4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096
    )
    served, few = drafting(tmp_path, BLOCK, 2)
    _, many = drafting(tmp_path, BLOCK, 6)
    assert [made.times for made in many.passes] == [1, 1]
    assert [made.width for made in many.passes] == [7, 7]
    costs = [float(speculate(served, one, 1.0, 1000.0).draft) for one in (few, many)]
    assert costs[1] == pytest.approx(costs[0], rel=0.05)  # weights are read once, whatever the block
    small = Speculation(length=2, acceptance=0.7, draft=few.later, later=few.later)
    context, whole = (float(prompt_with_drafts(served, one, 1.0, 8192.0).total) for one in (few, small))
    assert context < whole


@for_each("head", [EAGLE3, BLOCK], ids=["eagle3", "block"])
@for_each(("engine", "pp"), [("vllm", 1), ("vllm", 2), ("trtllm", 1)])
def test_one_price_of_a_head(tmp_path: Path, head: dict[str, Any], engine: str, pp: int) -> None:
    """Rounds and the simulator's tables on every station: of a pipeline the head is beside the last stage.

    The host launches every pass but under TensorRT-LLM, which has them all in the graph of the step.
    """
    served, speculation = drafting(tmp_path, head, engine=engine, pp=pp)
    assert speculation.draft is not None and speculation.draft.parallel.pp == 1
    decodes = Decodes(4.0 * pp, 640.0)
    drafted, verified = (
        Round(decodes=decodes, speculation=one).price(served)
        for one in (speculation, Speculation(length=speculation.length))
    )
    reach = Reach(sequences=8, tokens=2048, context=1024)
    times = step_times(served, reach, speculation.width)
    times.drafts = draft_times(speculation, reach)
    assert times.stations(4, 640.0) == pytest.approx([float(seconds) for seconds in drafted.fullest], rel=1e-4)
    added = [float(after - before) for after, before in zip(drafted.fullest, verified.fullest)]
    assert added[-1] > 0 and not any(added[1:-1])
    assert (added[0] > 0) == (engine == "vllm")


def test_simulation_and_steady_state_of_a_head(tmp_path: Path) -> None:
    served, speculation = drafting(tmp_path, EAGLE3)
    lengths = {"prompt": Lengths(mean=512), "output": Lengths(mean=256)}
    traffic = Traffic(arrivals=ClosedLoop(concurrency=4), requests_count=60, **lengths)
    run = simulate(served, traffic, options=Options(speculation=speculation))
    state = steady_state(served, UserLoad(concurrency=4.0, prompt=512.0, output=256.0), speculation=speculation)
    assert float(run.tpot.mean()) == pytest.approx(float(state.tpot), rel=0.05)


def test_a_head_takes_memory(tmp_path: Path) -> None:
    """Its 849 MB and 4,096 bytes a token, which is 1/32 of the model's."""
    served, speculation = drafting(tmp_path, EAGLE3)
    alone = Footprint(deployment=served, batch=1.0, prompt=100.0, context=100.0)
    beside = replace(alone, draft=speculation.draft)
    assert beside.draft_weights == 2 * 424_689_664
    assert beside.kv_per_token - alone.kv_per_token == 4096
    assert alone.kv_per_token == 32 * 4096


def test_formats_of_drafts() -> None:
    """A head keeps those it is stored in, its cache the model's; a module is fp8 with the model, and bf16 in NVFP4."""
    model = llama()
    fp8 = Request(model="llama-3.1-8b", gpu="h100-sxm", quant="fp8", roles=(("kv", "fp8"),))
    assert draft_alone(fp8, "eagle3", lambda _: model).whole.precision.describe() == "kv fp8"
    for quant, held in ((None, "fp8-block"), ("nvfp4", "bf16")):
        module = draft_alone(Request(model="deepseek-v3", gpu="b200-sxm", quant=quant), "mtp").whole
        assert module.precision.experts.name == module.precision.weights.name == held
    stored = draft_alone(Request(model="glm-5-nvfp4", gpu="b200-sxm"), "mtp").whole
    assert stored.precision.experts.name == "bf16" and not stored.precision.exceptions


@for_each(
    ("change", "words"),
    [
        ({"name": "mtp"}, "a meaning of its own"),
        ({"own_embedding": True}, "a reduced vocabulary"),
        ({"block": True, "features": 0}, "attends to features"),
    ],
)
def test_heads_that_cannot_be(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DraftHead.model_validate({**EAGLE3, **change})


def test_a_block_draft_needs_attention() -> None:
    layers: Sequence[dict[str, Any]] = [{"ffn": {"kind": "mlp", "d_ff": 64}}]
    with pytest.raises(UsageError, match="a layer without attention"):
        head_models(load_model("llama-3.1-8b"), DraftHead.model_validate({**BLOCK, "layers": layers}))


def test_a_model_with_heads_writes_its_file(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(yaml.safe_dump(llama().to_dict()), encoding="utf-8")
    assert load_model(str(path)).drafts == llama().drafts


@for_each("quant", [None, "nvfp4"])
def test_a_head_is_the_same_beside_a_request_and_beside_a_deployment(quant: str | None) -> None:
    request = Request(model="deepseek-r1", gpu="b200-hgx", engine="trtllm", quant=quant)
    asked, found = draft_alone(request, "mtp"), head_beside(assemble(request), "mtp")
    assert found is not None
    for one, other in zip(asked[:3], found[:3]):
        assert (one.model.name, one.precision) == (other.model.name, other.precision)
        assert price(one) == pytest.approx(price(other))
    assert head_beside(assemble(request), "eagle3") is None


def price(draft: Deployment) -> float:
    """Seconds of a pass over 64 tokens of as many requests."""
    return float(Round(decodes=Decodes(64.0, 1000.0)).price(draft).total)
