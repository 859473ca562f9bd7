"""At least a hundred quantisation tables against bytes counted tensor by tensor; rules against transformers' own."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from inferplan.catalog.assemble import native_precision  # noqa: E402
from inferplan.errors import SpecError  # noqa: E402
from inferplan.estimate.graph import build  # noqa: E402
from inferplan.models.huggingface import import_config  # noqa: E402
from inferplan.models.huggingface.quantisation.rules import (  # noqa: E402
    Module,
    by_component,
    by_substring,
    by_transformers,
)
from inferplan.work.step import Segment, Step  # noqa: E402
from tests.builders import chip, deploy  # noqa: E402
from tests.cases import for_each  # noqa: E402
from tests.oracle.quantised import MODELS, Case, config_of, predicted, stored  # noqa: E402
from tests.oracle.quantised_tables import CASES  # noqa: E402
from tests.oracle.traced import traced  # noqa: E402

TOLERANCE = 1e-3
"""What is not counted: scalars of a tensor, bitsandbytes' text of a state and its maps of values (1.3 kB a matrix)."""


@for_each("case", CASES, ids=lambda case: f"{case.model}-{case.name}")
def test_bytes_of_a_quantised_checkpoint(case: Case) -> None:
    assert predicted(case) == pytest.approx(stored(case), rel=TOLERANCE)


def test_there_are_a_hundred_tables_over_every_shape() -> None:
    assert len({(case.model, case.name) for case in CASES}) == len(CASES) >= 200
    assert {case.model for case in CASES} == set(MODELS)
    methods = {str(case.table.get("quant_method", "mlx")).lower() for case in CASES}
    assert len(methods) >= 13


def test_a_wrong_table_is_seen() -> None:
    """The comparison can fail: another group, another list, a head that is packed."""
    for name, change in (
        ("gptq 4 bits, 128", {"group_size": 64}),
        ("awq, inner name", {"modules_to_not_convert": ["mlp"]}),
        ("gptq, head", {"lm_head": False}),
    ):
        case = next(case for case in CASES if (case.model, case.name) == ("llama", name))
        wrong = replace(case, table=case.table | change)
        assert predicted(wrong) != pytest.approx(stored(case), rel=TOLERANCE)


@for_each("family", ["llama", "qwen3_moe", "deepseek_v3", "qwen3_next", "jamba"])
@for_each("skips", [[], ["mlp"], ["model.layers.0"], ["o_proj"]])
def test_fp8_as_transformers_builds_it(family: str, skips: list[str]) -> None:
    """Its own ``replace_with_fp8_linear`` on meta: every FP8Linear and FP8Experts with their scales.

    Inner names are left out by the loaders of engines and not by transformers: there the model is told what that is.
    """
    import torch
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

    config = transformers.CONFIG_MAPPING[family](**MODELS[family])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    routers = [n for n, m in model.named_modules() if re.search(r"(router|mlp\.gate|expert_gate)$", n)]
    left = ["lm_head", *routers, *(f".*{skip}" for skip in skips)]
    table = transformers.FineGrainedFP8Config(modules_to_not_convert=left)
    replace_with_fp8_linear(model, modules_to_not_convert=left, quantization_config=table, pre_quantized=True)
    expected = sum(parameter.nbytes for parameter in model.parameters())
    said = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", *skips]}
    found = import_config(config_of(family) | {"quantization_config": said}, family, "test").model
    assert found.checkpoint_bytes == pytest.approx(expected, rel=TOLERANCE)


SAME = ("fp8 blocks", "awq 128", "gptq 4 bits, 128", "compressed-tensors W4A16")


@for_each("case", [one for one in CASES if one.model in ("llama", "qwen3_moe") and one.name in SAME], ids=str)
def test_a_quantised_config_is_read_module_by_module(case: Case) -> None:
    """The bytes are those of every tensor that the method stores, and of the described reading to the last one."""
    found = traced(config_of(case.model) | {case.key: case.table}, timed=False)
    assert found.checkpoint_bytes == predicted(case)
    assert found.checkpoint_bytes == pytest.approx(stored(case), rel=1e-3)


def test_matrices_that_are_multiplied_together_are_priced_in_their_format() -> None:
    """Queries, keys and values as one matmul: 4 bits, a 16-bit scale and a 4-bit zero for each 128 of 4096 x 6144."""
    table = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
    found = traced(config_of("llama") | {"quantization_config": table})
    stages = build(
        deploy(found, chip(1e12, 1e15), native_precision(found)), Step(segments=(Segment(batch=1, new=1, past=0),))
    )
    joined = next(op for stage in stages for op in stage.ops if "q_proj+k_proj+v_proj" in op.name)
    weights = 4096 * 6144 * (4 + 20 / 128) / 8
    assert float(joined.work().bytes) == pytest.approx(weights + 2 * (4096 + 6144), rel=1e-6)


def test_a_module_that_no_rule_is_made_for_is_refused_by_name() -> None:
    """The head of a masked language model, which no list of heads has."""
    small = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256, "num_hidden_layers": 2}
    config = transformers.BertConfig(**small, tie_word_embeddings=False, architectures=["BertForMaskedLM"]).to_dict()
    with pytest.raises(SpecError, match=r"cls\.predictions\.decoder"):
        traced(config | {"quantization_config": {"quant_method": "fp8"}}, timed=False)


STRANGE = st.sampled_from(
    [None, 0, -1, 3, 1e9, float("inf"), True, "", "x", "re:(", [], ["x"], [1], [[1]], {}, {"x": 1}]
)
TINY = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000, "tie_word_embeddings": False}


def places(table: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested mappings and lists."""
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


@given(st.data())
def test_a_spoilt_table_is_one_error(data: st.DataObject) -> None:
    """Any value in any place: understood, or refused by name; never another exception."""
    table = copy.deepcopy(data.draw(st.sampled_from(CASES)).table)
    *path, last = data.draw(st.sampled_from(list(places(table))))
    inner = table
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(STRANGE)
    with suppress(SpecError):
        import_config(TINY | {"quantization_config": table}, "tiny", "test")


PARTS = st.sampled_from(["layers.1", "layers.10", "mlp", "gate", "gate_proj", "self_attn", "q_proj", "experts.3"])
NAMES = st.lists(PARTS, min_size=1, max_size=3).map(".".join)


@settings(deadline=None)  # the first one imports transformers
@given(NAMES, st.lists(NAMES, min_size=1, max_size=3))
def test_the_rule_of_transformers(name: str, patterns: list[str]) -> None:
    from transformers.quantizers.quantizers_utils import should_convert_module

    for roots in (patterns, [f"model.{pattern}" for pattern in patterns]):
        found = by_transformers(roots)(Module(name, f"model.{name}"))
        assert (found is None) == should_convert_module(f"model.{name}", roots)


@given(NAMES, st.lists(NAMES, min_size=1, max_size=3))
def test_the_rules_of_vllm(name: str, patterns: list[str]) -> None:
    """AWQ: an entry anywhere in the name. bitsandbytes: an entry is one part of it, or its beginning."""
    assume(all(one.count("layers") <= 1 for one in (name, *patterns)))  # as in any model: a list of layers in none
    full = [f"model.{pattern}" for pattern in patterns]
    module, parts = Module(name, f"model.{name}"), ["model", *name.split(".")]
    anywhere = any(pattern in f"model.{name}" for pattern in full)
    assert (by_substring(full)(module) is not None) == (anywhere or any(p in name for p in patterns))
    starts = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    assert (by_component(full)(module) is not None) == bool(starts & set(full) or set(patterns) & set(parts))
