"""Configs that the tables do not describe, as transformers' own classes read them without being asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferplan.catalog import file_cache, readings
from inferplan.catalog.files import load_model
from inferplan.errors import SpecError
from inferplan.models.huggingface import model_from_config
from inferplan.models.huggingface.families import ALIASES, FAMILIES
from inferplan.models.spec import ModelSpec
from tests.cases import for_each
from tests.oracle.traced import DECODE, PREFILL, config_of, work
from tests.oracle.zoo import sample

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SMALL = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 192}
SMALL |= {"vocab_size": 500, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = SMALL | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 16}
LOCAL = SMALL | {"num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 16}
HEADS = SMALL | {"head_dim": 16}
MLA = SMALL | {"num_key_value_heads": 8, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
MLA |= {"qk_nope_head_dim": 16, "v_head_dim": 16, "moe_intermediate_size": 48, "n_routed_experts": 8}
MLA |= {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 3}
HYBRID = {"num_hidden_layers": 4}

ATTENTION: dict[str, dict[str, Any]] = {
    "mistral": SMALL,
    "llama": SMALL,
    "qwen2": SMALL,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 96},
    "qwen3": HEADS,
    "qwen3_moe": EXPERTS,
    "mixtral": LOCAL,
    "gemma2": HEADS | {"sliding_window": 40, "query_pre_attn_scalar": 16},
    "gemma3_text": HEADS | {"sliding_window": 40, "query_pre_attn_scalar": 16},
    "gpt_oss": {"num_hidden_layers": 2},
    "phi3": SMALL,
    "glm4": HEADS,
    "olmo2": SMALL,
    "cohere2": HEADS | {"sliding_window": 40},
    "granite": SMALL,
    "starcoder2": SMALL,
    "minimax_m2": LOCAL,
    "stablelm": SMALL,
    "smollm3": SMALL,
    "gpt2": {"n_embd": 128, "n_head": 4, "n_layer": 2, "vocab_size": 500},
}
"""Types that engines serve, whose operators are compared too."""
MIXERS: dict[str, dict[str, Any]] = {
    "deepseek_v3": MLA,
    "glm4_moe_lite": HYBRID,
    "qwen3_next": HYBRID,
    "qwen3_5_text": HYBRID,
    "olmo_hybrid": HYBRID,
    "mamba2": HYBRID,
    "falcon_h1": HYBRID,
    "nemotron_h": {},
}
"""The same with latents that transformers expands, or with scans, which are found to be described kinds."""
COUNTED: dict[str, dict[str, Any]] = {"jamba": {"num_hidden_layers": 8}}
"""One whose scans are not: parameters, cache and state are compared."""


@pytest.fixture
def file_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, Any]], str]]:
    """A config as a file, beside a cache that is empty."""
    monkeypatch.setenv("INFERPLAN_CACHE", str(tmp_path / "cache"))
    file_cache._folder.cache_clear()

    def write(config: dict[str, Any]) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return str(path)

    yield write
    file_cache._folder.cache_clear()


def counts(model: ModelSpec) -> tuple[float, ...]:
    return (
        model.parameters["total"] + model.tower_parameters,
        model.kv_elements_per_token,
        model.kv_elements_per_token_beyond_windows,
        model.state_elements_per_sequence,
    )


def forget(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Take a type out of every table."""
    monkeypatch.delitem(FAMILIES, kind)
    monkeypatch.delitem(ALIASES, kind, raising=False)


TIMED = ATTENTION | MIXERS
KINDS = [*TIMED, *COUNTED]


@for_each("kind", KINDS if sample(KINDS) == KINDS else KINDS[:1])  # each takes seconds
def test_a_type_without_a_row_is_answered_as_with_one(
    kind: str, file_of: Callable[[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(kind, {**TIMED, **COUNTED}[kind])
    described = model_from_config(config, "m", "test")
    forget(monkeypatch, kind)
    found = load_model(file_of(config))
    assert (found.basis, described.basis) == ("traced", "described")
    assert found.made_from.traced.startswith(f"transformers {transformers.__version__}")
    assert counts(found) == counts(described)
    for load in (PREFILL, DECODE) if kind in TIMED else ():
        assert work(found, load) == pytest.approx(work(described, load), rel=0.01)


def test_such_a_type_is_answered_in_the_formats_of_its_config(
    file_of: Callable[[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to the byte; fp8 has a byte an element and 4 for a block of 128 x 128, which no router is in."""
    sizes = {"hidden_size": 256, "num_attention_heads": 2, "head_dim": 128, "moe_intermediate_size": 128}
    table = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    config = config_of("qwen3_moe", EXPERTS | sizes) | {"quantization_config": table}
    described = model_from_config(config, "m", "test")
    forget(monkeypatch, "qwen3_moe")
    found = load_model(file_of(config))
    matrices = 2 * (256 * 256 * 2 + 2 * 256 * 256 + 8 * 3 * 128 * 256)
    wide = 2 * (500 * 256 * (1 if described.tied else 2) + 256 + 2 * (8 * 256 + 2 * 256 + 2 * 128))
    assert found.basis == "traced"
    assert (found.native.experts, found.native.activations) == ("fp8-block", "fp8")
    assert found.checkpoint_bytes == described.checkpoint_bytes == matrices * (1 + 4 / 128**2) + wide


def test_a_second_command_reads_what_the_first_has_kept(
    file_of: Callable[[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, which imports neither torch nor transformers."""
    path = file_of(config_of("qwen3", HEADS))
    forget(monkeypatch, "qwen3")
    total = load_model(path).parameters["total"]
    code = "import sys; from inferplan.models.huggingface.families import FAMILIES; FAMILIES.pop('qwen3')\n"
    code += f"from inferplan.catalog.files import load_model; m = load_model({path!r})\n"
    code += "print(m.basis, m.parameters['total'], {'torch', 'transformers'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert ran.stdout.split() == ["traced", str(total), "set()"], ran.stderr


def test_fields_that_change_nothing_are_taken_out(file_of: Callable[[dict[str, Any]], str]) -> None:
    """Both readings count the same: the described model stays, with its operators."""
    found = load_model(file_of(config_of("llama", SMALL) | {"brand_new": 7}))
    assert found.basis == "described"
    assert counts(found) == counts(model_from_config(config_of("llama", SMALL), "m", "test"))
    assert "brand_new" in found.notes[-1]
    assert f"transformers {transformers.__version__}" in found.notes[-1]


def test_fields_that_change_a_count_are_refused_with_the_part_where_they_do(
    file_of: Callable[[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that does not know ``attention_bias``: biases of q, k, v and o have 128 + 2 x 32 + 128 elements."""
    monkeypatch.setitem(FAMILIES, "llama", replace(FAMILIES["llama"], qkv_bias=False, out_bias=False))
    path = file_of(config_of("llama", SMALL) | {"attention_bias": True})
    with pytest.raises(SpecError, match="attention_bias") as refused:
        load_model(path)
    matrices = 2 * 128 * (128 + 32) + 3 * 128 * 192 + 2 * 128
    assert f"layer 0 {matrices:,} for {matrices + 128 + 2 * 32 + 128:,}" in refused.value.because


@for_each(
    "more",
    [
        {"aligner_config": {"depth": 2}},
        {"num_nextn_predict_layers": 1},
        {"brand_new": 7, "architectures": ["NobodysForCausalLM"]},
    ],
)
def test_what_only_other_code_can_read_is_refused(
    file_of: Callable[[dict[str, Any]], str], more: dict[str, Any]
) -> None:
    """A whole table that transformers reads nothing of, prediction modules, or a class that it does not have."""
    with pytest.raises(SpecError, match="not understood") as refused:
        load_model(file_of(config_of("llama", SMALL) | more))
    assert "other code may" in refused.value.because


def test_a_type_of_neither_reading_is_refused_with_both_reasons(file_of: Callable[[dict[str, Any]], str]) -> None:
    with pytest.raises(SpecError) as refused:
        load_model(file_of(SMALL | {"model_type": "nobodys"}))
    assert "would be guesses" in refused.value.because
    assert f"transformers {transformers.__version__}" in refused.value.because


def test_without_transformers_the_extra_is_named(
    file_of: Callable[[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "find_spec", lambda name: None)
    for config in (SMALL | {"model_type": "nobodys"}, config_of("llama", SMALL) | {"brand_new": 7}):
        with pytest.raises(SpecError) as refused:
            load_model(file_of(config))
        assert "pip install 'torch>=2.11' 'transformers<5.24,>=5.20'" in refused.value.hint


def test_code_that_mixes_widths_is_run_in_the_wider_one(file_of: Callable[[dict[str, Any]], str]) -> None:
    """DeBERTa, which no table describes, as its class counts it."""
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = transformers.DebertaConfig(vocab_size=99, **small)
    with torch.device("meta"):
        built = transformers.DebertaForMaskedLM(config)
    found = load_model(file_of(config.to_dict() | {"architectures": ["DebertaForMaskedLM"]}))
    assert found.parameters["total"] == sum(tensor.numel() for tensor in built.parameters())
    assert (found.encodes, found.native.base) == (True, "bf16")
