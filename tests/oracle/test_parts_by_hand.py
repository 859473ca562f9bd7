"""Families with a mechanism of their own: parts by hand, and what of them is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import SpecError
from inferplan.estimate.graph import build
from inferplan.models.huggingface import import_config
from inferplan.models.prediction import prediction_model
from inferplan.models.spec import ModelSpec
from inferplan.work.ops import GroupedMatmul, Matmul
from inferplan.work.step import prefill

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.cases import for_each  # noqa: E402
from tests.oracle.built import config_of, kinds  # noqa: E402


def imported(name: str, **fields: Any) -> ModelSpec:
    said = config_of(name, fields).to_dict() | {"architectures": [kinds()[name].architecture]}
    return import_config(json.loads(json.dumps(said, default=str)), name, "test").model


def test_the_prediction_module_of_deepseek_v4_by_hand() -> None:
    """MTPBlock of DeepSeek's inference/model.py: a layer with a window alone, two projections of the width, three norms
    and what joins the four streams."""
    model = imported("deepseek_v4")
    d, heads, size, low, groups = 4096, 64, 512, 1024, 8
    attention = d * low + low + heads * size * low + d * size + size
    attention += groups * 1024 * (heads * size // groups) + groups * 1024 * d + heads
    experts = 256 * d + 256 * 3 * d * 2048 + 3 * d * 2048
    streams = 2 * (24 * 4 * d + 24 + 3)
    outside = 2 * d * d + 3 * d + 4 * 4 * d + 4 + 1
    assert model.mtp_parameters == attention + experts + streams + 2 * d + outside == 6_610_048_635
    assert prediction_model(model).parameters["total"] == model.mtp_parameters


def test_zaya_keeps_the_inputs_of_its_convolutions_and_half_a_value() -> None:
    """Two inputs of 1,280 channels and 128 of the last value, in each of 40 layers; keys and values beside."""
    model = imported("zaya")
    assert model.state_elements_per_sequence == 40 * (2 * 1280 + 128)
    assert model.kv_elements_per_token == 40 * 2 * 2 * 128


def test_a_table_of_ngrams_has_primes_for_rows() -> None:
    """2 heads of an n-gram order, beyond 100: 101 + 103 rows, padded to 208; the next table has 107 + 109."""
    few: dict[str, Any] = {"ngram_size": 2, "heads_per_ngram": 2, "ngram_vocab_size_base": 100, "eos_token_id": 1}
    few |= {"make_ngram_vocab_size_divisible_by": 8, "ple_layer_ids": [1, 2], "ple_embed_dim": 64}
    model = imported("qwen4_exp_text", num_hidden_layers=4, **few)
    tables = [weight.shape for weight, _ in model.weights() if weight.name == "ngrams"]
    assert tables == [(208, 32), (216, 32)]


@for_each(
    ("name", "fields", "said"),
    [
        ("gemma4_assistant", {"text_config": None}, "text_config"),
        ("zaya", {"head_dim": 127, "num_key_value_heads": 1}, "head_dim"),
    ],
)
def test_what_is_not_understood_is_named(name: str, fields: dict[str, Any], said: str) -> None:
    config = json.loads(json.dumps(config_of(name).to_dict(), default=str))
    for key, value in fields.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    with pytest.raises(SpecError, match=said):
        import_config(config, name, "test")


SMALL = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 3}
LATE, PADDED = 2 * 2 * 64 * 16 * 3, 2 * 2 * 64 * 99
"""Zaya's class projects a zero for what is ahead of the first token; every class gives logits of all tokens."""


@for_each(
    ("name", "fields", "ahead", "extra", "left"),
    [
        (
            "zaya",
            {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4}
            | {"moe_intermediate_size": 24, "router_hidden_size": 8},
            *(0, LATE, ("ffn.expert", "stream.conv")),
        ),
    ],
)
def test_matrices_do_the_work_of_their_class(
    name: str, fields: dict[str, Any], ahead: int, extra: int, left: tuple[str, ...]
) -> None:
    """FLOP of matrices as torch counts them where the class reads two sequences of 12 tokens.

    ahead: tokens of the model's own. extra: what the class does and we do not. left: grouped matmuls, which torch's
    counter does not know, and convolutions.
    """
    from torch.utils.flop_counter import FlopCounterMode

    config, kind = transformers.CONFIG_MAPPING[name](**SMALL | fields), kinds()[name]
    made = getattr(transformers, kind.architecture)._from_config(config, attn_implementation="eager").float().eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        made(input_ids=torch.arange(3, 27).view(2, 12))
    counted = counter.get_flop_counts()["Global"]
    theirs = sum(counted.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    said = json.loads(json.dumps(config.to_dict() | {"architectures": [kind.architecture]}, default=str))
    own = import_config(said, name, "test").model
    deployment = assemble(Request(model=name, gpu="h100-sxm", ideal=True), model_loader=lambda _: own)
    ops = [op for stage in build(deployment, prefill(2.0, 12.0 + ahead)) for op in stage.ops]
    matrices = [op for op in ops if isinstance(op, (Matmul, GroupedMatmul)) and not op.name.startswith(left or ("-",))]
    mine = sum(float(op.work().flop * op.count) for op in matrices)
    assert mine + extra + 11 * PADDED == theirs
