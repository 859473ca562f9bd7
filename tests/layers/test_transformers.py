"""One small layer of each kind against transformers' own module: parameters exact, and the FLOP of its forward.

The conversion to what transformers runs: attention over the full rectangle, the head on every token, short convolutions
over the padded input, and the recurrence as its plain torch fallback multiplies it (``scan`` of each case).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from inferplan.models.layers import LayerContext
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import uniform
from inferplan.work.ops import Attention, Conv, GroupedMatmul, IndexSelect, Matmul, Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment
from tests.cases import for_each

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

TOKENS, WIDTH, VOCAB = 64, 64, 128
SIZES = {"hidden_size": WIDTH, "vocab_size": VOCAB, "num_hidden_layers": 1, "intermediate_size": 96}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MHA = SIZES | {"num_key_value_heads": 4}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_group": 1, "topk_group": 1}
LATENT_EXPERTS = LATENT | EXPERTS | {"n_shared_experts": 1}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12}

ATTENTION = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16}
MLP = {"kind": "mlp", "d_ff": 96}
MLA = {"kind": "mla", "heads": 4, "q_lora": 24, "kv_lora": 16, "nope_dim": 12, "rope_dim": 8, "value_dim": 10}
MOE = {"kind": "moe", "experts": 4, "top_k": 2, "d_ff": 48, "shared_d_ff": 48}
MAMBA2 = {"kind": "mamba2", "heads": 8, "head_dim": 16, "state": 8, "groups": 2, "chunk": 16}
BLOCK = {"kind": "shared_block", "heads": 4, "kv_heads": 4, "head_dim": 32, "d_ff": 96, "adapter_rank": 4}


def mamba2_scan() -> int:
    """B and C are repeated for each head; the states of all chunks are passed on by one matmul over chunks."""
    heads, width, state, chunk = 8, 16, 8, 16
    chunks = TOKENS // chunk
    per_token = 2 * chunk * state + 2 * chunk * width + 4 * state * width
    return heads * (TOKENS * per_token + 2 * (chunks + 1) ** 2 * state * width)


def delta_scan(key: int, value: int, pointwise_scores: bool) -> int:
    """A triangular solve (GDN) or pointwise scores (KDA) are not matmuls that torch counts."""
    own = 2 * key + 4 * value if pointwise_scores else 4 * key + 2 * value
    return 4 * TOKENS * (64 * own + 6 * key * value)


@dataclass
class Case:
    """config: a transformers configuration. layers: the same model. scan: FLOP its recurrences count as."""

    family: str
    config: dict[str, Any]
    layers: list[dict[str, Any]]
    scan: int = 0
    model: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("Llama", SIZES, [{"mixer": ATTENTION, "ffn": MLP}]),
    Case(
        "Mixtral",
        SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2},
        [{"mixer": ATTENTION, "ffn": MOE | {"d_ff": 96, "shared_d_ff": 0}}],
    ),
    Case("DeepseekV3", MHA | LATENT_EXPERTS | {"first_k_dense_replace": 0}, [{"mixer": MLA, "ffn": MOE}]),
    Case(
        "DeepseekV2",
        MHA | LATENT_EXPERTS | {"first_k_dense_replace": 1, "q_lora_rank": None},
        [{"mixer": MLA | {"q_lora": None}, "ffn": MLP}],
    ),
    Case(
        "DeepseekV32",
        MHA | LATENT_EXPERTS | {"first_k_dense_replace": 1, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
        [{"mixer": MLA | {"indexer": {"heads": 2, "head_dim": 16, "top_k": 8}}, "ffn": MLP}],
    ),
    Case(
        "Mamba",
        {"hidden_size": WIDTH, "vocab_size": VOCAB, "num_hidden_layers": 1, "state_size": 8, "time_step_rank": 4}
        | {"tie_word_embeddings": False},
        [{"mixer": {"kind": "mamba1", "inner": 128, "state": 8, "dt_rank": 4}}],
        scan=2 * 128 * 8 * TOKENS,
    ),
    Case(
        "Mamba2",
        {"hidden_size": WIDTH, "vocab_size": VOCAB, "num_hidden_layers": 1, "state_size": 8, "num_heads": 8}
        | {"head_dim": 16, "n_groups": 2, "chunk_size": 16, "tie_word_embeddings": False},
        [{"mixer": MAMBA2}],
        scan=mamba2_scan(),
    ),
    Case(
        "Rwkv",
        {"hidden_size": WIDTH, "vocab_size": VOCAB, "num_hidden_layers": 2, "intermediate_size": 96}
        | {"attention_hidden_size": WIDTH},
        [
            {
                "mixer": {"kind": "rwkv", "inner": WIDTH, "width": WIDTH},
                "ffn": {"kind": "rwkv_channel_mix", "width": WIDTH, "d_ff": 96},
                "repeat": 2,
            }
        ],
        model={"norm": "layer", "embedding_norm": True},
    ),
    Case(
        "Qwen3Next",
        SIZES | DELTA | {"head_dim": 16, "layer_types": ["linear_attention"], "mlp_only_layers": [0]},
        [
            {
                "mixer": {
                    "kind": "gated_delta_net",
                    "key_heads": 2,
                    "value_heads": 4,
                    "key_dim": 8,
                    "value_dim": 12,
                },
                "ffn": MLP,
            }
        ],
        scan=delta_scan(8, 12, pointwise_scores=False),
    ),
    Case(
        "Qwen3Next",
        SIZES | {"head_dim": 16, "layer_types": ["full_attention"], "mlp_only_layers": [0]},
        [{"mixer": ATTENTION | {"output_gate": True, "qk_norm": "head"}, "ffn": MLP}],
    ),
    Case(
        "MiniMax",
        SIZES
        | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 8}
        | {"layer_types": ["linear_attention"]},
        [
            {
                "mixer": {"kind": "lightning_attention", "heads": 4, "head_dim": 16, "chunk": 8},
                "ffn": MOE | {"d_ff": 96, "shared_d_ff": 0},
            }
        ],
        scan=4 * TOKENS * (4 * 8 * 16 + 4 * 16 * 16),
    ),
    Case(
        "KimiLinear",
        MHA
        | LATENT_EXPERTS
        | {"linear_num_heads": 4, "linear_head_dim": 8, "linear_conv_kernel_dim": 4}
        | {"layer_types": ["linear_attention"], "mlp_layer_types": ["dense"]},
        [{"mixer": {"kind": "kimi_delta", "heads": 4, "head_dim": 8}, "ffn": MLP}],
        scan=delta_scan(8, 8, pointwise_scores=True),
    ),
    Case(
        "FalconH1",
        SIZES
        | {"head_dim": 16, "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2}
        | {"mamba_d_state": 8, "mamba_chunk_size": 16},
        [{"mixer": {"kind": "parallel", "mixers": [ATTENTION, MAMBA2 | {"gated_norm": False}]}, "ffn": MLP}],
        scan=mamba2_scan(),
    ),
    Case(
        "RecurrentGemma",
        SIZES | {"intermediate_size": 192, "lru_width": WIDTH, "block_types": ["recurrent"], "conv1d_width": 4},
        [
            {
                "mixer": {"kind": "gated_linear_recurrence", "inner": WIDTH, "blocks": 4},
                "ffn": MLP | {"bias": True},
            }
        ],
        model={"tied": True},
    ),
    Case(
        "NemotronH",
        SIZES
        | EXPERTS
        | {"head_dim": 16, "layers_block_type": ["mamba", "attention", "moe"], "moe_latent_size": 32}
        | {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8, "chunk_size": 16}
        | {"moe_shared_expert_intermediate_size": 40},
        [
            {"mixer": MAMBA2},
            {"mixer": ATTENTION | {"rotary": False}},
            {"ffn": MOE | {"shared_d_ff": 40, "gated": False, "latent": 32}},
        ],
        scan=mamba2_scan(),
    ),
    Case(
        "Gemma3nText",
        SIZES
        | {"head_dim": 16, "vocab_size_per_layer_input": 100, "hidden_size_per_layer_input": 8, "laurel_rank": 4}
        | {"layer_types": ["full_attention"], "activation_sparsity_pattern": [0.0], "num_kv_shared_layers": 0},
        [
            {
                "mixer": ATTENTION | {"qk_norm": "head", "value_norm": True},
                "ffn": MLP,
                "norms": 4,
                "extras": [
                    {"kind": "laurel", "rank": 4},
                    {"kind": "altup", "streams": 4},
                    {"kind": "per_layer_input", "width": 8},
                ],
            }
        ],
        model={"tied": True, "streams": 4, "per_layer_embedding": {"width": 8, "vocab": 100}},
    ),
    Case(
        "Zamba2",
        MHA
        | {"num_hidden_layers": 2, "mamba_d_state": 8, "mamba_expand": 2, "mamba_ngroups": 2, "n_mamba_heads": 8}
        | {"chunk_size": 16, "num_mem_blocks": 1, "adapter_rank": 4, "use_shared_attention_adapter": True}
        | {"layers_block_type": ["hybrid", "hybrid"]},
        [
            {"mixer": MAMBA2, "extras": [BLOCK | {"attention_adapters": True}]},
            {"mixer": MAMBA2, "extras": [BLOCK | {"attention_adapters": True, "owner": False}]},
        ],
        scan=2 * mamba2_scan(),
        model={"tied": True},
    ),
]
IDS = [f"{case.family}-{next(iter(case.layers[0].values()))['kind']}" for case in CASES]


def spec(case: Case) -> ModelSpec:
    base = {"name": case.family, "source": "test", "d_model": WIDTH, "vocab": VOCAB}
    return ModelSpec.model_validate({**base, "layers": case.layers, **case.model})


def theirs(case: Case) -> Any:
    config = getattr(transformers, f"{case.family}Config")(**case.config)
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def as_transformers_counts(op: Op) -> float:
    if isinstance(op, Attention):
        return 2.0 * TOKENS * TOKENS * op.heads * (op.key_dim + op.value_dim)
    if isinstance(op, IndexSelect):
        return 2.0 * TOKENS * TOKENS * op.heads * (op.key_dim + 1)
    if isinstance(op, Conv):
        return 2.0 * op.taps * op.channels * (TOKENS + op.taps - 1)
    if isinstance(op, Matmul | GroupedMatmul) or op.name == "altup.predict":
        return float(op.work().flop)
    return 0.0


def ours(model: ModelSpec) -> float:
    segment = Segment(batch=1.0, new=float(TOKENS), past=0.0)
    context = LayerContext(
        d_model=WIDTH, precision=uniform(), parallel=Parallelism(), segments=(segment,), norm=model.norm
    )
    ops = [*model.input_ops(context), *model.output_ops(context), *context.linear("head", WIDTH, VOCAB)]
    ops += [op for layer in model.sequence for part in layer.parts for op in part.ops(context)]
    return sum(as_transformers_counts(op) for op in ops)


def expanded(case: Case) -> Case:
    """transformers runs sparse attention in the expanded form over a masked rectangle, and the indexer beside it."""
    mixer = case.layers[0]["mixer"]
    if "indexer" not in mixer:
        return case
    dense = {name: value for name, value in mixer.items() if name != "indexer"}
    return Case(case.family, case.config, [case.layers[0] | {"mixer": dense}])


@for_each("case", CASES, ids=IDS)
def test_parameters_are_those_of_transformers(case: Case):
    with torch.device("meta"):
        built = theirs(case)
    assert spec(case).parameters["total"] == sum(p.numel() for p in built.parameters())


@for_each("case", CASES, ids=IDS)
def test_flop_are_those_of_transformers_forward(case: Case):
    built = theirs(case)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), use_cache=False)
    index = index_flop(case) if expanded(case) is not case else 0.0
    assert counter.get_total_flops() == ours(spec(expanded(case))) + case.scan + index


def index_flop(case: Case) -> float:
    """The indexer's projections and scores, which come with the sparse mixer alone."""
    index = case.layers[0]["mixer"]["indexer"]
    heads, width = index["heads"], index["head_dim"]
    projections = LATENT["q_lora_rank"] * heads * width + WIDTH * (width + heads)
    return 2.0 * TOKENS * projections + 2.0 * TOKENS * TOKENS * heads * (width + 1)


def cache_elements(case: Case) -> int:
    """Elements of constant size that transformers' own cache holds after a prompt."""
    built = theirs(case)
    with torch.no_grad():
        out = built(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), use_cache=True)
    cache = out.cache_params if hasattr(out, "cache_params") else out.past_key_values
    total = 0
    for layer in cache.layers:
        for kept in (getattr(layer, "conv_states", None), getattr(layer, "recurrent_states", None)):
            total += sum(state.numel() for state in each(kept))
    return total


def each(states: Any) -> list[Any]:
    """The tensors of one or several states."""
    found = states.values() if isinstance(states, dict) else states if isinstance(states, list | tuple) else [states]
    return [state for state in found if state is not None]


STATEFUL = [case for case in CASES if case.family in ("Mamba", "Mamba2", "FalconH1", "NemotronH")]


@for_each("case", STATEFUL, ids=[case.family for case in STATEFUL])
def test_state_is_what_the_cache_of_transformers_holds(case: Case):
    assert spec(case).state_elements_per_sequence == cache_elements(case)


def test_hyena_has_the_tensors_of_its_published_operator():
    """HyenaOperator of the authors' code (order 2, filter order 64, two inner layers of the filter)."""
    nn, width = torch.nn, 32
    sine = nn.Parameter(torch.empty(1, 64))
    tensors = [
        nn.Linear(width, 3 * width),
        nn.Linear(width, width),
        nn.Conv1d(3 * width, 3 * width, 3, groups=3 * width),
        nn.Linear(3, 64),
        nn.Linear(64, 64),
        nn.Linear(64, 64),
        nn.Linear(64, width, bias=False),
    ]
    published = sum(p.numel() for module in tensors for p in module.parameters()) + sine.numel() + width
    case = Case("Hyena", {}, [{"mixer": {"kind": "hyena", "width": width}}])
    mixer = spec(case).sequence[0].mixer
    assert mixer is not None
    assert sum(weight.elements for weight in mixer.weights(width)) == published
