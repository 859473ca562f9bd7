"""Encoder-decoders against transformers on meta: parameters, caches, FLOP; their laws; and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    CONFIG_MAPPING,
    BartConfig,
    BartForConditionalGeneration,
    EncoderDecoderCache,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING as TEXT
from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING as SPEECH

from inferplan.answers.emit import command_line, launch
from inferplan.answers.recipe import UsersAtATime, recipe
from inferplan.catalog.assemble import Request, assemble
from inferplan.cli import cli
from inferplan.errors import SpecError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.models.huggingface import import_config
from inferplan.models.huggingface.families import encoder_decoders
from inferplan.models.media import MediaAsked
from inferplan.models.spec import ModelSpec
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.applied import Techniques, served_estimate
from inferplan.serving.techniques.speculation import Speculation
from inferplan.traffic.requests import Lengths, OpenLoop, Traffic
from inferplan.work.ops import Attention, Conv, GroupedMatmul, Matmul
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Step, decode, prefill
from tests.cases import for_each
from tests.oracle.built import config_of

OTHERS: dict[str, list[dict[str, Any]]] = {
    "t5": [{"num_decoder_layers": 2, "feed_forward_proj": "gated-gelu"}, {"d_kv": 48, "num_heads": 5}],
    "umt5": [{"relative_attention_num_buckets": 16, "num_layers": 3}],
    "bart": [{"decoder_layers": 3, "decoder_ffn_dim": 80}, {"encoder_attention_heads": 4}],
    "whisper": [{"num_mel_bins": 128, "max_source_positions": 750, "decoder_layers": 2}],
    "cohere_asr": [{"hidden_size": 512, "num_hidden_layers": 2, "num_key_value_heads": 4, "tie_word_embeddings": True}],
    "moonshine": [{"decoder_num_key_value_heads": 2, "attention_bias": True, "encoder_num_hidden_layers": 3}],
}


def imported(config: Any) -> ModelSpec:
    return import_config(json.loads(json.dumps(config.to_dict(), default=str)), "x", "x").model


@for_each(
    ("kind", "fields"),
    [(kind, fields) for kind in encoder_decoders.FAMILIES for fields in ({}, *OTHERS.get(kind, []))],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "default",
)
def test_parameters_are_those_of_the_class(kind: str, fields: dict[str, Any]) -> None:
    config = config_of(kind, fields)
    built = SPEECH.get(type(config), None) or TEXT.get(type(config), None)
    with torch.device("meta"):
        model = built(config)
    model.tie_weights()
    found = imported(config)
    assert found.parameters["total"] + found.tower_parameters == sum(one.numel() for one in model.parameters())


SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
MEL = {"num_mel_bins": 16, "subsampling_conv_channels": 24, "conv_kernel_size": 7}


def test_flop_of_a_transcriber_are_those_of_the_class() -> None:
    """One token written about 320 frames of the spectrum, which are 40 positions."""
    encoder = SMALL | MEL | {"model_type": "parakeet_encoder"}
    fields = SMALL | {"hidden_size": 48, "head_dim": 12, "encoder_config": encoder}
    config = CONFIG_MAPPING["cohere_asr"](vocab_size=50, **fields)
    config._attn_implementation = "eager"
    model = imported(config)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        built = SPEECH[type(config)](config).eval()
        built(input_features=torch.ones(1, 320, 16), decoder_input_ids=torch.ones(1, 1, dtype=torch.long))
    ops = [op for stage in build(deployment(model), prefill(1.0, 40.0)) for op in stage.ops]
    flop = sum(float(op.work().flop * op.count) for op in ops if isinstance(op, Matmul | Attention | Conv))
    assert flop == counter.get_total_flops()


T5 = T5Config(d_model=64, d_kv=12, d_ff=96, num_layers=3, num_decoder_layers=2, num_heads=4, vocab_size=500)
GATED = T5Config(
    d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=500, feed_forward_proj="gated-gelu"
)
BART = BartConfig(
    d_model=64, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=96, decoder_ffn_dim=128, vocab_size=500,
)  # fmt: skip
WHISPER = WhisperConfig(
    d_model=64, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=96, decoder_ffn_dim=128, vocab_size=600, max_source_positions=50, max_target_positions=40,
    num_mel_bins=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    begin_suppress_tokens=None,
)  # fmt: skip
CLASSES = {
    "t5": (T5ForConditionalGeneration, T5),
    "gated t5": (T5ForConditionalGeneration, GATED),
    "bart": (BartForConditionalGeneration, BART),
    "whisper": (WhisperForConditionalGeneration, WHISPER),
}


class Run:
    """A class on meta: its first pass over ``source`` positions, and the FLOP of it and of the next step."""

    def __init__(self, name: str, batch: int, source: int) -> None:
        kind, config = CLASSES[name]
        config._attn_implementation = "eager"
        inputs: dict[str, Any] = {"input_ids": torch.ones(batch, source, dtype=torch.long, device="meta")}
        if name == "whisper":
            inputs = {"input_features": torch.ones(batch, config.num_mel_bins, 2 * source, device="meta")}
        with torch.device("meta"), torch.no_grad():
            model = kind(config).eval()
            one = torch.ones(batch, 1, dtype=torch.long)
            with FlopCounterMode(display=False) as first:
                output = model(**inputs, decoder_input_ids=one, use_cache=True)
            self.first = self.cached(output.past_key_values)
            with FlopCounterMode(display=False) as second:
                output = model(
                    encoder_outputs=BaseModelOutput(last_hidden_state=output.encoder_last_hidden_state),
                    decoder_input_ids=one,
                    past_key_values=output.past_key_values,
                    use_cache=True,
                )
        self.second = self.cached(output.past_key_values)
        self.flop = first.get_total_flops(), second.get_total_flops()

    @staticmethod
    def cached(cache: Any) -> tuple[int, int]:
        """Elements of keys and values of the decoder, and of the encoder's positions."""
        assert isinstance(cache, EncoderDecoderCache)
        return tuple(
            sum(layer.keys.numel() + layer.values.numel() for layer in half.layers)
            for half in (cache.self_attention_cache, cache.cross_attention_cache)
        )


def deployment(model: ModelSpec | str, **more: Any) -> Deployment:
    return assemble(Request(model="x", gpu="h100-sxm", **more), model_loader=lambda _: load(model))


def load(model: ModelSpec | str) -> ModelSpec:
    from inferplan.catalog.files import load_model

    return load_model(model) if isinstance(model, str) else model


def multiplied(one: Deployment, step: Step) -> float:
    """FLOP of matmuls and attention, which torch counts."""
    ops = [op for stage in build(one, step) for op in stage.ops]
    return sum(float(op.work().flop * op.count) for op in ops if isinstance(op, Matmul | GroupedMatmul | Attention))


@for_each("name", CLASSES)
def test_the_cache_grows_as_that_of_the_class(name: str) -> None:
    """The encoder's positions are kept once, and each token of the decoder beside them: as much for either."""
    batch, source = 2, 50 if name == "whisper" else 11
    run, model = Run(name, batch, source), imported(CLASSES[name][1])
    assert run.first == (batch * model.kv_elements_per_token, batch * source * model.kv_elements_per_token)
    assert run.second == (2 * run.first[0], run.first[1])


@for_each("name", CLASSES)
def test_flop_of_the_first_pass_and_of_a_step_are_those_of_the_class(name: str) -> None:
    batch, source = 2, 50 if name == "whisper" else 11
    run, one = Run(name, batch, source), deployment(imported(CLASSES[name][1]))
    assert multiplied(one, prefill(float(batch), float(source))) == run.flop[0]
    assert multiplied(one, decode(float(batch), float(source), float(source))) == run.flop[1]


def test_a_step_further_on_sees_what_was_written() -> None:
    """Two tokens more behind it: 4 FLOP for each of 2 layers, 4 heads of 12 and 2 sequences, twice."""
    one = deployment(imported(T5))
    steps = [multiplied(one, decode(2.0, 11.0 + written, 11.0)) for written in (0.0, 2.0)]
    assert steps[1] - steps[0] == 4 * 2 * 4 * 12 * 2 * 2


def test_whisper_tiny_by_hand() -> None:
    """Width 384, 4 + 4 layers, feed-forward of 1536, 80 bins: 30 s of sound, and the first token."""
    d, s, vocab = 384, 1500, 51865
    convolutions = 2 * 3000 * 80 * 3 * d + 2 * s * d * 3 * d
    encoder = 4 * (2 * s * 4 * d * d + 4 * s * s * d + 2 * s * 2 * d * 4 * d)
    cross = 4 * 2 * s * 2 * d * d
    decoder = 4 * (2 * 4 * d * d + 4 * d + 2 * 2 * d * d + 4 * s * d + 2 * 2 * d * 4 * d) + 2 * d * vocab
    one = deployment("whisper-tiny")
    assert multiplied(one, prefill(1.0, float(s))) == convolutions + encoder + cross + decoder
    assert multiplied(one, decode(1.0, float(s), float(s))) == decoder + 4 * 4 * d  # the start token and this one
    cached = estimate(one, StaticLoad(batch=3.0, prompt=1500.0, output=100.0)).footprint.state
    assert cached == 3 * (1500 + 100) * 4 * 2 * d * 2


@for_each("ideal", [True, False])
@settings(deadline=None, max_examples=30)
@given(
    source=st.integers(17, 4000),  # shorter prompts run through other kernels
    more=st.integers(1, 4000),
    written=st.integers(2, 300),
    batch=st.sampled_from([1, 7, 64]),
)
def test_a_longer_input_is_never_faster(ideal: bool, source: int, more: int, written: int, batch: int) -> None:
    one = deployment("t5-base", ideal=ideal)
    short, long = (
        estimate(one, StaticLoad(batch=float(batch), prompt=float(prompt), output=float(written)))
        for prompt in (source, source + more)
    )
    assert short.ttft <= long.ttft
    assert short.tpot <= long.tpot * (1 + 1e-9)
    assert short.footprint.state < long.footprint.state


@settings(deadline=None, max_examples=30)
@given(source=st.integers(16, 4000), written=st.integers(2, 2000), more=st.integers(1, 2000))
def test_what_the_encoder_left_does_not_grow_with_the_output(source: int, written: int, more: int) -> None:
    """The state of a longer output is more by its own tokens alone: 2 x 12 layers x 768 elements of 2 bytes each."""
    one = deployment("t5-base")
    states = [
        float(estimate(one, StaticLoad(prompt=float(source), output=float(output))).footprint.state)
        for output in (written, written + more)
    ]
    assert states[1] - states[0] == more * 2 * 12 * 768 * 2
    kept = {
        op.name: op for stage in build(one, decode(1.0, float(source + written), float(source))) for op in stage.ops
    }
    assert float(kept["cross.core"].work().flop) == 4 * source * 768


@for_each("tp", [2, 4])
def test_ranks_share_the_work_and_the_weights(tp: int) -> None:
    whole, shared = deployment("t5-large"), deployment("t5-large", parallel=Parallelism(tp=tp))
    step = prefill(4.0, 300.0)
    assert tp * multiplied(shared, step) == pytest.approx(multiplied(whole, step), rel=1e-3)  # rows of the head padded
    held = [estimate(one, StaticLoad(prompt=300.0)).footprint for one in (whole, shared)]
    assert tp * held[1].state == held[0].state
    assert tp * held[1].weights == pytest.approx(held[0].weights, rel=1e-3)


def test_a_simulated_request_takes_what_is_estimated() -> None:
    """Alone in the engine: each of its gaps is a step of the estimate."""
    one = deployment("t5-large", ideal=True)
    alone = estimate(one, StaticLoad(prompt=400.0, output=50.0))
    traffic = Traffic(
        arrivals=OpenLoop(rate=0.05), prompt=Lengths(mean=400.0), output=Lengths(mean=50.0), requests_count=20, seed=1
    )
    run = simulate(one, traffic)
    assert float(np.mean(run.tpot)) == pytest.approx(float(alone.tpot), rel=5e-3)
    assert float(np.mean(run.ttft)) == pytest.approx(float(alone.ttft), rel=2e-2)


def test_a_plan_finds_the_cheapest_that_keeps_the_limits() -> None:
    """Through the command, as a user asks: the simulated latencies of its record keep the limits."""
    words = "plan t5-base --rate 20 --prompt 512 --output 60 --ttft 2s --tpot 60ms --gpu l4 --most 2 --format json"
    result = CliRunner().invoke(cli, words.split())
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert 0 < record["plan"]["ttft_s"] <= 2.0
    assert 0 < record["plan"]["tpot_s"] <= 0.06


def test_inputs_of_several_lengths_in_a_step_have_the_pairs_of_each() -> None:
    """Prompts of 100 and 300 tokens attend 100^2 + 300^2 times, not 2 x 200^2 times: as two of 200 with past 25."""
    one = deployment("t5-base")
    tokens, pairs = 400, 100 * 101 / 2 + 300 * 301 / 2  # as the scheduler counts them, by a causal mask
    new = tokens / 2
    past = pairs / tokens - (new + 1) / 2
    (core,) = [op for s in build(one, prefill(2.0, new, past)) for op in s.ops if op.name == "encoder.attn.core"][:1]
    assert float(core.work().flop) == pytest.approx(4 * (100**2 + 300**2) * 768)


def served(model: str, techniques: Techniques) -> Any:
    return served_estimate(deployment(model), StaticLoad(), techniques)


REFUSED: list[tuple[str, Any]] = [
    ("an encoder-decoder and pipeline stages", lambda: deployment("t5-base", parallel=Parallelism(pp=2))),
    ("an encoder-decoder and attention data parallelism", lambda: deployment("t5-base", parallel=Parallelism(dp=2))),
    ("an encoder-decoder and context parallelism", lambda: deployment("t5-base", parallel=Parallelism(cp=2))),
    ("steps without a KV cache", lambda: estimate(deployment("t5-base"), StaticLoad(kv_cache=False))),
    ("logits of prompt tokens", lambda: estimate(deployment("t5-base"), StaticLoad(all_logits=True))),
    ("more than bart-large has positions", lambda: estimate(deployment("bart-large"), StaticLoad(prompt=1100.0))),
    ("500 tokens of output", lambda: estimate(deployment("whisper-tiny"), StaticLoad(prompt=1500.0, output=500.0))),
    ("30 s of sound", lambda: estimate(deployment("whisper-tiny"), StaticLoad(prompt=700.0))),
    ("the half of t5-base", lambda: deployment("t5-base", prune="layers=6")),
    ("flags for an encoder-decoder", lambda: command_line(launch(Request(model="t5-base", gpu="h100-sxm")))),
    ("no recipe", lambda: recipe(Request(model="t5-base", gpu="h100-sxm"), "static", ["fp8"], USERS)),
    ("encoder and drafts", lambda: served("t5-base", Techniques(speculation=DRAFTS))),
    ("encoder and a given hit rate", lambda: served("t5-base", Techniques(hit_rate=0.5))),
    ("encoder and drafts", lambda: simulate(deployment("t5-base"), TRAFFIC, options=Options(speculation=DRAFTS))),
    ("a model with an encoder and pools of their own", lambda: simulate(deployment("t5-base"), TRAFFIC, options=POOLS)),
    ("reads tokens", lambda: deployment("t5-base", media=MediaAsked(images=1))),
    ("more than whisper-tiny reads at once", lambda: deployment("whisper-tiny", media=MediaAsked(audio_seconds=31.0))),
    ("no chunked prefill", lambda: simulate(deployment("t5-base"), TRAFFIC, Flags(chunked_prefill=True))),
    ("no prefix cache", lambda: simulate(deployment("t5-base"), TRAFFIC, Flags(prefix_caching=True))),
    ("encoder and a given hit rate", lambda: simulate(deployment("t5-base"), TRAFFIC, options=Options(hit_rate=0.5))),
]  # fmt: skip
USERS = UsersAtATime(users=4, prompt=64.0, output=Lengths(mean=8.0), reserved=128)
POOLS = Options(fleet=Fleet(prefill=1, decode=1))
DRAFTS = Speculation(length=3, acceptance=0.7)
TRAFFIC = Traffic(arrivals=OpenLoop(rate=1.0), prompt=Lengths(mean=64.0), output=Lengths(mean=8.0), requests_count=8)


@for_each(("said", "call"), REFUSED, ids=[said for said, _ in REFUSED])
def test_what_cannot_be_is_refused_by_name(said: str, call: Any) -> None:
    with pytest.raises(UsageError, match=said):
        call()


def test_engines_neither_cut_nor_look_up_what_an_encoder_reads() -> None:
    scheduler = deployment("whisper-large").engine.defaults.scheduler
    assert (scheduler.chunked_prefill, scheduler.prefix_caching) == (False, False)
    assert deployment("llama-3.1-8b").engine.defaults.scheduler.chunked_prefill


@for_each(
    ("change", "said"),
    [
        ({"encoder": None}, "cross_attention needs an encoder"),
        ({"extras": []}, "and to it"),
        ({"window": 8}, "without a window"),
        ({"kv_heads": 1}, "as wide as those of the decoder"),
    ],
    ids=["no encoder", "no cross attention", "window", "narrower"],
)
def test_a_decoder_must_attend_to_its_encoder(change: dict[str, Any], said: str) -> None:
    data = imported(T5).to_dict()
    layer = data["layers"][-1]
    places = {"encoder": data, "extras": layer, "window": layer["mixer"], "kv_heads": layer["extras"][0]}
    for name, value in change.items():
        places[name][name] = value
    with pytest.raises(ValidationError, match=said):
        ModelSpec.model_validate(data)


@for_each("name", CLASSES)
def test_a_model_survives_its_own_mapping(name: str) -> None:
    model = imported(CLASSES[name][1])
    assert ModelSpec.model_validate(model.to_dict()) == model


@for_each("task", ["BartForCausalLM", "T5EncoderModel", "BartForSequenceClassification"])
def test_the_class_of_another_task_is_refused(task: str) -> None:
    config = (T5 if task.startswith("T5") else BART).to_dict() | {"architectures": [task]}
    with pytest.raises(SpecError, match=task):
        import_config(json.loads(json.dumps(config, default=str)), "x", "x")
