"""Encoders, and decoders that embed or classify, against every class that transformers builds of them on meta."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import MissingFactError, SpecError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.models.huggingface import import_config
from inferplan.models.huggingface.families import encoders, mixing_encoders
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
NAMES = [*encoders.FAMILIES, *mixing_encoders.FAMILIES, *encoders.ALIASES]
NAMES = [name for name in NAMES if name not in ("new", "perceiver")]  # one class of Perceiver's reads text
TIED_ONE_WAY = ("rembert", "ultrabert", "esmc")
"""Whose output table is another one: refused where it is tied."""


def varied(family: str, draw: random.Random) -> dict[str, Any]:
    """Fields of a small model of a family, switches at random."""
    known = transformers.CONFIG_MAPPING[family](**({"vocab_size": 33} if family == "esm" else {})).to_dict()
    fields = {name: value for name, value in SMALL.items() if known.get(name) is not None or name == "hidden_size"}
    if "hidden_size" not in known:
        fields.pop("hidden_size")
    switched = [name for name in SWITCHES if name in known and draw.random() < 0.5]
    fields |= {name: not known[name] for name in switched if name[:3] != "tie" or family not in TIED_ONE_WAY}
    further = {
        "albert": {"num_hidden_groups": draw.choice([1, 5])},
        "esm": {"position_embedding_type": draw.choice(["absolute", "rotary"]), "emb_layer_norm_before": True},
        "xlm": {"n_langs": 3},
        "esmc": {"num_key_value_heads": 4},
        "luke": {"entity_vocab_size": 70, "entity_emb_size": draw.choice([16, 32])},
        "longformer": {"attention_window": [8, 8, 16, 4, 2]},
        "xmod": {"languages": ["en", "de", "fr"], "adapter_layer_norm": draw.random() < 0.5},
        "squeezebert": {"embedding_size": 32, "output_groups": draw.choice([1, 8])},
        "reformer": {"axial_pos_embds": draw.random() < 0.5, "axial_pos_shape": [5, 8], "axial_pos_embds_dim": [8, 24]},
        "mobilebert": {"intra_bottleneck_size": 16, "true_hidden_size": 16, "trigram_input": draw.random() < 0.5}
        | {"classifier_activation": draw.random() < 0.5},
        "convbert": {"num_groups": draw.choice([1, 2])},
        "nystromformer": {"num_landmarks": draw.choice([8, 64])},
        "neomme": {"embedding_rank": 24, "head_dim": 16},
        "yoso": {"conv_window": 5, "use_expectation": draw.random() < 0.5},
        "deberta": {"relative_attention": True, "pos_att_type": draw.choice([["c2p"], ["p2c"], ["c2p", "p2c"]])},
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
    fields |= {"vocab_size": 33} if family == "esm" else {}
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
    assert exact >= (1 if family in ("clip_text_model", "tipsv2_text_model") else 2)  # towers have one class


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


@for_each(("tokens", "kinds"), [(12, ["c2p"]), (40, ["c2p", "p2c"])])
def test_the_first_deberta_projects_the_distances_of_the_sequence(tokens: int, kinds: list[str]):
    """FLOP of its class on two sequences, shorter and longer than its 20 distances."""
    from torch.utils.flop_counter import FlopCounterMode

    fields = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    fields |= {"vocab_size": 99, "max_position_embeddings": 60, "max_relative_positions": 20}
    config = transformers.DebertaConfig(**fields, relative_attention=True, pos_att_type=kinds)
    built = transformers.DebertaModel(config).eval().requires_grad_(False)
    found = import_config(config.to_dict() | {"architectures": ["DebertaModel"]}, "deberta", "test").model
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(input_ids=torch.ones(2, tokens, dtype=torch.long))
    deployment = assemble(Request(model="deberta", gpu="h100-sxm"), model_loader=lambda _: found)
    costs = estimate(deployment, StaticLoad(batch=2.0, prompt=float(tokens))).prefill.costs
    ours = sum(cost.op.work().flop * cost.op.count for cost in costs if cost.op.kind in ("matmul", "attention"))
    assert ours == counter.get_total_flops()


SMALL_BERT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
SMALL_BERT |= {"vocab_size": 99, "max_position_embeddings": 60}


@for_each(
    ("name", "fields"),
    [
        ("SqueezeBert", {"embedding_size": 32, "output_groups": 2}),
        ("MobileBert", {"embedding_size": 24, "intra_bottleneck_size": 16}),
        ("MobileBert", {"embedding_size": 24, "intra_bottleneck_size": 16, "use_bottleneck_attention": True}),
        ("MobileBert", {"embedding_size": 24, "use_bottleneck": False, "trigram_input": False}),
        ("ConvBert", {"embedding_size": 32}),
        ("ConvBert", {"num_groups": 2, "embedding_size": 24}),
        ("Nystromformer", {"num_landmarks": 24, "segment_means_seq_len": 24}),
        ("Nystromformer", {"num_landmarks": 6, "segment_means_seq_len": 24}),
        ("Yoso", {"use_expectation": True, "conv_window": 5}),
        ("Perceiver", {"d_model": 32, "d_latents": 64, "num_latents": 10, "num_self_attends_per_block": 3}),
        (
            "Perceiver",
            {"d_model": 32, "d_latents": 64, "num_latents": 10, "num_blocks": 3, "qk_channels": 32}
            | {"v_channels": 64, "num_self_attends_per_block": 2, "self_attention_widening_factor": 2},
        ),
        ("NeoMME", {"embedding_rank": 24, "head_dim": 16, "num_key_value_heads": 2}),
    ],
)
def test_layers_without_a_kind_do_the_work_of_their_class(name: str, fields: dict[str, Any]):
    """FLOP of products, attention and convolutions as the class runs them on two sequences of 24 tokens."""
    from torch.utils.flop_counter import FlopCounterMode

    end = "ForMaskedLM" if name == "Perceiver" else "Model"
    given = (
        {key: SMALL_BERT[key] for key in ("vocab_size", "max_position_embeddings")} if end != "Model" else SMALL_BERT
    )
    config = getattr(transformers, f"{name}Config")(**given | fields)
    config._attn_implementation = "eager"
    built = getattr(transformers, f"{name}{end}")(config).eval().requires_grad_(False)
    found = import_config(config.to_dict() | {"architectures": [f"{name}{end}"]}, name, "test").model
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(input_ids=torch.ones(2, 24, dtype=torch.long))
    deployment = assemble(Request(model=name, gpu="h100-sxm"), model_loader=lambda _: found)
    costs = estimate(deployment, StaticLoad(batch=2.0, prompt=24.0)).prefill.costs
    multiplied = [c for c in costs if c.op.kind in ("matmul", "attention") or re.search("conv|depth", c.op.name)]
    assert sum(cost.op.work().flop * cost.op.count for cost in multiplied) == counter.get_total_flops()


@for_each(
    ("name", "fields"),
    [("fnet", {}), ("mra", {}), ("funnel", {}), ("reformer", {}), ("yoso", {"use_expectation": False})],
)
def test_what_no_operator_does_has_memory_and_no_time(name: str, fields: dict[str, Any]):
    found = import_config(transformers.CONFIG_MAPPING[name](**fields).to_dict(), name, "test").model
    deployment = assemble(Request(model=name, gpu="h100-sxm"), model_loader=lambda _: found)
    with pytest.raises(MissingFactError, match="time of this model is not known"):
        assert estimate(deployment, StaticLoad(batch=2.0, prompt=24.0)).prefill


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
