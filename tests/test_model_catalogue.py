"""Every file of the catalogue loads, is named after its model, says its source and has the published counts."""

from __future__ import annotations

from functools import cache

import pytest

from inferplan.catalog import files as catalog
from inferplan.models.spec import ModelSpec, uncounted

NAMES = catalog.names("models")
FAMILIES = {
    *("cohere", "llada", "minimax_m2", "minimax_text_01", "qwen", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("qwen3_next", "qwen3_5_moe_text", "rwkv", "jamba", "olmo2", "mistral", "mixtral", "deepseek_v2", "deepseek_v3"),
    *("deepseek_v32", "opt", "palm", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "llama", "llama4_text", "phi3"),
    *("mamba", "mamba2", "falcon_mamba", "falcon", "glm4_moe", "glm_moe_dsa", "nemotron_h", "gpt_oss", "gpt2"),
    *("hunyuan", "starcoder2", "zamba2", "falcon_h1", "recurrent_gemma", "kimi_linear"),
}
"""Families that users were promised."""


@cache
def load(name: str) -> ModelSpec:
    return catalog.load_model(name)


def test_there_are_at_least_ninety():
    assert len(NAMES) >= 90


@pytest.mark.parametrize("name", NAMES)
def test_file_is_a_model_with_a_source(name):
    model = load(name)
    assert model.name == name
    assert model.source.startswith(("https://", "arXiv "))
    assert model.family


@pytest.mark.parametrize("name", NAMES)
def test_published_counts(name):
    model = load(name)
    published = model.published
    if published is None:
        pytest.skip("no printed count")
    counts = model.parameters
    active = counts["active"]
    if published.active_counts != "all":
        active -= counts["embedding"]
    if published.active_counts == "without_embedding_and_head":
        active -= counts["lm_head"]
    assert published.tolerance <= 0.2
    if published.parameters is not None:
        assert counts["total"] == pytest.approx(published.parameters, rel=published.tolerance)
    if published.active is not None:
        assert active == pytest.approx(published.active, rel=published.tolerance)


def test_most_models_have_published_counts():
    assert sum(load(name).published is not None for name in NAMES) >= 90


def test_aliases_are_unique_and_no_names():
    seen: dict[str, str] = {}
    for name in NAMES:
        for alias in load(name).aliases:
            assert alias == alias.lower()
            assert alias not in NAMES
            assert alias not in seen, f"{alias} is an alias of {name} and {seen[alias]}"
            seen[alias] = name


def test_every_family_is_there():
    assert {load(name).family for name in NAMES} >= FAMILIES


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b-v0.1"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("llada-8b-base", "llada-8b"),
        ("mistral-small-24b", "mistral-small-24b-instruct-2501"),
        ("DeepSeek-R1", "deepseek-r1"),
    ],
)
def test_names_of_the_hub_find_their_model(said, name):
    assert catalog.find("models", said).stem == name


def test_quantised_releases_say_their_formats():
    assert load("gpt-oss-120b").native.experts == "mxfp4"
    assert load("deepseek-r1").native.weights == "fp8-block"
    assert load("kimi-k2.5").native.model_dump(exclude_defaults=True) == {"experts": "int4-g32"}
    assert load("llama-2-7b").native.model_dump(exclude_defaults=True) in ({}, {"base": "fp16"})


def test_models_survive_their_own_yaml():
    import yaml

    from inferplan.models.huggingface.emit import to_yaml

    for name in ("gemma-3-27b", "kimi-k2.5-nvfp4", "nemotron-h-56b-base-8k", "gemma-3n-e2b", "zamba2-7b"):
        model = load(name)
        assert ModelSpec.model_validate(yaml.safe_load(to_yaml(model))) == model


SEES = ("-vl-", "_text", "mistral4", "llama4", "kimi_k25", "gemma3n")
"""In the name or the family of a release that takes images: of most, the class of the language model within it."""
TEXT_ALONE = ("gemma-3-1b", "minimax-text-01")
"""Those of such a family whose own release has no tower."""


def test_a_release_that_takes_images_has_its_tower_or_every_command_says_that_it_is_not_counted():
    silent = [
        name
        for name in NAMES
        if any(mark in f"{name} {load(name).family}" for mark in SEES)
        and name not in TEXT_ALONE
        and not load(name).towers
        and not uncounted(load(name))
    ]
    assert not silent
