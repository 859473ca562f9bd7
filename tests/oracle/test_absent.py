"""Fields whose absence means the value of the type's own class: nothing else is taken for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from inferplan.errors import SpecError
from inferplan.models.huggingface import import_config
from inferplan.models.huggingface.class_defaults import CLASS_DEFAULTS
from inferplan.models.huggingface.families import decoders
from inferplan.models.huggingface.families.absent import UNCOUNTED, WRITTEN
from inferplan.models.huggingface.reader import UNIMPORTANT, Reader
from inferplan.models.huggingface.towers import BESIDE, TIED_BY_DEFAULT, UNFLAGGED
from inferplan.models.huggingface.towers.defaults import OUTER_TEXT_DEFAULTS
from inferplan.models.spec import ModelSpec

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import CONFIG_MAPPING

from tests.cases import for_each
from tests.oracle.built import MINIMAL, config_of, kinds
from tests.oracle.variations import OWN
from tests.oracle.zoo import sample


def stated(name: str) -> dict[str, Any]:
    said = config_of(name).to_dict() | {"architectures": [kinds()[name].architecture]}
    config: dict[str, Any] = json.loads(json.dumps(said, default=str))
    return config


@for_each(
    ("name", "field"),
    [
        ("axk2", "n_shared_experts"),
        ("unlimited_ocr", "text_config.n_shared_experts"),
        ("glm5_next", "text_config.n_shared_experts"),
        ("zaya", "head_dim"),
        ("qwen3_omni_moe", "talker_config.text_config.num_key_value_heads"),
        ("qwen3_omni_moe", "talker_config.code_predictor_config.num_key_value_heads"),
    ],
)
def test_an_absent_field_is_refused_by_name(name: str, field: str) -> None:
    config = stated(name)
    *tables, last = field.split(".")
    table = config
    for key in tables:
        table = table[key]
    del table[last]
    with pytest.raises(SpecError, match=last):
        import_config(config, name, "test")


def test_a_pool_of_another_width_than_its_tower_is_refused() -> None:
    """Molmo 2's class reads layers of the adapter's width, whatever the tower's is."""
    config = stated("molmo2")
    config["adapter_config"]["hidden_size"] *= 2
    with pytest.raises(SpecError, match="hidden_size = 2304"):
        import_config(config, "molmo2", "test")


def counts(config: dict[str, Any], name: str) -> tuple[ModelSpec, list[Any]] | None:
    """What a config gives; ``None`` where it is refused by name. Another error of ours is raised as it is."""
    try:
        model = import_config(config, name, "test").model
    except SpecError as error:
        if error.__cause__ is not None:
            raise
        return None
    caches = sorted((str(cache.mask), cache.per_token, number) for cache, number in model.caches())
    figures = [model.parameters, model.tower_parameters, model.mtp_parameters, model.state_elements_per_sequence]
    return model, [*figures, caches]


def paths(table: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field of a config and of the configs in it that could matter."""
    for key, value in table.items():
        if isinstance(value, dict) and (key.endswith("_config") or key in ("encoder", "decoder")):
            yield from paths(value, (*above, key))
        elif key == "tie_word_embeddings" or not (key in OWN or UNIMPORTANT.fullmatch(key)):
            yield (*above, key)


def without(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    first, *rest = path
    if rest:
        return config | {first: without(config[first], tuple(rest))}
    return {key: value for key, value in config.items() if key != first}


def silently(name: str) -> list[str]:
    """Fields without which a type is counted otherwise than its class fills them in, and no note says so."""
    full, own = stated(name), CONFIG_MAPPING[name]
    before, found = counts(full, name), []
    for path in paths(full) if before is not None else ():
        less = without(full, path)
        after = counts(less, name)
        if after is None or after[1] == before[1] or any(path[-1] in note for note in after[0].notes):
            continue
        try:
            filled = own(**json.loads(json.dumps(less))).to_dict() | {"architectures": full["architectures"]}
        except Exception:  # no config of its class
            continue
        expected = counts(json.loads(json.dumps(filled, default=str)), name)
        if expected is not None and after[1] != expected[1]:
            found.append(".".join(path))
    return found


@for_each("name", lambda: sample(sorted(kinds())))
def test_no_field_is_taken_otherwise_than_its_class_fills_it_in(name: str) -> None:
    """Each field left out of the default config of each type: refused, said in a note, or as transformers reads it."""
    assert silently(name) == []


@for_each(
    ("name", "field"),
    [(kind, field) for kind, fields in (UNCOUNTED | WRITTEN).items() for field in fields],
)
def test_what_is_taken_for_an_absent_field_is_said(name: str, field: str) -> None:
    less = {key: value for key, value in stated(name).items() if key != field}
    assert any(field in note for note in import_config(less, name, "test").model.notes)


@for_each("name", sorted(WRITTEN))
def test_what_a_class_computes_is_its_own(name: str) -> None:
    width = config_of(name).hidden_size
    others = [{"num_hidden_layers": count} for count in (1, 2, 5, 9) if name in ("flint", "hy_v4", "laguna")]
    for fields in [{"hidden_size": width}, {"hidden_size": 2 * width}, *others]:
        own = CONFIG_MAPPING[name](**fields)
        for field, rule in WRITTEN[name].items():
            stated = {key: value for key, value in own.to_dict().items() if key != field}
            assert rule(Reader(stated, name)) == getattr(own, field), field


def test_modules_that_are_not_counted_are_those_of_the_class() -> None:
    for kind, fields in UNCOUNTED.items():
        assert {field: getattr(CONFIG_MAPPING[kind](), field) for field in fields} == fields


def test_the_outer_flag_that_ties_is_that_of_each_class() -> None:
    assert set(BESIDE) - set(CONFIG_MAPPING) == {"multi_modality", "phi3_v"}  # their checkpoints bring the class
    for kind in set(BESIDE) & set(CONFIG_MAPPING):
        taken = getattr(CONFIG_MAPPING[kind], "tie_word_embeddings", None)
        assert (taken is True) == (kind in TIED_BY_DEFAULT), kind
        assert taken is None or kind not in UNFLAGGED, kind


def test_an_absent_outer_flag_is_said() -> None:
    """InternVL: its class ties, its language model's does not. vLLM reads the nested flag."""
    config = without(stated("internvl"), ("tie_word_embeddings",))
    found = import_config(config, "internvl", "test").model
    assert not found.tied
    assert any("tie_word_embeddings is not in the outer config" in note for note in found.notes)
    bare = import_config(without(config, ("text_config", "tie_word_embeddings")), "internvl", "test").model
    assert not bare.tied
    assert any("in the outer config, and not in the nested one: taken as False" in note for note in bare.notes)


@for_each("kind", sorted(OUTER_TEXT_DEFAULTS))
def test_what_a_class_says_of_its_language_model_is_its_own(kind: str) -> None:
    said = CONFIG_MAPPING[kind].sub_configs_defaults["text_config"].init_kwargs
    assert {name: said[name] for name in OUTER_TEXT_DEFAULTS[kind]} == OUTER_TEXT_DEFAULTS[kind]


@for_each(
    ("name", "path", "says"),
    [
        ("gemma3", ("mm_tokens_per_image",), "mm_tokens_per_image"),
        ("qwen2_5_omni_thinker", ("audio_config", "n_window"), "audio_config.n_window"),
    ],
)
def test_what_media_are_cut_by_is_asked_for_by_its_name(name: str, path: tuple[str, ...], says: str) -> None:
    with pytest.raises(SpecError, match=f"the config has no {says}"):
        import_config(without(stated(name), path), name, "test")


UNUSED = {(name, "max_window_layers") for name in ("qwen2", "qwen2_moe", "qwen3")}
UNUSED |= {(name, "sliding_window") for name in ("qwen2", "qwen3")}
"""Of a window that is switched off."""


def test_every_decoder_that_has_a_class_has_its_defaults() -> None:
    assert set(decoders.FAMILIES) & set(CONFIG_MAPPING) <= set(CLASS_DEFAULTS)


@for_each("name", sorted(CLASS_DEFAULTS))
def test_what_is_taken_for_an_absent_field_is_what_its_class_says(name: str) -> None:
    own = CONFIG_MAPPING[name]
    said = {field.name: field.default for field in dataclasses.fields(own)}
    for field, value in CLASS_DEFAULTS[name].items():
        assert (said[field] if field in said else getattr(own(), field)) == value


@for_each("name", lambda: sample(sorted(CLASS_DEFAULTS)))
def test_a_field_that_is_left_out_is_read_as_its_class_fills_it_in(name: str) -> None:
    """Of each served family, with each field left out: never refused, the counts of the class, a note that names it."""
    full = json.loads(json.dumps(config_of(name).to_dict(), default=str)) | CLASS_DEFAULTS[name]
    before = counts(full, name)
    assert before is not None
    for field in {path[0] for path in paths(full)} - MINIMAL.get(name, {}).keys():
        if isinstance(full[field], dict | list) or full[field] is None:
            continue
        after = counts(without(full, (field,)), name)
        assert after is not None, f"{field} = {full[field]}"
        if field in CLASS_DEFAULTS[name]:
            assert after[1] == before[1], field
            assert any(field in note for note in after[0].notes) or (name, field) in UNUSED, field


@for_each("name", lambda: sample(sorted(CLASS_DEFAULTS)))
def test_a_config_without_what_equals_its_class_is_the_same(name: str) -> None:
    """``to_diff_dict``, which transformers writes of a table within another."""
    own = config_of(name)
    full, less = (
        json.loads(json.dumps(said, default=str)) | {"model_type": name} for said in (own.to_dict(), own.to_diff_dict())
    )
    before, after = counts(full, name), counts(less, name)
    assert before is not None
    assert after is not None
    assert after[1] == before[1]


def test_an_empty_config_is_the_default_of_its_class() -> None:
    """Llama's class describes Llama 1 of 7B: 6,738,415,616 parameters (2302.13971, as transformers builds it)."""
    found = import_config({"model_type": "llama"}, "llama", "test").model
    assert found.parameters["total"] == 6_738_415_616
    assert any("hidden_size = 4096" in note for note in found.notes)


def test_a_field_of_a_type_without_a_class_is_refused_by_its_name() -> None:
    """internlm2 is code of its checkpoints: nobody says what its absence means."""
    with pytest.raises(SpecError, match="num_hidden_layers"):
        import_config({"model_type": "internlm2", "hidden_size": 4096, "num_attention_heads": 32}, "model", "test")
