"""Encoders that mix their tokens otherwise than by plain attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inferplan.models.huggingface import mixing_encoders as u
from inferplan.models.huggingface.dialect import Dialect
from inferplan.models.huggingface.encoder import ENDS, PRETRAINED, Encoder
from inferplan.models.huggingface.encoder import build as built
from inferplan.models.huggingface.families.encoders import BERT
from inferplan.models.huggingface.latents import perceiver

_ADDED = Encoder(spare_bias=True, pooled=False, extra=u.two_more)
_LABELLED = Encoder(spare_bias=True, classifier="pooled")

FAMILIES: dict[str, Dialect] = {
    "squeezebert": replace(BERT, build=built(replace(_LABELLED, layers=u.squeeze, keeps_pooler=PRETRAINED))),
    "mobilebert": replace(
        BERT,
        build=partial(
            u.mobile,
            replace(
                _LABELLED,
                embedding="embedding_size",
                projects=True,
                positions=False,
                token_types=False,
                embedding_norm=False,
                layers=u.bottlenecks,
                ends=PRETRAINED,
            ),
        ),
    ),
    "fnet": replace(
        BERT,
        build=built(
            replace(_LABELLED, layers=u.fourier, extra=u.projected_input, ends=PRETRAINED, keeps_pooler=PRETRAINED)
        ),
        ignored=("use_tpu_fourier_optimizations", "tpu_short_seq_length"),
    ),
    "convbert": replace(
        BERT,
        build=built(Encoder(embedding="embedding_size", pooled=False, layers=u.convolved)),
    ),
    "nystromformer": replace(BERT, build=built(replace(_ADDED, layers=u.landmarks)), fixed={}),
    "yoso": replace(BERT, build=built(replace(_ADDED, layers=u.hashed)), fixed={}),
    "funnel": replace(
        BERT,
        build=built(
            Encoder(
                positions=False,
                token_types=False,
                pooled=False,
                transform=False,
                discriminates=True,
                layers=u.funnel,
                ends=(*ENDS, "ForPreTraining"),
            )
        ),
    ),
    "reformer": replace(
        BERT,
        build=partial(
            u.reformer,
            Encoder(
                positions=False,
                token_types=False,
                pooled=False,
                embedding_norm=False,
                transform=u.doubled,
                layers=u.hashes,
                ends=("ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering", "Model"),
            ),
        ),
        tied=False,
        fixed={"is_decoder": (False,)},
    ),
    "perceiver": Dialect(build=perceiver, tied=True),
    "neomme": replace(
        BERT,
        build=partial(
            u.neomme,
            Encoder(
                positions=False,
                token_types=False,
                pooled=False,
                embedding_norm=False,
                final_norm=True,
                transform=False,
                layers=u.exclusive,
                ends=("ForMaskedLM", "Model"),
            ),
        ),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=("mlp_bias", False),
        rotary=True,
        activation="relu2",
    ),
    "mra": replace(BERT, build=built(replace(_ADDED, layers=u.resolutions)), fixed={}),
}

ALIASES: dict[str, str] = {}
"""Other names of a row."""

UNKNOWN: dict[str, str] = {}
"""Families that are known and not covered, and what they need."""
