"""Parameters, KV and state of public models built from each layer kind: exact, as transformers counts them.

Each row names the model; its figures are those of the released config built by transformers on the meta device.
"""

from __future__ import annotations

from typing import Any

from inferplan.models.layers import kinds
from inferplan.models.spec import ModelSpec
from tests.cases import for_each

Layer = dict[str, Any]


def mlp(d_ff: int, **more: Any) -> Layer:
    return {"kind": "mlp", "d_ff": d_ff, **more}


def moe(experts: int, top_k: int, d_ff: int, **more: Any) -> Layer:
    return {"kind": "moe", "experts": experts, "top_k": top_k, "d_ff": d_ff, **more}


def attention(heads: int, kv_heads: int, head_dim: int, **more: Any) -> Layer:
    return {"kind": "attention", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, **more}


def mla(heads: int, q_lora: int | None, dims: tuple[int, int, int, int], **more: Any) -> Layer:
    kv_lora, nope, rope, value = dims
    sizes = {"q_lora": q_lora, "kv_lora": kv_lora, "nope_dim": nope, "rope_dim": rope, "value_dim": value}
    return {"kind": "mla", "heads": heads, **sizes, **more}


def deepseek(mixer: Layer, dense: int, experts: Layer, counts: tuple[int, int]) -> list[Layer]:
    return [
        {"repeat": counts[0], "mixer": mixer, "ffn": mlp(dense)},
        {"repeat": counts[1], "mixer": mixer, "ffn": experts},
    ]


def indexer(heads: int, shared: bool = False) -> Layer:
    return {"heads": heads, "head_dim": 128, "top_k": 2048, "shared": shared}


DEEPSEEK_V3 = mla(128, 1536, (512, 128, 64, 128))
DEEPSEEK_EXPERTS = moe(256, 8, 2048, shared_d_ff=2048)
GLM5 = mla(64, 2048, (512, 192, 64, 256), indexer=indexer(32))
GLM52_SHARED = GLM5 | {"indexer": indexer(32, shared=True)}


def hunyuan() -> list[Layer]:
    """Every second layer attends to the keys and values of the one before it."""
    own, experts = attention(80, 8, 80, qk_norm="head"), moe(16, 1, 18304, shared_d_ff=18304)
    pair = [{"mixer": own, "ffn": experts}, {"mixer": own | {"shares_cache": True}, "ffn": experts}]
    return [{"repeat": 32, "pattern": pair}]


def jamba() -> list[Layer]:
    mamba = {"kind": "mamba1", "inner": 8192, "state": 16, "dt_rank": 256, "inner_norms": "rms"}
    full = attention(32, 8, 128, rotary=False)
    period = [{"mixer": full if i == 4 else mamba, "ffn": moe(16, 2, 14336) if i % 2 else mlp(14336)} for i in range(8)]
    return [{"repeat": 4, "pattern": period}]


def linear_hybrid(linear: Layer, full: Layer, experts: Layer, counts: tuple[int, int]) -> list[Layer]:
    """``counts[0]`` periods of ``counts[1]`` linear layers and a full one."""
    period = [{"repeat": counts[1], "mixer": linear, "ffn": experts}, {"mixer": full, "ffn": experts}]
    return [{"repeat": counts[0], "pattern": period}]


def qwen_next(experts: Layer, value_heads: int, full: tuple[int, int, int], periods: int) -> list[Layer]:
    sizes = {"key_heads": 16, "value_heads": value_heads, "key_dim": 128, "value_dim": 128}
    gated = attention(*full, qk_norm="head", output_gate=True)
    return linear_hybrid({"kind": "gated_delta_net", **sizes}, gated, experts, (periods, 3))


def gemma3n(layers: int, d_ff: int) -> list[Layer]:
    extras = [
        {"kind": "laurel", "rank": 64},
        {"kind": "altup", "streams": 4},
        {"kind": "per_layer_input", "width": 256},
    ]
    return [
        {
            "mixer": attention(8, 2, 256, qk_norm="head", value_norm=True, shares_cache=i >= 20)
            | ({} if i % 5 == 4 else {"window": 512}),
            "ffn": mlp(d_ff, activation="gelu"),
            "norms": 4,
            "extras": extras,
        }
        for i in range(layers)
    ]


GEMMA3N = {"streams": 4, "per_layer_embedding": {"width": 256, "vocab": 262144}}


def nemotron(pattern: str, mamba: tuple[int, int, int, int], full: Layer, ffn: Layer) -> list[Layer]:
    heads, head_dim, state, groups = mamba
    scan = {"kind": "mamba2", "heads": heads, "head_dim": head_dim, "state": state, "groups": groups, "chunk": 128}
    part = {"M": {"mixer": scan}, "*": {"mixer": full | {"rotary": False}}, "E": {"ffn": ffn}, "-": {"ffn": ffn}}
    return [part[letter] for letter in pattern]


SUPER = "MEMEMEM*E" + "MEMEMEM*E" * 2 + "MEMEMEMEM*E" * 4 + "MEMEMEM*E" + "MEMEMEME"
H8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"


def latent_experts(experts: int, top_k: int, sizes: tuple[int, int, int]) -> Layer:
    d_ff, shared, latent = sizes
    return moe(experts, top_k, d_ff, shared_d_ff=shared, gated=False, activation="relu2", latent=latent)


def rwkv(width: int, layers: int) -> list[Layer]:
    channel_mix = {"kind": "rwkv_channel_mix", "width": width, "d_ff": 4 * width}
    return [{"repeat": layers, "mixer": {"kind": "rwkv", "inner": width, "width": width}, "ffn": channel_mix}]


def llama4(experts: int, every: int) -> list[Layer]:
    """Three chunked layers with rotary, one full without; experts in every ``every``-th layer."""
    return [
        {
            "mixer": attention(40, 8, 128) | ({"rotary": False} if i % 4 == 3 else {"chunk": 8192}),
            "ffn": moe(experts, 1, 8192, shared_d_ff=8192) if i % every == every - 1 else mlp(16384),
        }
        for i in range(48)
    ]


def mamba2(heads: int, groups: int) -> list[Layer]:
    return [{"repeat": 64, "mixer": {"kind": "mamba2", "heads": heads, "head_dim": 64, "state": 128, "groups": groups}}]


def mamba1(inner: int, dt_rank: int, norms: str) -> list[Layer]:
    sizes = {"inner": inner, "state": 16, "dt_rank": dt_rank, "inner_norms": norms}
    return [{"repeat": 64, "mixer": {"kind": "mamba1", **sizes}}]


def minimax01() -> list[Layer]:
    lightning = {"kind": "lightning_attention", "heads": 64, "head_dim": 128}
    return linear_hybrid(lightning, attention(64, 8, 128), moe(32, 2, 9216), (10, 7))


RWKV = {"norm": "layer", "embedding_norm": True}
# name: (d_model, vocab, tied, layers, other fields), (total, active, KV elements a token, state elements a sequence)
ROWS: dict[str, tuple[tuple[int, int, bool, list[Layer], Layer], tuple[int, int, int, int]]] = {
    "deepseek-ai/DeepSeek-V3": (
        (7168, 129280, False, deepseek(DEEPSEEK_V3, 18432, DEEPSEEK_EXPERTS, (3, 58)), {}),
        (671026404352, 37552282624, 35136, 0),
    ),
    "deepseek-ai/DeepSeek-V2": (
        (5120, 102400, False, deepseek(DEEPSEEK_V3, 12288, moe(160, 6, 1536, shared_d_ff=3072), (1, 59)), {}),
        (235741434880, 21375800320, 34560, 0),
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        (
            2048,
            102400,
            False,
            deepseek(mla(16, None, (512, 128, 64, 128)), 10944, moe(64, 6, 1408, shared_d_ff=2816), (1, 26)),
            {},
        ),
        (15706484224, 2661150208, 15552, 0),
    ),
    "moonshotai/Kimi-K2-Instruct": (
        (
            7168,
            163840,
            False,
            deepseek(mla(64, 1536, (512, 128, 64, 128)), 18432, moe(384, 8, 2048, shared_d_ff=2048), (1, 60)),
            {},
        ),
        (1026408209408, 32861477888, 35136, 0),
    ),
    "nvidia/DeepSeek-V3.2-NVFP4": (
        (
            7168,
            129280,
            False,
            deepseek(DEEPSEEK_V3 | {"indexer": indexer(64)}, 18432, DEEPSEEK_EXPERTS, (3, 58)),
            {},
        ),
        (671877929216, 38403807488, 42944, 0),
    ),
    "zai-org/GLM-5": (
        (6144, 154880, False, deepseek(GLM5, 12288, DEEPSEEK_EXPERTS, (3, 75)), {}),
        (743911199232, 41784709632, 54912, 0),
    ),
    "zai-org/GLM-5.2": (
        (
            6144,
            154880,
            False,
            [
                *deepseek(GLM5, 12288, DEEPSEEK_EXPERTS, (3, 18)),
                {"repeat": 57, "mixer": GLM52_SHARED, "ffn": DEEPSEEK_EXPERTS},
            ],
            {},
        ),
        (743377000704, 41250511104, 47616, 0),
    ),
    "tencent/Hunyuan-A52B-Instruct": (
        (6400, 128512, True, hunyuan(), {}),
        (388698126080, 51318798080, 40960, 0),
    ),
    "state-spaces/mamba-2.8b-hf": (
        (2560, 50280, True, mamba1(5120, 160, "none"), {}),
        (2768345600, 2768345600, 0, 6553600),
    ),
    "tiiuae/falcon-mamba-7b": (
        (4096, 65024, False, mamba1(8192, 256, "plain"), {}),
        (7272665088, 7272665088, 0, 10485760),
    ),
    "ai21labs/Jamba-v0.1": (
        (4096, 65536, False, jamba(), {}),
        (51570323328, 12110311296, 8192, 4587520),
    ),
    "state-spaces/mamba2-2.7b": (
        (2560, 50288, True, mamba2(80, 1), {}),
        (2702599680, 2702599680, 0, 43319296),
    ),
    "mistralai/Mamba-Codestral-7B-v0.1": (
        (4096, 32768, False, mamba2(128, 8), {}),
        (7285403648, 7285403648, 0, 69730304),
    ),
    "RWKV/rwkv-4-169m-pile": (
        (768, 50277, False, rwkv(768, 12), RWKV),
        (169342464, 169342464, 0, 46080),
    ),
    "RWKV/rwkv-4-14b-pile": (
        (5120, 50277, False, rwkv(5120, 40), RWKV),
        (14148597760, 14148597760, 0, 1024000),
    ),
    "MiniMaxAI/MiniMax-Text-01": (
        (6144, 200064, False, minimax01(), {}),
        (456089655296, 48403306496, 20480, 73400320),
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        (
            2048,
            151936,
            False,
            qwen_next(moe(512, 10, 512, shared_d_ff=512, shared_gate=True), 32, (16, 2, 256), 12),
            {},
        ),
        (79674391296, 3874929408, 12288, 20054016),
    ),
    "Qwen/Qwen3.5-397B-A17B": (
        (
            4096,
            248320,
            False,
            qwen_next(moe(512, 10, 1024, shared_d_ff=1024, shared_gate=True), 64, (32, 2, 256), 15),
            {},
        ),
        (396346350336, 17349040896, 15360, 49397760),
    ),
    "google/gemma-3n-E2B-it": (
        (2048, 262400, True, gemma3n(30, 8192), GEMMA3N),
        (4435182688, 4435182688, 20480, 0),
    ),
    "google/gemma-3n-E4B-it": (
        (2048, 262400, True, gemma3n(35, 16384), GEMMA3N),
        (6835235568, 6835235568, 20480, 0),
    ),
    "nvidia/Nemotron-H-8B-Base-8K": (
        (
            4096,
            131072,
            False,
            nemotron(H8B, (128, 64, 128, 8), attention(32, 8, 128), mlp(21504, gated=False, activation="relu2")),
            {},
        ),
        (8100852736, 8100852736, 8192, 26148864),
    ),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B": (
        (
            4096,
            131072,
            False,
            nemotron(SUPER, (128, 64, 128, 8), attention(32, 2, 128), latent_experts(512, 22, (2688, 5376, 1024))),
            {},
        ),
        (120668687360, 12770216960, 4096, 43581440),
    ),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (
        (5120, 202048, False, llama4(16, 1), {}),
        (107769861120, 17172894720, 98304, 0),
    ),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (
        (5120, 202048, False, llama4(128, 2), {}),
        (400711848960, 17184691200, 98304, 0),
    ),
}
COVERED_ELSEWHERE = {
    "causal_conv": "tests/oracle/test_sweep.py, docs/formulas/causal_conv.md",
    "gated_norm": "tests/oracle/test_sweep.py, docs/formulas/gated_norm.md",
    "relative_bias": "tests/oracle/test_sweep.py, docs/formulas/relative_bias.md",
    "scales": "tests/oracle/test_sweep.py, docs/formulas/scales.md",
    "untimed": "test_untimed.py",
    "short_conv": "tests/oracle/test_sweep.py, docs/formulas/short_conv.md",
    "cross_attention": "tests/test_encoder_decoders.py",
    "block_sparse_attention": "tests/oracle/test_mechanisms.py",
    "compressed_attention": "tests/oracle/test_mechanisms.py",
    "conformer_conv": "tests/test_encoder_decoders.py",
    "disentangled_attention": "tests/oracle/test_encoders.py",
    "relative_attention": "tests/test_encoder_decoders.py",
    "hyper_connection": "tests/oracle/test_mechanisms.py",
    "residual_gate": "test_muse_spark.py",
    "attention_residual": "test_kimi_k3.py",
    "rwkv7": "tests/oracle/test_mechanisms.py",
    "gated_linear_recurrence": "test_transformers.py",
    "hyena": "test_transformers.py: no public config of transformers builds it",
    "kimi_delta": "test_transformers.py",
    "linear": "one matrix",
    "parallel": "test_transformers.py",
    "shared_block": "test_transformers.py",
    "traced": "tests/oracle/test_traced.py",
}


def build(name: str) -> ModelSpec:
    d_model, vocab, tied, layers, more = ROWS[name][0]
    fields = {"d_model": d_model, "vocab": vocab, "tied": tied, "layers": layers, **more}
    return ModelSpec.model_validate({"name": name, "source": "test", **fields})


@for_each("name", ROWS)
def test_counts_are_exact(name):
    model = build(name)
    counts = (model.parameters["total"], model.parameters["active"])
    assert (*counts, model.kv_elements_per_token, model.state_elements_per_sequence) == ROWS[name][1]


@for_each("name", ROWS)
def test_a_model_survives_its_own_mapping(name):
    model = build(name)
    assert ModelSpec.model_validate(model.to_dict()) == model


def test_every_kind_is_counted_against_a_public_model():
    used = {part.kind for name in ROWS for layer in build(name).sequence for part in layer.parts}
    assert used | set(COVERED_ELSEWHERE) == set(kinds())


@for_each(
    ("name", "layers", "own_tables", "correction_bias", "checkpoint"),
    [
        ("zai-org/GLM-5", [{"mixer": GLM5, "ffn": DEEPSEEK_EXPERTS}], False, 256, 9952920576),
        (
            "zai-org/GLM-4.5-Air",
            [{"mixer": attention(96, 8, 128, qkv_bias=True), "ffn": moe(128, 8, 1408, shared_d_ff=1408)}],
            True,
            128,
            3616573568,
        ),
    ],
)
def test_prediction_heads_are_counted_apart(name, layers, own_tables, correction_bias, checkpoint):
    """The tensors of the checkpoint's prediction layer; its router's correction bias is a buffer, no parameter."""
    d_model, vocab = {"zai-org/GLM-5": (6144, 154880), "zai-org/GLM-4.5-Air": (4096, 151552)}[name]
    mtp = {"layers": layers, "own_embedding": own_tables, "own_head": own_tables}
    base = {"name": name, "source": "test", "d_model": d_model, "vocab": vocab, "layers": layers}
    model = ModelSpec.model_validate({**base, "mtp": mtp})
    assert model.mtp_parameters + correction_bias == checkpoint
    assert model.parameters == ModelSpec.model_validate(base).parameters
