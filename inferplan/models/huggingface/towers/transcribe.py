"""What listens in Nemotron 3.5 Transcribe: an encoder of speech, one of who speaks, and one of when a word is said."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import AUDIO, Beside, Media
from inferplan.models.huggingface.towers.parts import block, conv, heads_of, linear, norm, tower

_SPEAKERS, _TIMES = "diarization_config", "word_timestamp_config"


def _encoder(r: Reader, qk_norm: str) -> dict[str, Any]:
    """Layers with rotary positions between two norms; queries, keys and values without biases."""
    width, heads = r.integer("hidden_size"), r.integer("num_attention_heads")
    r.only("num_key_value_heads", heads)
    style = {"qkv_bias": False, "rotary": True, "qk_norm": qk_norm}
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), **style)
    r.skip("hidden_act", "max_position_embeddings")
    tensors = norm("norm.before", width) | norm("norm", width)
    return tower(width, [{"repeat": r.integer("num_hidden_layers"), **layer}], tensors)


def _stacked(r: Reader, width: int) -> dict[str, list[int]]:
    """Neighbouring frames of the spectrogram as one vector."""
    return linear("stem", r.integer("subsampling_factor") * r.integer("num_mel_bins"), width, bias=False)


def _speakers(m: Media, whole: Reader) -> tuple[dict[str, Any], int]:
    """The encoder of who speaks, and how many it knows."""
    r = m.within(whole, _SPEAKERS, "")
    inner, head = m.within(r, AUDIO, "", kept="speakers"), m.within(r, "head_config", "")
    found, narrow, number = _encoder(inner, "none"), head.integer("hidden_size"), head.integer("num_speakers")
    width = found["d_model"]
    head.only("audio_hidden_size", width)
    found["tensors"] |= _stacked(inner, width) | {"silence": [width]} | linear("narrow", width, narrow)
    found["tensors"] |= conv("upsample", narrow, narrow * head.integer("subsampling_factor"), 3)
    found["tensors"] |= linear("head.0", narrow, narrow) | linear("head.1", narrow, number)
    r.skip("streaming_config", "chunk_length", "chunk_right_context", "chunk_left_context", "fifo_length")
    r.skip("speaker_cache_update_period")
    return found, number


def transcribe(m: Media) -> None:
    """Speech and speakers under a norm each, one matrix; words are placed in time by an encoder and a head."""
    whole, times = m.part(AUDIO, ""), m.part(_TIMES, "")
    listens = m.within(whole, "asr_config", "")
    first = _encoder(listens, "layer")
    width = first["d_model"]
    second, number = _speakers(m, whole)
    first["tensors"] |= _stacked(listens, width) | norm("norm.speech", width) | norm("norm.speakers", number)
    first["tensors"] |= linear("projector", width, m.d_model)
    third = _encoder(times, "layer")
    if third["d_model"] != width:
        raise times.refuse(f"hidden_size = {third['d_model']}", f"what it reads is {width} wide")
    third["tensors"] |= conv("upsample", width, width, times.integer("upsampling_factor"))
    third["tensors"] |= linear("head", width, times.integer("vocab_size"))
    times.skip("residual_scale", "blank_token_id")
    whole.skip("speaker_activity_threshold")
    m.untied()
    m.notes.append("transformers keeps what listens in fp32: its memory here is that of the base format")
    m.towers |= {AUDIO: first, _SPEAKERS: second, _TIMES: third}


JOINED: dict[str, Beside] = {"nemo_speechlm": Beside(towers={}, join=transcribe)}
"""Rows of the table of what stands beside a language model."""
