"""DeepSeek-V4's prediction module, which projects the embedding and each of four residual streams: against the tensors
of its files and the code of vLLM (``deepseek_v4/nvidia/mtp.py``) and SGLang (``deepseek_v4_nextn.py``)."""

from __future__ import annotations

import pytest

from inferplan.catalog.acceptance import acceptance_for
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.drafts import draft_alone, head_beside
from inferplan.catalog.files import load_model
from inferplan.errors import UsageError
from inferplan.estimate.graph import build
from inferplan.estimate.stage_memory import StageMemory
from inferplan.models.prediction import prediction_model
from inferplan.work.ops import Matmul, Norm
from inferplan.work.parallel import Parallelism
from inferplan.work.step import decode
from tests.cases import for_each

D = 7168
MODULE = {
    "q_a": 1536 * D + 1536,
    "q_b": 65536 * 1536,
    "kv": 512 * D + 512,
    "o": 16384 * 4096 + D * 16384,
    "sinks": 128,
    "experts": 384 * 3 * 3072 * D,
    "router": 384 * D,
    "shared": 3 * 3072 * D,
    "projections": 2 * D * D,
    "norms": 5 * D,
    "hyper-connections": 2 * (24 * 4 * D + 24 + 3),
    "join": 4 * 4 * D + 4 + 1,
}
"""``mtp.0.*`` of deepseek-ai/DeepSeek-V4-Pro without scales and the router's correction, from its tensors as
https://github.com/gogongxt/python/blob/cbff706dc959707a9944e38e8164783122dfa32a/scripts/models/deepseek_v4_pro.md
prints them."""


def test_the_module_is_that_of_the_files() -> None:
    model = load_model("deepseek-v4-pro")
    assert model.mtp_parameters == sum(MODULE.values()) == prediction_model(model).parameters["total"]


@for_each("name, width", [("deepseek-v4-pro", 7168), ("deepseek-v4-flash", 4096)])
def test_every_stream_is_a_row_of_its_projection(name: str, width: int) -> None:
    """8 tokens: 8 rows of the embedding's matrix, 32 of the streams', both fp8 as the files have them."""
    draft = draft_alone(Request(model=name, gpu="b200-hgx"), "mtp")
    (stage,) = build(draft.first, decode(8.0, 1000.0))
    projections = {op.name: op for op in stage.ops if isinstance(op, Matmul) and op.name.startswith("mtp.")}
    assert {key: op.m for key, op in projections.items()} == {"mtp.e_proj": 8, "mtp.h_proj": 32}
    for op in projections.values():
        assert (op.k, op.n, op.weight.name, op.input.name) == (width, width, "fp8-block", "fp8")
    rows = [op.tokens for op in stage.ops if isinstance(op, Norm) and op.name == "input_norm"]
    assert rows == [8, 32]
    (added,) = (op for op in stage.ops if op.name == "mtp.join")
    assert added.work().bytes == 2 * 8 * width * (4 + 1 + 4)  # four streams and the embedding in, four streams out
    assert any(op.name == "hyper_head.mix" for op in stage.ops)
    assert draft.first.model.hyper_streams == 4


def test_the_module_attends_to_a_window_alone() -> None:
    """``COMPRESS_RATIO_NEXTN_LAYER = 0``: the last 128 keys of 512, whatever the context."""
    draft = draft_alone(Request(model="deepseek-v4-pro", gpu="b200-hgx", quant=None), "mtp").whole
    assert draft.model.kv_elements_per_token == 512 and draft.model.kv_elements_per_token_beyond_windows == 0
    assert draft.model.windows == [128]


def test_the_weights_of_a_rank_are_those_of_its_files() -> None:
    """12.6 GB of MXFP4 experts over 8 ranks; matrices of one byte: heads divided, projections and latents whole."""
    draft = draft_alone(Request(model="deepseek-v4-pro", gpu="b200-hgx"), "mtp").over(Parallelism(tp=8))
    experts = MODULE["experts"] * (0.5 + 1 / 32) / 8
    divided = (MODULE["q_b"] + MODULE["o"] + MODULE["shared"]) / 8
    whole = MODULE["q_a"] + MODULE["kv"] + MODULE["projections"]
    wide = 2 * (MODULE["router"] + MODULE["hyper-connections"] + MODULE["join"] + MODULE["norms"])
    layers = draft.whole.model.sequence
    found = StageMemory(deployment=draft.whole, layers=layers, start=0, first=True, last=True).weights
    assert found == pytest.approx(experts + divided + whole + wide, rel=1e-3)  # scales of blocks of 128 x 128


def test_nvfp4_releases_leave_the_module_as_deepseek_stores_it() -> None:
    """``ignore: mtp.*`` of nvidia/DeepSeek-V4-Pro-NVFP4."""
    request = Request(model="deepseek-v4-pro-nvfp4", gpu="b200-hgx")
    assert assemble(request).precision.experts.name == "nvfp4"
    beside = head_beside(assemble(request), "mtp")
    assert beside is not None
    for draft in (draft_alone(request, "mtp"), beside):
        found = draft.whole.precision
        assert (found.weights.name, found.experts.name, found.activations.name) == ("fp8-block", "mxfp4", "fp8")


def test_a_module_whose_streams_nobody_describes_has_no_time() -> None:
    model = load_model("deepseek-v4-pro")
    assert model.mtp is not None
    unknown = model.model_copy(update={"mtp": model.mtp.model_copy(update={"each_stream": False})})
    with pytest.raises(UsageError, match="prediction module is not known"):
        prediction_model(unknown)


def test_lengths_of_pro_are_those_of_its_nvfp4_release() -> None:
    lengths = [acceptance_for(name, "mtp", 2).length for name in ("deepseek-v4-pro", "deepseek-v4-pro-nvfp4")]
    assert lengths == [2.27, 2.27]  # InferenceX, thinking on
