"""Parameter counts against the models that transformers builds on the meta device."""

from __future__ import annotations

import pytest

from inferplan.huggingface import model_from_config
from inferplan.huggingface.families import FAMILIES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NOT_BUILT = {
    "dbrx": "the class does not accept its own default config",
    "dots1": "its router is not built on the meta device",
    "hunyuan_v1_dense": "its default config lacks a head size",
    "nemotron": "its default config lacks a head size",
    "deepseek_v2": "its default config lacks the number of experts a token",
    "glm4_moe": "its default heads do not divide its width",
}


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NOT_BUILT])
def test_the_default_model_of_a_family(family):
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("not in this transformers")
    config = transformers.CONFIG_MAPPING[family]()
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    expected = sum(parameter.numel() for parameter in built.parameters())
    found = model_from_config(config.to_dict() | {"model_type": family}, family, "test")
    assert found.parameters["total"] == expected


def test_at_least_ten_families_are_compared():
    assert sum(family in transformers.CONFIG_MAPPING for family in FAMILIES if family not in NOT_BUILT) >= 40
