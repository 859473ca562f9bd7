"""Every file of the catalogue loads, is named after its model, says its source and has the published counts."""

from __future__ import annotations

import csv
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from inferplan.catalog import files as catalog
from inferplan.models.spec import LayerGroup, ModelSpec, uncounted_notes
from tests.cases import for_each

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


def test_every_file_says_what_it_was_made_from():
    """A released file at a commit, a printed description, or that its page alone is behind it."""
    pinned = re.compile(
        r"https://(?:github\.com|huggingface\.co)/[\w.-]+/[\w.-]+/blob/[0-9a-f]{9,40}/\S+"
        r"|https://pypi\.org/project/[\w-]+/[\d.]+/#\S+\.json"
    )
    made = {name: load(name).made_from for name in NAMES}
    assert not [name for name, one in made.items() if one.trust not in ("checkpoint", "config", "report", "page")]
    assert not [name for name, one in made.items() if one.file and not pinned.fullmatch(one.file)]
    assert not [name for name, one in made.items() if one.page and not one.page.startswith("https://huggingface.co/")]
    exact = {name for name, one in made.items() if one.tensors}
    assert not [name for name in exact if load(name).published is None and not made[name].report]
    assert sum(one.trust in ("checkpoint", "config") for one in made.values()) >= 135
    assert sum(one.sha256 != "" for one in made.values()) >= 90


def test_no_file_is_made_of_the_defaults_of_a_class():
    """What transformers' constructor takes where a config says nothing is not a checkpoint: where a class has filled
    in what a paper leaves open, no file and no table is claimed."""
    text = {
        path.stem: path.read_text(encoding="utf-8") for path in catalog.find("models", "gpt2").parent.glob("*.yaml")
    }
    assert len(text) >= len(NAMES)
    assert not [name for name, said in text.items() if re.search(r"configuration_\w+\.py|defaults? of the class", said)]
    filled = [name for name, said in text.items() if re.search(r"\w+Config of transformers", said)]
    assert not [name for name in filled if load(name).made_from.trust != "page"]
    assert not [name for name in filled if "transformers" in load(name).source]


STATED = {
    # kinds of layers, context, KV elements of a token in every window and beyond them, where no file is at hand
    "longcat-flash": ("56 latent", 131072, 32256, 32256),
    "mistral-small-4-119b": ("36 latent", 1048576, 11520, 11520),
    "solar-open-100b": ("48 full", 131072, 98304, 98304),
    "ernie-4.5-21b-a3b": ("28 full", 131072, 28672, 28672),
    "ministral-3-8b": ("34 full", 262144, 69632, 69632),
    "minimax-m3": ("3 full; 57 blocks", 1048576, 68736, 68736),
    "deepseek-v4-flash": ("2 window; 21 one in 4; 20 one in 128", 1048576, 25456, 3440),
    "mimo-v2-flash": ("9 full; 39 window", 262144, 111360, 11520),
    "kimi-k3": ("69 linear; 24 latent", 1048576, 13824, 13824),
    "hy3-preview": ("80 full", 262144, 163840, 163840),
}
"""By hand from what their configs are printed with: layers x 2 x heads x width, of latent attention layers x (latent +
rotary); MiniMax-M3 60 layers of 2 x 4 x 128 and 57 index keys of 128; DeepSeek-V4-Flash 43 windows of 512, 21 x (512 +
128) / 4 and 20 x 512 / 128; MiMo 9 x 4 x 320 and 39 x 8 x 320; Kimi-K3 24 x 576."""
KINDS = {
    "mla": "latent",
    "block_sparse_attention": "blocks",
    "gated_delta_net": "linear",
    "kimi_delta": "linear",
    "lightning_attention": "linear",
    "mamba2": "mamba",
    "short_conv": "conv",
}


def kind_of(layer: LayerGroup) -> str:
    """The kind of a layer's mixer in the words of tests/oracle/config_facts.py."""
    mixer = layer.mixer
    if mixer is None:
        return "feed-forward"
    if pool := getattr(mixer, "pool", None):
        return f"one in {pool.rate}"
    if mixer.kind in KINDS:
        indexer = getattr(mixer, "indexer", None) if mixer.kind == "mla" else None
        return KINDS[mixer.kind] + ("" if indexer is None or indexer.shared else ", indexed")
    return next((name for name in ("window", "chunk") if getattr(mixer, name, None)), "full")


def kinds(model: ModelSpec) -> str:
    return "; ".join(f"{count} {kind}" for kind, count in Counter(map(kind_of, model.sequence)).items())


def test_rows_have_the_layers_the_context_and_the_cache_of_their_files():
    """tests/fixtures/model_facts.csv is what tests/oracle/config_facts.py reads in the released configs; its totals are
    those of transformers' classes on the meta device."""
    with (Path(__file__).parent / "fixtures" / "model_facts.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert len(table) >= 105
    wrong = []
    for row in table:
        model = load(row["model"])
        found = (kinds(model), str(model.max_context or ""), f"{model.kv_elements_per_token}")
        total = str(model.parameters["total"]) if row["parameters"] else ""
        if (*found, total) != (row["layers"], row["context"], row["kv"], row["parameters"]):
            wrong.append((row, found, total))
        if model.made_from.sha256 != row["sha256"]:
            wrong.append((row["model"], model.made_from.sha256))
    assert not wrong


def test_rows_without_a_file_have_the_layers_the_context_and_the_cache_that_are_printed():
    for name, (layers, context, kv, beyond) in STATED.items():
        model = load(name)
        assert (kinds(model), model.max_context) == (layers, context), name
        assert (model.kv_elements_per_token, model.kv_elements_per_token_beyond_windows) == (kv, beyond), name
    # what transformers builds of the released files on the meta device
    totals = {"minimax-m3": 426_174_565_632, "deepseek-v4-flash": 284_332_230_231, "mimo-v2-flash": 308_778_768_832}
    assert {name: load(name).parameters["total"] for name in totals} == totals
    sparse = next(layer.mixer for layer, _ in load("minimax-m3").distinct if layer.mixer.kind != "attention")
    assert (sparse.indexer.block, sparse.indexer.top_blocks, sparse.indexer.heads) == (128, 16, 4)


def test_there_are_at_least_ninety():
    assert len(NAMES) >= 90


@for_each("name", NAMES)
def test_file_is_a_model_with_a_source(name):
    model = load(name)
    assert model.name == name
    assert model.source.startswith(("https://", "arXiv "))
    assert model.family


@for_each("name", NAMES)
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
    total = counts["total"] + sum(getattr(model, f"{part.removesuffix('s')}_parameters") for part in published.includes)
    if published.parameters is not None:
        assert total == pytest.approx(published.parameters, rel=published.tolerance)
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


@for_each(
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
        ("MiniMaxAI/MiniMax-M3", "minimax-m3"),
        ("nvidia/MiniMax-M3-NVFP4", "minimax-m3-nvfp4"),
    ],
)
def test_names_of_the_hub_find_their_model(said, name):
    assert catalog.find("models", said).stem == name


def test_what_was_tuned_of_a_base_model_is_found_by_its_id():
    """The id of a release tuned on instructions leads to the file of its base, or to one with the same layers."""
    tuned = {name: said.id for name in NAMES if (said := load(name).instruct_checkpoint) is not None and said.id}
    assert len(tuned) >= 40
    found = {name: load(catalog.find("models", said).stem) for name, said in tuned.items()}
    assert not [name for name, model in found.items() if model.layers != load(name).layers]
    assert not [name for name in tuned if tuned[name] in load(name).source]


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
TEXT_ALONE = ("gemma-3-1b", "gemma-3-270m", "minimax-text-01", "qwen3.8-2.4t-a95b-fp8")
"""Those of such a family whose own release has no tower."""


def test_a_release_that_takes_images_has_its_tower_or_every_command_says_that_it_is_not_counted():
    silent = [
        name
        for name in NAMES
        if any(mark in f"{name} {load(name).family}" for mark in SEES)
        and name not in TEXT_ALONE
        and not load(name).towers
        and not uncounted_notes(load(name))
    ]
    assert not silent


def test_years_are_of_models_and_families_on_file():
    """Each name stands under one year, and a month in a model's name (2410) is of that year."""
    years = catalog.read_yaml(catalog.config_root() / "years.yaml")
    for kind, known in (("models", set(NAMES)), ("families", {load(name).family for name in NAMES})):
        listed = [name for names in years[kind].values() for name in names]
        assert [name for name, times in Counter(listed).items() if times > 1] == []
        assert set(listed) <= known, set(listed) - known
    for year, names in years["models"].items():
        for name in names:
            if month := re.search(r"-(2[3-6])(0[1-9]|1[0-2])$", name):
                assert year == 2000 + int(month[1]), name
