"""DeepSeek-V4 and MiniMax-M3 against the classes of transformers: parameters, what a cache keeps, pairs, matmuls."""

from __future__ import annotations

from itertools import chain
from random import Random
from typing import Any

import pytest

from inferplan.errors import SpecError
from inferplan.models.huggingface import model_from_config
from inferplan.models.layers import LayerContext
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import Precision, find_format
from inferplan.work.ops import Attention, IndexSelect, Matmul, Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment
from tests.cases import for_each
from tests.oracle.built import build, growth, kinds

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

V4 = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
M3 = ("full_attention", "minimax_m3_sparse")
SEEDS = range(20)


def deepseek_v4(seed: int) -> dict[str, Any]:
    """A small config of random sizes; every kind of layer, and both kinds of router."""
    of = Random(seed)
    count = of.randint(3, 6)
    groups, heads = of.choice([(1, 2), (2, 4), (4, 4), (2, 8)])
    head_dim = of.choice([32, 64])
    return {
        "vocab_size": of.randint(50, 90),
        "hidden_size": of.choice([32, 48, 64]),
        "moe_intermediate_size": of.choice([16, 24]),
        "num_hidden_layers": count,
        "num_attention_heads": heads,
        "head_dim": head_dim,
        "q_lora_rank": of.choice([16, 40]),
        "num_experts_per_tok": of.randint(1, 3),
        "n_routed_experts": of.randint(3, 6),
        "layer_types": [*V4, *(of.choice(V4) for _ in range(count - 3))],
        "mlp_layer_types": [of.choice(["hash_moe", "moe"]) for _ in range(count)],
        "compress_rates": {V4[1]: of.choice([2, 4, 8]), V4[2]: of.choice([16, 32])},
        "hc_mult": of.randint(2, 5),
        "sliding_window": of.choice([6, 8, 16]),
        "o_groups": groups,
        "o_lora_rank": of.choice([8, 24]),
        "index_n_heads": of.randint(1, 4),
        "index_head_dim": 16,
        "index_topk": of.choice([2, 6, 100]),
        "partial_rotary_factor": of.choice([8, 16]) / head_dim,
        "max_position_embeddings": 512,
        "tie_word_embeddings": of.random() < 0.3,
    }


def minimax_m3(seed: int) -> dict[str, Any]:
    of = Random(seed)
    count = of.randint(2, 5)
    kv = of.choice([1, 2, 4])
    return {
        "vocab_size": of.randint(50, 90),
        "hidden_size": of.choice([32, 48]),
        "intermediate_size": of.choice([16, 24]),
        "dense_intermediate_size": of.choice([40, 56]),
        "shared_intermediate_size": of.choice([8, 16]),
        "num_hidden_layers": count,
        "num_attention_heads": kv * of.choice([1, 2, 3]),
        "num_key_value_heads": kv,
        "head_dim": 16,
        "rotary_dim": 16,
        "num_experts_per_tok": of.randint(1, 2),
        "num_local_experts": of.randint(3, 5),
        "layer_types": [*M3, *(of.choice(M3) for _ in range(count - 2))],
        "mlp_layer_types": [of.choice(["sparse", "dense"]) for _ in range(count)],
        "index_n_heads": kv,
        "index_head_dim": 16,
        "index_block_size": of.choice([4, 8]),
        "index_topk_blocks": of.randint(1, 4),
        "max_position_embeddings": 512,
        "tie_word_embeddings": of.random() < 0.3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }


FAMILIES = {"deepseek_v4": deepseek_v4, "minimax_m3_vl_text": minimax_m3}


def built(family: str, fields: dict[str, Any], device: str = "meta"):
    config = transformers.CONFIG_MAPPING[family](**fields)
    config._attn_implementation = "eager"
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    return config, model


def imported(family: str, config) -> ModelSpec:
    return model_from_config(config.to_dict() | {"model_type": family}, family, "test")


def kept(cache) -> int:
    """Elements of all tensors that a cache of transformers holds, each once: DeepSeek-V4's key is its value too."""
    tensors = {}
    for layer in cache.layers:
        if torch.equal(layer.keys, layer.values):
            layer.values = layer.keys
        for value in vars(layer).values():
            for tensor in value.values() if isinstance(value, dict) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.dim() > 1:
                    tensors[id(tensor)] = tensor
    return sum(tensor.numel() for tensor in tensors.values())


@for_each("seed", SEEDS)
@for_each("family", FAMILIES)
def test_parameters_of_random_configs(family: str, seed: int):
    config, model = built(family, FAMILIES[family](seed))
    assert imported(family, config).parameters["total"] == sum(p.numel() for p in model.parameters())


@for_each("seed", SEEDS)
@for_each("family", FAMILIES)
def test_the_cache_after_a_prompt(family: str, seed: int):
    """One token short of a whole entry at every rate, where most waits; a window keeps one key fewer there."""
    config, model = built(family, FAMILIES[family](seed), "cpu")
    spec, tokens = imported(family, config), 95
    with torch.no_grad():
        cache = model(torch.arange(tokens)[None] % config.vocab_size, use_cache=True).past_key_values
    expected = 0.0
    for held, count in spec.caches():
        positions = held.mask.cached(float(tokens)) - (held.mask.kind == "window")
        expected += count * (held.per_token / held.rate * positions + held.state)
    assert kept(cache) == expected


@for_each("family", FAMILIES)
def test_the_growth_of_the_cache_beyond_windows(family: str):
    """Over a span of whole entries at every rate, token by token and in one piece."""
    config, model = built(family, FAMILIES[family](1), "cpu")
    ids = torch.arange(96)[None] % config.vocab_size
    with torch.no_grad():
        cache = model(ids[:, :64], use_cache=True).past_key_values
        before = kept(cache)
        for position in range(64, 96):
            cache = model(ids[:, position : position + 1], past_key_values=cache, use_cache=True).past_key_values
    assert kept(cache) - before == 32 * imported(family, config).kv_elements_per_token_beyond_windows


def context(d_model: int, *segments: Segment) -> LayerContext:
    bf16 = find_format("bf16")
    roles = ("weights", "activations", "kv", "experts", "embedding", "head", "base")
    precision = Precision(**dict.fromkeys(roles, bf16))
    return LayerContext(d_model=d_model, precision=precision, parallel=Parallelism(), segments=segments)


def mixer_ops(spec: ModelSpec, index: int, new: int, past: int) -> list[Op]:
    segment = Segment(batch=1.0, new=float(new), past=float(past))
    mixer = spec.sequence[index].mixer
    assert mixer is not None
    return list(mixer.ops(context(spec.d_model, segment)))


@for_each("seed", range(6))
@for_each("family", FAMILIES)
def test_matmuls_are_those_of_the_linear_modules(family: str, seed: int):
    """2 FLOP a token for every element of a linear module's weight; each module once."""
    config, model = built(family, FAMILIES[family](seed))
    spec = imported(family, config)
    for index, layer in enumerate(model.model.layers):
        weights = sum(m.weight.numel() for m in layer.self_attn.modules() if isinstance(m, torch.nn.Linear))
        flop = sum(op.work().flop for op in mixer_ops(spec, index, 7, 40) if isinstance(op, Matmul))
        assert flop == 2 * 7 * weights


@for_each("past", [0, 21, 64])
@for_each("seed", range(8))
def test_pairs_of_deepseek_v4_are_the_open_places_of_its_masks(seed: int, past: int):
    """The bias that the compressor gives the attention, and the window's mask, counted place by place."""
    config, model = built("deepseek_v4", deepseek_v4(seed), "cpu")
    spec, new = imported("deepseek_v4", config), 13
    places = {}
    for index, layer in enumerate(model.model.layers):
        if layer.self_attn.compressor is not None:
            hook = layer.self_attn.compressor.register_forward_hook(
                lambda module, args, out, index=index: places.__setitem__(index, out)
            )
            places[index] = hook
    with torch.no_grad():
        cache = model(torch.zeros(1, past, dtype=torch.long), use_cache=True).past_key_values if past else None
        model(torch.zeros(1, new, dtype=torch.long), past_key_values=cache, use_cache=True)
    window = sum(min(past + j, config.sliding_window) for j in range(1, new + 1))
    for index, kind in enumerate(config.layer_types):
        (core,) = [op for op in mixer_ops(spec, index, new, past) if isinstance(op, Attention)]
        seen = 0
        if kind != "sliding_attention":
            entries, bias = places[index]
            seen = entries.shape[2] * new if bias is None else int((bias == 0).sum())
        assert core.mask.pairs(float(new), float(past)) == window + seen


@for_each("past", [0, 21, 64])
@for_each("seed", range(8))
def test_pairs_of_minimax_m3_are_the_open_places_of_its_masks(seed: int, past: int):
    config, model = built("minimax_m3_vl_text", minimax_m3(seed), "cpu")
    spec, new = imported("minimax_m3_vl_text", config), 13
    for index, kind in enumerate(config.layer_types):
        if kind != "minimax_m3_sparse":
            continue
        indexer, device = model.model.layers[index].self_attn.indexer, torch.device("cpu")
        hidden = torch.randn(1, past + new, config.hidden_size)
        positions = torch.arange(past + new)[None]
        rotary = model.model.rotary_emb(hidden, positions)
        with torch.no_grad():
            chosen = indexer(hidden, rotary, None, positions)
            mask = indexer.build_block_mask(chosen, None, past + new, torch.float32, device, positions)
        opened = (mask[0, :, past:] == 0).sum(dim=(1, 2))
        (core,) = [op for op in mixer_ops(spec, index, new, past) if isinstance(op, Attention)]
        assert set(opened.tolist()) == {int(core.mask.pairs(float(new), float(past)))}


def test_scores_of_both_indexers_are_the_products_of_their_modules():
    """Every query head with every key that it may see: with a weighted sum of heads (V4), or without (M3)."""
    v4 = imported("deepseek_v4", built("deepseek_v4", deepseek_v4(2))[0])
    m3 = imported("minimax_m3_vl_text", built("minimax_m3_vl_text", minimax_m3(2))[0])
    new, past = 5, 40
    for spec, index, key in ((v4, 1, 17), (m3, 1, 16)):
        (select,) = [op for op in mixer_ops(spec, index, new, past) if isinstance(op, IndexSelect)]
        rate = spec.sequence[index].mixer.pool.rate if spec is v4 else 1  # type: ignore[union-attr]
        pairs = sum((past + j) // rate for j in range(1, new + 1))
        assert select.work().flop == 2 * pairs * spec.sequence[index].mixer.indexer.heads * key  # type: ignore[union-attr]


def test_released_spellings_say_the_same():
    """``compress_ratios``, rates and hash layers as DeepSeek's own config writes them; M3's nested table."""
    fields = deepseek_v4(3)
    rates = {4: V4[1], 128: V4[2], 0: V4[0]}
    of = {kind: rate for rate, kind in rates.items()}
    new = {k: v for k, v in fields.items() if k not in ("layer_types", "compress_rates", "mlp_layer_types")}
    old = new | {"compress_ratios": [of[kind] for kind in fields["layer_types"]], "num_hash_layers": 2}
    config, model = built("deepseek_v4", old)
    ours = model_from_config(old | DEFAULTS | {"model_type": "deepseek_v4"}, "x", "test")
    assert ours.parameters["total"] == sum(p.numel() for p in model.parameters())
    assert ours.layers == imported("deepseek_v4", config).layers
    fields = minimax_m3(3)
    flags = [int(kind == M3[1]) for kind in fields.pop("layer_types")]
    names = ("n_heads", "head_dim", "block_size", "topk_blocks")
    nested = dict(zip(("num_index_heads", "index_dim", "block_size", "topk_blocks"), names, strict=True))
    table = {f"sparse_{name}": fields.pop(f"index_{old}") for name, old in nested.items()}
    table |= {"sparse_attention_freq": flags, "sparse_local_block": 1, "use_sparse_attention": True}
    table |= {"sparse_disable_index_value": flags, "sparse_score_type": "max", "sparse_init_block": 0}
    fields |= {"sparse_attention_config": table, "moe_layer_freq": [0, *[1] * (len(flags) - 1)]}
    fields.pop("mlp_layer_types")
    config, model = built("minimax_m3_vl_text", dict(fields))
    beside = {"use_gemma_norm": True, "use_qk_norm": True, "qk_norm_type": "per_head", "n_shared_experts": 1}
    beside |= {"model_type": "minimax_m3", "use_routing_bias": True, "num_mtp_modules": 7}
    ours = model_from_config(fields | beside, "x", "test")
    assert ours.parameters["total"] == sum(p.numel() for p in model.parameters())
    assert ours.layers == imported("minimax_m3_vl_text", config).layers
    for field, other in (("use_sparse_attention", False), ("sparse_disable_index_value", [0] * len(flags))):
        with pytest.raises(SpecError, match=field):
            model_from_config(fields | beside | {"sparse_attention_config": table | {field: other}}, "x", "test")


def test_the_released_spelling_of_mimo_says_the_same():
    """Lists of 0 and 1, and a window that does not count the query, against what transformers makes of the file."""
    count = 12  # the class builds full attention in layers 0, 5 and 11 whatever the lists of the release say
    flags = [int(index not in (0, 5, 11)) for index in range(count)]
    fields = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": count}
    fields |= {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 12, "v_head_dim": 8}
    fields |= {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}
    fields |= {"sliding_window_size": 8, "max_position_embeddings": 512, "tie_word_embeddings": False}
    config, model = built("mimo_v2_flash", dict(fields))
    released = fields | {"hybrid_layer_pattern": flags, "moe_layer_freq": [0] + [1] * 11, "model_type": "mimo_v2_flash"}
    released |= {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 12, "swa_v_head_dim": 8}
    released |= {"add_swa_attention_sink_bias": True, "attention_chunk_size": 8, "hidden_act": "silu"}
    ours = model_from_config(released, "x", "test")
    assert ours.parameters["total"] == sum(p.numel() for p in model.parameters())
    assert ours.layers == imported("mimo_v2_flash", config).layers
    assert {layer.mixer.window for layer in ours.sequence} == {None, config.sliding_window} == {None, 9}
    with pytest.raises(SpecError, match="swa_head_dim"):
        model_from_config(released | {"swa_head_dim": 16}, "x", "test")


DEFAULTS = {"hc_sinkhorn_iters": 20, "n_shared_experts": 1, "num_nextn_predict_layers": 0}


def test_every_layer_of_both_families_has_weights_of_its_own_shape():
    """Weight tensors by element count against the modules' parameters, layer by layer."""
    for family, fields in FAMILIES.items():
        config, model = built(family, fields(5))
        spec = imported(family, config)
        for ours, theirs in zip(spec.sequence, model.model.layers, strict=True):
            mixed = ours.mixer.weights(spec.d_model) if ours.mixer is not None else []
            assert sum(w.elements for w in mixed) == sum(p.numel() for p in theirs.self_attn.parameters())
            fed = chain.from_iterable(part.weights(spec.d_model) for part in [ours.ffn] if part is not None)
            assert sum(w.elements for w in fed) == sum(p.numel() for p in theirs.mlp.parameters())


# 2503.14456, appendix: parameters of the released RWKV7-World3 models, and the ranks of their maps.
RWKV7 = {
    191_034_624: {"hidden_size": 768, "num_hidden_layers": 12, "ranks": (64, 64, 32, 128)},
    450_767_872: {"hidden_size": 1024, "num_hidden_layers": 24, "ranks": (64, 64, 32, 128)},
    1_527_404_544: {"hidden_size": 2048, "num_hidden_layers": 24, "ranks": (96, 96, 64, 256)},
}


@for_each("published", RWKV7)
def test_rwkv7_has_the_published_parameters(published: int):
    fields = dict(RWKV7[published])
    names = ("decay_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim")
    fields |= dict(zip(names, fields.pop("ranks"), strict=True))
    fields |= {"vocab_size": 65536, "head_dim": 64, "hidden_ratio": 4.0, "hidden_act": "sqrelu"}
    found = model_from_config(fields | {"model_type": "rwkv7", "tie_word_embeddings": False}, "x", "test")
    width, layers = fields["hidden_size"], fields["num_hidden_layers"]
    maps, residual = sum(fields[name] for name in names), fields["v_low_rank_dim"]
    by_paper = 2 * width * 65536 + 4 * width + layers * width * (12 * width + 2 * maps + 19)
    assert found.parameters["total"] == published == by_paper - (2 * width * residual + width)
    assert found.state_elements_per_sequence == layers * (width * 64 + 2 * width)
    assert found.kv_elements_per_token == 0


def mistral_large4(seed: int) -> dict[str, Any]:
    of = Random(seed)
    count = of.randint(2, 6)
    return {
        "vocab_size": of.randint(50, 90),
        "hidden_size": of.choice([32, 48]),
        "intermediate_size": of.choice([40, 56]),
        "moe_intermediate_size": of.choice([16, 24]),
        "num_hidden_layers": count,
        "num_attention_heads": of.choice([2, 4]),
        "n_routed_experts": of.randint(2, 5),
        "num_experts_per_tok": of.randint(1, 2),
        "kv_lora_rank": of.choice([16, 40]),
        "qk_rope_head_dim": of.choice([8, 16]),
        "qk_nope_head_dim": of.choice([8, 24]),
        "v_head_dim": of.choice([8, 16]),
        "index_n_heads": of.randint(1, 4),
        "index_head_dim": 16,
        "first_k_dense_replace": of.randint(0, 2),
        "no_rope_layers": [of.randint(0, 1) for _ in range(count)],
        "indexer_types": ["full", *(of.choice(["full", "shared"]) for _ in range(count - 1))],
        "max_position_embeddings": 512,
    }


@for_each("seed", range(12))
def test_mistral_large_4_has_the_parameters_of_its_class(seed: int):
    """It caches a latent for each token and layer, a rotary key where it has one, index keys where they are its own."""
    config = transformers.CONFIG_MAPPING["mistral_large4_text"](**mistral_large4(seed))
    with torch.device("meta"):
        model = transformers.MistralLarge4TextModel(config)
    ours = imported("mistral_large4_text", config)
    head = config.vocab_size * config.hidden_size
    # transformers 5.24 holds a learned factor for each rotary frequency of the whole model (32 elements in the release)
    counted = [one.numel() for name, one in model.named_parameters() if name != "rotary_emb.alpha"]
    assert ours.parameters["total"] == sum(counted) + head
    rotary = config.qk_rope_head_dim * sum(config.no_rope_layers)
    indexed = config.index_head_dim * config.indexer_types.count("full")
    assert ours.kv_elements_per_token == config.num_hidden_layers * config.kv_lora_rank + rotary + indexed


def glm5_next() -> Any:
    """Four layers: three of linear attention, one with an indexer."""
    return transformers.Glm5NextTextConfig(num_hidden_layers=4)


def test_glm_5_3_keeps_a_key_a_pool():
    """Its class keeps latent, key, gate and a mark, 512 + 2*128 + 1 elements a token; pooled 512 + 128/16."""
    config = glm5_next()
    ours = imported("glm5_next_text", config)
    model = build(transformers.Glm5NextConfig(text_config=config), kinds()["glm5_next"])
    below, beyond, state = growth(model, [])
    assert (below, beyond) == (512 + 2 * 128 + 1, 512 + 2 * 128 + 1)
    assert ours.kv_elements_per_token_beyond_windows == 512 + 128 / 16
    assert ours.state_elements_per_sequence == state + 2 * 15 * 128  # what waits for its pool to be whole


def test_glm_5_3_scores_pools_and_attends_to_the_chosen_and_the_last():
    """Ten tokens after 5000: each scores the whole pools before it by 32 heads of 128, and takes 2048 + 15 keys."""
    spec = imported("glm5_next_text", glm5_next())
    ops = mixer_ops(spec, 3, 10, 5000)
    (select,) = [op for op in ops if isinstance(op, IndexSelect)]
    assert select.work().flop == 2 * sum((5000 + j) // 16 for j in range(1, 11)) * 32 * 129
    assert select.work().write == 10 * 128 * 4
    (core,) = [op for op in ops if isinstance(op, Attention)]
    assert core.mask.pairs(10.0, 5000.0) == 10 * 2063
    pooled = 128 * 4096 + 16 * 128
    mixer = spec.sequence[3].mixer
    assert mixer is not None
    plain = mixer.model_copy(update={"indexer": mixer.indexer.model_copy(update={"pool": None})})  # type: ignore[union-attr]
    assert sum(w.elements for w in mixer.weights(4096)) - sum(w.elements for w in plain.weights(4096)) == pooled


@for_each("field", [{"index_kpool": 1}, {"index_kpool_always_select_tail": False}])
def test_other_pools_are_refused_by_name(field: dict[str, Any]):
    config = transformers.Glm5NextTextConfig(num_hidden_layers=4, **field)
    with pytest.raises(SpecError, match="index_kpool"):
        imported("glm5_next_text", config)


def test_shared_latents_are_refused():
    config = transformers.CONFIG_MAPPING["mistral_large4_text"](num_hidden_layers=2, kv_source_layers=[0, 0])
    with pytest.raises(SpecError, match="kv_source_layers"):
        imported("mistral_large4_text", config)
