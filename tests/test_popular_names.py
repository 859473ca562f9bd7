"""Names that people type, as the hub has them: most are answered without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.catalog.files import find, load_model
from inferplan.errors import UnknownNameError
from tests.cases import for_each

NAMES = (Path(__file__).parent / "fixtures" / "popular_names.txt").read_text(encoding="utf-8").splitlines()
UNKNOWN = [name.removesuffix(" unknown") for name in NAMES if name.endswith(" unknown")]
"""Those that no file has: their configs are not at hand, and are read where the hub or a folder has them."""


def test_at_least_97_of_100_are_answered_without_a_network() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 200
    assert len(UNKNOWN) <= 0.03 * len(NAMES)


@for_each("name", [name for name in NAMES if not name.endswith(" unknown")])
def test_a_popular_name_is_answered(name: str) -> None:
    assert load_model(name).parameters["total"] > 0


@for_each("name", UNKNOWN)
def test_an_unknown_name_is_no_other_model(name: str) -> None:
    """What is not on file resolves to nothing, rather than to a sibling of another shape."""
    with pytest.raises(UnknownNameError):
        find("models", name)


SHAPES = {
    # hidden size, layers, KV heads, rows of the vocabulary: as the releases' cards and configs print them
    "NousResearch/Hermes-3-Llama-3.1-8B": (4096, 32, 8, 128256),
    "NousResearch/Hermes-4-405B": (16384, 126, 8, 128256),
    "NousResearch/Hermes-4-14B": (5120, 40, 8, 151936),
    "meta-llama/Llama-Guard-3-8B": (4096, 32, 8, 128256),
    "meta-llama/Llama-Guard-4-12B": (5120, 48, 8, 202048),
    "openai/gpt-oss-safeguard-20b": (2880, 24, 8, 201088),
    "01-ai/Yi-1.5-34B-Chat": (7168, 60, 8, 64000),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": (2048, 24, 32, 49152),
    "HuggingFaceTB/SmolLM3-3B": (2048, 36, 4, 128256),
    "google/medgemma-4b-it": (2560, 34, 4, 262208),
    "google/gemma-3-270m-it": (640, 18, 1, 262144),
    "ibm-granite/granite-3.3-8b-instruct": (4096, 40, 8, 49159),
    "swiss-ai/Apertus-70B-Instruct-2509": (8192, 80, 8, 131072),
    "Qwen/Qwen3-Coder-Next": (2048, 48, 2, 151936),
    "Qwen/Qwen3-Reranker-8B": (4096, 36, 8, 151669),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": (4096, 36, 8, 151936),
    "mistralai/Devstral-2-123B-Instruct-2512": (12288, 88, 8, 131072),
    "mistralai/Devstral-Small-2-24B-Instruct-2512": (5120, 40, 8, 131072),
    "xai-org/grok-2": (8192, 64, 8, 131072),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": (3584, 28, 4, 152064),
    "nvidia/Llama-3.3-70B-Instruct-NVFP4": (8192, 80, 8, 128256),
}


@for_each("name", SHAPES)
def test_fine_tunes_and_quantised_siblings_have_the_shape_that_they_share(name: str) -> None:
    model = load_model(name)
    heads = {layer.mixer.kv_heads for layer, _ in model.distinct if getattr(layer.mixer, "kv_heads", None)}
    assert (model.d_model, len(model.sequence), *heads, model.vocab) == SHAPES[name]


def test_a_quantised_sibling_without_its_owner_is_found() -> None:
    named, whole = load_model("GLM-5.2-NVFP4"), load_model("glm-5.2")
    assert named.sequence == whole.sequence and named.made_from.trust == "name"
