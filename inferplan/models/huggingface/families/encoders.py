"""Encoders: models that embed, rerank, classify or fill masks, and those of them that generate with ``is_decoder``."""

from __future__ import annotations

from dataclasses import replace

from inferplan.models.huggingface import encoder as e
from inferplan.models.huggingface.dialect import Dialect
from inferplan.models.huggingface.encoder import ENDS, PRETRAINED, Encoder, build
from inferplan.models.huggingface.encoder_decoder import led_windows

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
_ALBERT = (*ENDS, "ForPreTraining")
_ROTARY = Encoder(positions=False, pooled=False, classifier="pooled", ends=ENDS[:3] + ENDS[4:])
_XLM = replace(
    BERT,
    build=build(
        Encoder(
            names={"emb_dim": "hidden_size"},
            token_types=False,
            pooled=False,
            classifier="plain",
            transform=False,
            layers=e.xlm,
            extra=e.languages,
            ends=ENDS[:3] + ENDS[4:],
        )
    ),
    fixed={"asm": (False,), "causal": (False,), "is_encoder": (True,), "pre_norm": (False,)},
    ignored=("sinusoidal_embeddings", "layerdrop", "unk_index", "mask_index", "eos_index", "pad_index", "bos_index",
             "start_n_top", "end_n_top", "lang_id", "lang2id", "id2lang", "share_inout_emb", "use_lang_emb"),
)  # fmt: skip
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
            layers=e.alternating("local_attention", lambda size: 2 * (size // 2) + 1, first_norms=1),
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
    "xlm-roberta-xl": replace(BERT, build=build(replace(_OFFSET, embedding_norm=False, final_norm=True))),
    "roberta-prelayernorm": replace(BERT, build=build(replace(_OFFSET, final_norm=True))),
    "ibert": replace(
        _ROBERTA,
        build=build(Encoder(spare_bias=True, padded=True)),
        fixed={"quant_mode": (False,), "force_dequant": ("none",)},
    ),
    "megatron-bert": replace(BERT, build=build(replace(_POOLED, embedding_norm=False, final_norm=True))),
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
    "rembert": replace(
        BERT,
        build=build(
            Encoder(
                embedding="input_embedding_size",
                projects=True,
                classifier="pooled",
                transform=e.own_vocabulary,
            )
        ),
        tied=False,
        fixed={"tie_word_embeddings": (False,)},
        ignored=("output_embedding_size",),
    ),
    "roc_bert": replace(BERT, build=build(replace(_POOLED, extra=e.glyphs, ends=ENDS))),
    "roformer": replace(
        BERT,
        build=build(replace(_DENSE, embedding="embedding_size", positions=False, pooled=False, extra=e.rotary_table)),
        rotary=True,
        fixed={"rotary_value": (False,)},
    ),
    "ernie": replace(BERT, build=build(replace(_POOLED, extra=e.task_types))),
    "layoutlm": replace(
        BERT, build=build(Encoder(spare_bias=True, classifier="pooled", keeps_pooler=ENDS, extra=e.boxes))
    ),
    "tapas": replace(
        BERT,
        build=build(
            Encoder(
                spare_bias=True,
                classifier="pooled",
                token_types=False,
                extra=e.cells,
                ends=("ForMaskedLM", "ForSequenceClassification", "Model"),
            )
        ),
        ignored=(
            "use_normalized_answer_loss",
            "use_gumbel_for_cells",
            "use_gumbel_for_aggregation",
            "average_approximation_function",
            "max_num_rows",
            "max_num_columns",
            "average_logits_per_cell",
            "select_one_column",
            "allow_empty_column_selection",
            "reset_position_index_per_cell",
            "positive_label_weight",
            "num_aggregation_labels",
            "aggregation_labels",
            "cell_selection_preference",
            "aggregation_temperature",
            "answer_loss_importance",
            "huber_loss_delta",
            "temperature",
            "no_aggregation_label_index",
            "disable_per_token_loss",
            "aggregation_loss_weight",
        ),
    ),
    "bert-generation": replace(
        BERT,
        build=build(
            Encoder(
                spare_bias=True,
                token_types=False,
                pooled=False,
                transform=False,
                decodes=True,
                ends=("Model",),
                default="ForCausalLM",
            )
        ),
    ),
    "esm": replace(
        BERT,
        build=build(
            Encoder(
                token_types=False,
                embedding_norm="emb_layer_norm_before",
                final_norm=True,
                layers=e.esm,
                extra=e.contacts,
                ends=ENDS[:3] + ENDS[4:],
            )
        ),
        fixed={"is_folding_model": (False,), "add_cross_attention": (False,)},
        ignored=("vocab_list", "esmfold_config"),
    ),
    "deberta-v2": replace(
        BERT,
        build=build(_DEBERTA),
        fixed={"conv_kernel_size": (0,), "legacy": (True,), "attention_head_size": ()},
        ignored=("pooler_dropout", "pooler_hidden_act", "conv_act"),
    ),
    "deberta": replace(
        BERT,
        build=build(replace(_DEBERTA, layers=e.disentangled_first)),
        fixed={
            "legacy": (True,),
            "talking_head": (False,),
            "share_att_key": (False,),
            "norm_rel_ebd": ("none",),
            "position_buckets": (-1, 0),
        },
        ignored=("pooler_dropout", "pooler_hidden_act", "padding_idx"),
    ),
    "big_bird": replace(
        BERT,
        build=build(
            replace(
                _DENSE, decodes=False, layers=e.big_bird, keeps_pooler=ENDS, ends=(*ENDS[:3], "Model", "ForPreTraining")
            )
        ),
        qkv_bias=("use_bias", True),
        ignored=("rescale_embeddings", "directionality"),
    ),
    "longformer": replace(
        BERT,
        build=build(replace(_OFFSET, decodes=False, layers=e.banded(led_windows), extra=e.global_projections)),
        ignored=("onnx_export", "ignore_attention_mask", "attention_mode", "autoregressive"),
    ),
    "luke": replace(
        BERT,
        build=build(
            Encoder(
                padded=True, classifier="pooled", transform=e.words, extra=e.entities, keeps_pooler=("ForMaskedLM",)
            )
        ),
        ignored=("bert_model_name", "cls_entity_prediction"),
    ),
    "xmod": replace(
        BERT,
        build=build(replace(_OFFSET, decodes=True, layers=e.adapted, extra=e.other_languages)),
        fixed={"pre_norm": (False,), "add_cross_attention": (False,)},
        ignored=("adapter_reuse_layer_norm", "ln_before_adapter", "default_language"),
    ),
    "esmc": replace(
        BERT,
        build=build(
            Encoder(
                positions=False,
                token_types=False,
                pooled=False,
                embedding_norm=False,
                final_norm=True,
                transform=e.words,
                layers=e.protein,
                extra=e.norm_biases,
                ends=ENDS[:3] + ENDS[4:],
            )
        ),
        tied=False,
        norm="layer_plain",
        qkv_bias=("attention_bias", False),
        out_bias=("attention_bias", False),
        mlp_bias=("mlp_bias", False),
        gated=True,
        rotary=True,
        activation="silu",
        fixed={"tie_word_embeddings": (False,)},
    ),
    "modernbert": _MODERN,
    "modernbert-decoder": replace(
        _MODERN,
        build=build(
            Encoder(
                positions=False,
                token_types=False,
                pooled=False,
                final_norm=True,
                classifier="mlm",
                transform_bias="classifier_bias",
                label_bias="classifier_bias",
                vocabulary_bias="decoder_bias",
                default="ForCausalLM",
                causal=True,
                ends=("ForSequenceClassification", "Model"),
                layers=e.alternating("local_attention", lambda size: size // 2, first_norms=1),
            )
        ),
    ),
    "eurobert": _EURO,
    "ultrabert": replace(
        _EURO,
        build=build(
            Encoder(
                positions=False,
                token_types=False,
                pooled=False,
                embedding_norm=False,
                final_norm=True,
                classifier="plain",
                transform=e.bottleneck,
                layers=e.alternating("sliding_window", lambda size: 2 * size + 1, first=2),
            )
        ),
        fixed={"tie_word_embeddings": (False,)},
    ),
    "nomic_bert": _NOMIC,
    "gte": _GTE,
    "jina_embeddings_v3": replace(BERT, build=build(Encoder(spare_bias=True, positions=False)), rotary=True),
    "xlm": _XLM,
    "flaubert": _XLM,
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
    "tipsv2_text_model": replace(
        BERT,
        build=build(
            Encoder(
                positions=False,
                token_types=False,
                pooled=False,
                embedding_norm=False,
                final_norm=True,
                ends=("Model",),
                default="Model",
            )
        ),
        ignored=("scale_sqrt_depth", "pooling_epsilon"),
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
