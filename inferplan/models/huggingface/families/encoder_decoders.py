"""Encoder-decoders of text and of sound, and encoders of sound alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inferplan.models.huggingface import conformer, ctc, pictures, speech
from inferplan.models.huggingface import encoder_decoder as e
from inferplan.models.huggingface.dialect import Dialect
from inferplan.models.huggingface.streams import prophetnet

_BIASED = Dialect(build=e.bart(e.Bart()), tied=True, norm="layer", qkv_bias=True, activation="gelu")
_BART = replace(_BIASED, build=e.bart(e.Bart(offset=2)), embedding_norm=True)
_T5 = Dialect(build=e.t5, tied=True)
_LED = e.Bart(offset=0, encoder_attention=e.banded(e.led_windows))
_BIG_BIRD = e.Bart(offset=0, final_norm=True, encoder_attention=e.banded(e.big_bird_blocks))
_WAV2VEC2 = Dialect(build=ctc.ctc(ctc.Sound()), norm="layer")
_PEGASUS_X = e.Bart(final_norm=True, norms=3, encoder_attention=e.banded(e.pegasus_x_blocks))

FAMILIES: dict[str, Dialect] = {
    "t5": _T5,
    "mt5": _T5,
    "umt5": replace(_T5, build=partial(e.t5, every=True)),
    "longt5": _T5,
    "switch_transformers": replace(_T5, build=partial(e.t5, experts=e.switch_experts)),
    "t5gemma": replace(_T5, build=e.t5gemma),
    "t5gemma2": replace(_T5, build=e.t5gemma2),
    "prophetnet": replace(_BIASED, build=prophetnet),
    "bart": _BART,
    "mbart": replace(_BART, build=e.bart(e.Bart(offset=2, final_norm=True))),
    "plbart": _BART,
    "mvp": replace(_BART, build=e.mvp),
    "blenderbot": replace(_BIASED, build=e.bart(e.Bart(offset=0, final_norm=True))),
    "blenderbot-small": replace(_BART, build=e.bart(e.Bart(offset=0))),
    "pegasus": replace(_BIASED, build=e.bart(e.Bart(offset=0, final_norm=True))),
    "pegasus_x": replace(_BIASED, qkv_bias=False, build=e.bart(_PEGASUS_X)),
    "bigbird_pegasus": replace(
        _BIASED, qkv_bias=("use_bias", False), build=e.bart(_BIG_BIRD), fixed={"attention_type": ("block_sparse",)}
    ),
    "led": replace(_BART, build=e.bart(_LED)),
    "marian": replace(_BIASED, build=e.marian),
    "m2m_100": replace(_BIASED, build=e.bart(e.Bart(final_norm=True)), activation="relu"),
    "nllb-moe": replace(_BIASED, build=e.bart(e.Bart(final_norm=True, experts=e.nllb_experts)), activation="relu"),
    "fsmt": replace(_BIASED, build=e.fsmt, tied=False, activation="relu"),
    "whisper": replace(_BIASED, build=e.whisper, attention={"key_bias": False}),
    "speech_to_text": replace(_BIASED, build=e.speech_to_text, activation="relu"),
    "moonshine": replace(_BIASED, build=e.moonshine),
    "moonshine_streaming": replace(_BIASED, build=speech.moonshine_streaming, tied=False),
    "speecht5": replace(_BIASED, build=speech.speecht5),
    "pop2piano": replace(_T5, build=speech.pop2piano),
    "seamless_m4t": replace(_BIASED, build=speech.seamless, activation="relu"),
    "seamless_m4t_v2": replace(_BIASED, build=speech.seamless, activation="relu"),
    "dia": replace(_T5, build=speech.dia, tied=False),
    "canary": replace(_BIASED, build=e.canary, tied=True),
    "cohere_asr": replace(_BIASED, build=e.cohere_asr, tied=False),
}

SOUND: dict[str, Dialect] = {
    **{kind: replace(_WAV2VEC2, build=ctc.ctc(style)) for kind, style in ctc.RELATIVES.items() if not style.conformer},
    "sew": replace(_WAV2VEC2, build=ctc.ctc(ctc.Sound(squeezed=True))),
    "sew-d": replace(
        _WAV2VEC2,
        build=ctc.ctc(ctc.Sound(squeezed=True, disentangled=True)),
        ignored=("feature_layer_norm_eps", "max_position_embeddings"),
    ),
}
"""Encoders that label every position of sound."""

CONFORMERS: dict[str, Dialect] = {
    "wav2vec2-conformer": replace(_WAV2VEC2, build=ctc.ctc(ctc.RELATIVES["wav2vec2-conformer"])),
    "wav2vec2-bert": replace(_WAV2VEC2, build=ctc.features),
    "parakeet_ctc": replace(_WAV2VEC2, build=conformer.fast),
    "granite_speech5_ctc": replace(_WAV2VEC2, build=conformer.granite, tied=True),
    "lasr_ctc": replace(_WAV2VEC2, build=conformer.lasr),
}
"""The same, with conformers for layers."""

_PICTURE = Dialect(build=pictures.blip, norm="layer", whole=True)
PICTURES: dict[str, Dialect] = {
    "blip": replace(_PICTURE, tied=True),
    "pix2struct": replace(_PICTURE, build=pictures.pix2struct),
    "pp_formulanet": replace(_PICTURE, build=pictures.formula),
    "udop": replace(_T5, build=pictures.udop),
}
"""Encoder-decoders whose encoder reads an image."""

ALIASES: dict[str, str] = {}
"""Other names of a row."""

UNKNOWN: dict[str, str] = {}
"""Families that are known and not covered, and what they need."""
