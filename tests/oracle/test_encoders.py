"""Encoders, and decoders that embed or classify, against every class that transformers builds of them on meta."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import SpecError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.models.huggingface import import_config
from inferplan.models.huggingface.families import encoders
from tests.cases import for_each
from tests.oracle.zoo import sample

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 32, "dim": 32, "emb_dim": 32, "num_attention_heads": 4, "n_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 5, "n_layers": 5, "head_dim": 8, "intermediate_size": 48, "hidden_dim": 48, "vocab_size": 100,
    "max_position_embeddings": 40, "type_vocab_size": 3, "embedding_size": 24, "input_embedding_size": 24,
    "output_embedding_size": 56, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1, "cls_token_id": 1,
    "sep_token_id": 1,
}  # fmt: skip
SWITCHES = (
    "attention_bias",
    "mlp_bias",
    "norm_bias",
    "classifier_bias",
    "decoder_bias",
    "use_task_id",
    "tie_word_embeddings",
)
NAMES = [name for name in (*encoders.FAMILIES, *encoders.ALIASES) if name != "new"]


def varied(family: str, draw: random.Random) -> dict[str, Any]:
    """Fields of a small model of a family, switches at random."""
    known = transformers.CONFIG_MAPPING[family]().to_dict()
    fields = {name: value for name, value in SMALL.items() if known.get(name) is not None or name == "hidden_size"}
    if "hidden_size" not in known:
        fields.pop("hidden_size")
    switched = [name for name in SWITCHES if name in known and draw.random() < 0.5]
    fields |= {name: not known[name] for name in switched}
    further = {
        "albert": {"num_hidden_groups": draw.choice([1, 5])},
    }
    return fields | further.get(family, {})


def classes(config: Any) -> Iterator[type]:
    """Every class that the module of a config has for it."""
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    for name, found in vars(module).items():
        ends = re.search(r"(Model|For[A-Z]\w+|Encoder|Decoder)$", name) and "PreTrained" not in name
        if not ends or not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
            continue
        if found.__module__ == module.__name__ and isinstance(config, found.config_class or type(config)):
            yield found


@for_each("seed", [None, 0, 1, 2])
@for_each("family", sample(NAMES))
def test_every_class_of_an_encoder_is_exact_or_refused_by_name(family: str, seed: int | None):
    fields = {} if seed is None else varied(family, random.Random(f"{family}{seed}"))
    exact = 0
    for made in classes(transformers.CONFIG_MAPPING[family](**fields)):
        decodes = re.search(r"ForCausalLM|[a-z]LMHeadModel|Decoder$", made.__name__) and "With" not in made.__name__
        labels = 2 if re.search("Question|Next|PreTraining", made.__name__) else 3
        config = transformers.CONFIG_MAPPING[family](**fields | ({"is_decoder": True} if decodes else {}))
        config.num_labels = labels
        with torch.device("meta"):
            built = made(config)
        built.tie_weights()
        expected = sum(parameter.numel() for parameter in built.parameters())
        try:
            found = import_config(config.to_dict() | {"architectures": [made.__name__]}, family, "test").model
        except SpecError as error:
            assert made.__name__ in str(error)
            continue
        assert found.parameters["total"] + found.tower_parameters == expected, made.__name__
        assert found.encodes is not bool(decodes)
        assert bool(found.kv_elements_per_token) is bool(decodes)
        exact += 1
    assert exact >= (1 if family == "clip_text_model" else 2)  # towers have one class


TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
TINY |= {"intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64, "pad_token_id": 0}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@for_each("end", ["Model", "ForSequenceClassification", "ForTokenClassification", "ForCausalLM"])
@for_each(
    ("family", "name"),
    [("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"), ("qwen3_moe", "Qwen3Moe"),
     ("gemma2", "Gemma2"), ("mixtral", "Mixtral"), ("phi3", "Phi3"), ("glm4", "Glm4")],
)  # fmt: skip
def test_the_class_of_a_decoder_decides_its_head(family: str, name: str, end: str):
    made = getattr(transformers, f"{name}{end}", None)
    if made is None:
        pytest.skip("transformers has no such class")
    fields = TINY | (EXPERTS if "m" in family[-4:] and family in ("qwen3_moe", "mixtral") else {})
    config = transformers.CONFIG_MAPPING[family](**fields)
    config.num_labels = 5
    with torch.device("meta"):
        built = made(config)
    built.tie_weights()
    found = import_config(config.to_dict() | {"architectures": [made.__name__]}, family, "test").model
    assert found.parameters["total"] == sum(parameter.numel() for parameter in built.parameters())
    assert found.encodes is (end != "ForCausalLM")


RELATIVE = {"relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm"}


@for_each(("kinds", "shared"), [(["c2p"], False), (["p2c", "c2p"], False), (["p2c", "c2p"], True)])
def test_attention_with_terms_of_position(kinds: list[str], shared: bool):
    """Parameters and FLOP of DeBERTa-v2 as its class runs it on two sequences of 24 tokens."""
    from torch.utils.flop_counter import FlopCounterMode

    fields = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    fields |= {"vocab_size": 99, "max_position_embeddings": 40, "position_biased_input": False}
    config = transformers.DebertaV2Config(**fields, **RELATIVE, pos_att_type=kinds, share_att_key=shared)
    built = transformers.DebertaV2Model(config).eval()
    found = import_config(config.to_dict() | {"architectures": ["DebertaV2Model"]}, "deberta", "test").model
    assert found.parameters["total"] == sum(parameter.numel() for parameter in built.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(input_ids=torch.ones(2, 24, dtype=torch.long))
    deployment = assemble(Request(model="deberta", gpu="h100-sxm"), model_loader=lambda _: found)
    costs = estimate(deployment, StaticLoad(batch=2.0, prompt=24.0)).prefill.costs
    ours = sum(cost.op.work().flop * cost.op.count for cost in costs if cost.op.kind in ("matmul", "attention"))
    assert ours == counter.get_total_flops()


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_reranker_on_llama_by_hand():
    """8,030,261,248 less the head of 128256 rows, and a row of 4096 for its one label."""
    config = LLAMA | {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    model = import_config(config, "reranker", "test").model
    assert model.parameters["total"] == 8_030_261_248 - 128256 * 4096 + 4096 == 7_504_928_768


@for_each("name", ["LlamaForSomething", "MistralModel", "LlamaWithTwoHeads"])
def test_a_class_of_another_head_is_refused_by_name(name: str):
    with pytest.raises(SpecError, match=name):
        import_config(LLAMA | {"architectures": [name]}, "x", "test")
