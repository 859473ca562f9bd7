"""Encoders: models that embed, rerank, classify or fill masks, and those of them that generate with ``is_decoder``."""

from __future__ import annotations

from dataclasses import replace

from inferplan.models.huggingface import encoder as e
from inferplan.models.huggingface.dialect import Dialect
from inferplan.models.huggingface.encoder import ENDS, PRETRAINED, Encoder, build

_POOLED = Encoder(spare_bias=True, classifier="pooled", ends=PRETRAINED, decodes=True)
_DENSE = Encoder(spare_bias=True, decodes=True)
_OFFSET = replace(_DENSE, padded=True)
BERT = Dialect(
    build=build(_POOLED),
    tied=True,
    norm="layer",
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    gated=False,
    kv_default=True,
    rotary=False,
    activation="gelu",
    fixed={"add_cross_attention": (False,)},
    ignored=("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
             "pooler_size_per_head", "pooler_type", "sentence_transformers"),
)  # fmt: skip
_ROBERTA = replace(BERT, build=build(_OFFSET))
_ROTARY = Encoder(positions=False, pooled=False, classifier="pooled", ends=ENDS[:3] + ENDS[4:])
_MODERN = Dialect(
    build=build(
        Encoder(
            positions=False,
            token_types=False,
            pooled=False,
            final_norm=True,
            classifier="mlm",
            transform_bias="classifier_bias",
            vocabulary_bias="decoder_bias",
            layers=e.alternating("local_attention", lambda size: 2 * (size // 2) + 1),
        )
    ),
    tied=True,
    norm="layer_plain",
    qkv_bias=("attention_bias", False),
    out_bias=("attention_bias", False),
    mlp_bias=("mlp_bias", False),
    kv_default=True,
    activation="gelu",
    ignored=("deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile",
             "repad_logits_with_grad", "global_rope_theta", "local_rope_theta", "sliding_window",
             "position_embedding_type", "global_attn_every_n_layers", "initializer_cutoff_factor", "decoder_bias",
             "local_attention"),
)  # fmt: skip
_EURO = replace(
    _MODERN,
    build=build(
        Encoder(
            positions=False,
            token_types=False,
            pooled=False,
            embedding_norm=False,
            final_norm=True,
            transform=False,
            vocabulary_bias="mlp_bias",
            ends=ENDS[:3] + ENDS[4:],
        )
    ),
    tied=False,
    norm="rms",
    activation="silu",
    ignored=("clf_pooling", "mask_token", "prediction_head_size", "sliding_window"),
)
_NOMIC = replace(
    BERT,
    build=build(replace(_ROTARY, spare_bias=True)),
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    gated=True,
    rotary=True,
    activation="silu",
    fixed={
        "causal": (False,), "prenorm": (False,), "parallel_block": (False,), "mlp_fc1_bias": (False,),
        "mlp_fc2_bias": (False,), "qkv_proj_bias": (False,), "use_rms_norm": (False,), "rotary_emb_fraction": (1.0,),
    },
    ignored=(
        "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions",
        "pad_vocab_size_multiple", "parallel_block_tied_norm", "use_xentropy", "sentence_transformers",
    ),
)  # fmt: skip
_GTE = replace(
    _NOMIC,
    build=build(replace(_ROTARY, layers=e.gte)),
    qkv_bias=True,
    out_bias=True,
    activation="gelu",
    fixed={"layer_norm_type": ("layer_norm",), "position_embedding_type": ("rope",), "logn_attention_scale": (False,)},
    ignored=("pack_qkv", "unpad_inputs", "use_memory_efficient_attention", "logn_attention_clip1"),
)

_DEBERTA = Encoder(
    spare_bias=True,
    positions=False,
    token_types=False,
    pooled=False,
    classifier="pooled",
    layers=e.disentangled,
    extra=e.distances,
)

FAMILIES: dict[str, Dialect] = {
    "bert": BERT,
    "roberta": _ROBERTA,
    "distilbert": replace(
        BERT,
        build=build(
            Encoder(
                names={"dim": "hidden_size", "hidden_dim": "intermediate_size"},
                token_types=False,
                pooled=False,
            )
        ),
        ignored=("sinusoidal_pos_embds", "tie_weights_"),
    ),
    "albert": replace(
        BERT,
        build=build(
            replace(
                _POOLED,
                embedding="embedding_size",
                projects=True,
                layers=e.shared,
                ends=(*ENDS, "ForPreTraining"),
                decodes=False,
            )
        ),
        ignored=("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"),
    ),
    "electra": replace(
        BERT,
        build=build(
            replace(
                _DENSE,
                embedding="embedding_size",
                pooled=False,
                discriminates=True,
                spare_bias=False,
                ends=(*ENDS, "ForPreTraining"),
            )
        ),
    ),
    "mpnet": replace(
        BERT, build=build(Encoder(spare_bias=True, token_types=False, padded=True, extra=e.relative_bias))
    ),
    "ernie": replace(BERT, build=build(replace(_POOLED, extra=e.task_types))),
    "deberta-v2": replace(
        BERT,
        build=build(_DEBERTA),
        fixed={"conv_kernel_size": (0,), "legacy": (True,), "attention_head_size": ()},
        ignored=("pooler_dropout", "pooler_hidden_act", "conv_act"),
    ),
    "modernbert": _MODERN,
    "eurobert": _EURO,
    "nomic_bert": _NOMIC,
    "gte": _GTE,
    "jina_embeddings_v3": replace(BERT, build=build(Encoder(spare_bias=True, positions=False)), rotary=True),
    "clip_text_model": replace(
        BERT,
        build=build(
            Encoder(
                token_types=False,
                pooled=False,
                embedding_norm=False,
                final_norm=True,
                causal=True,
                ends=("Model",),
                default="Model",
            )
        ),
        ignored=("projection_dim",),
    ),
}

ALIASES = {
    "camembert": "roberta",
    "xlm-roberta": "roberta",
    "data2vec-text": "roberta",
    "new": "gte",
}
"""Other names of a row."""

UNKNOWN = {
    "canine": "its layers work on characters at two resolutions: no layer kind has those",
    "lilt": "it has a second stream of layers for the places of the tokens: no layer kind has that",
}  # fmt: skip
"""Families that are known and not covered, and what they need."""
