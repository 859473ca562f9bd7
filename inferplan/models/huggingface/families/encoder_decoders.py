"""Encoder-decoders of text and of sound, and encoders of sound alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inferplan.models.huggingface import conformer, ctc
from inferplan.models.huggingface import encoder_decoder as e
from inferplan.models.huggingface.dialect import Dialect

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
    "canary": replace(_BIASED, build=e.canary, tied=True),
    "cohere_asr": replace(_BIASED, build=e.cohere_asr, tied=False),
}

SOUND: dict[str, Dialect] = {
    "wav2vec2": _WAV2VEC2,
    "hubert": _WAV2VEC2,
    "unispeech": _WAV2VEC2,
    "unispeech-sat": replace(_WAV2VEC2, build=ctc.ctc(ctc.Sound(masked=True))),
    "data2vec-audio": replace(_WAV2VEC2, build=ctc.ctc(ctc.Sound(stacked=True))),
}
"""Encoders that label every position of sound."""

CONFORMERS: dict[str, Dialect] = {
    "wav2vec2-conformer": replace(_WAV2VEC2, build=ctc.ctc(ctc.Sound(conformer=True))),
    "wav2vec2-bert": replace(_WAV2VEC2, build=ctc.features),
    "parakeet_ctc": replace(_WAV2VEC2, build=conformer.fast),
    "lasr_ctc": replace(_WAV2VEC2, build=conformer.lasr),
}
"""The same, with conformers for layers."""

ALIASES: dict[str, str] = {}
"""Other names of a row."""

UNKNOWN = {
    "trocr": "its decoder attends to an encoder of images that its own config does not describe",
    "wavlm": "its bias by distance has a gate of each head's query: no layer kind has that",
    "sew": "it halves its positions inside and doubles them again: no layer kind does that",
    "sew-d": "its attention is DeBERTa's, between positions that are halved and doubled again",
    "granite_speech5_ctc": "its first layers halve the positions, and a head of labels stands in its middle",
    "prophetnet": "its decoder attends in two streams, one for each token that it predicts: no layer kind does that",
    "t5gemma2": "its decoder attends to itself and to the encoder in one softmax: no layer kind does that",
    "encoder-decoder": "its two halves are models of any two families",
    "speech-encoder-decoder": "its two halves are models of any two families",
    "seamless_m4t": "its speech encoders, text decoders and unit vocoder are several models in one",
    "seamless_m4t_v2": "its speech encoders, text decoders and unit vocoder are several models in one",
    "speecht5": "its speech and text networks around one encoder-decoder are chosen by the task",
    "pop2piano": "its mel conditioner and its encoder read sound as embeddings: no layer kind does that",
    "moonshine_streaming": "its encoder looks ahead by a window of its own in each layer: no layer kind does that",
    "dia": "its decoder writes nine channels of sound at once: no layer kind does that",
}
"""Families that are known and not covered, and what they need."""
