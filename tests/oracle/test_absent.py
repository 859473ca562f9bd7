"""Fields whose absence means the value of the type's own class: nothing else is taken for it.

Each of these classes has a default that is neither zero nor what other families have, so that a count without the field
would differ from what transformers builds of the same config.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from inferplan.errors import SpecError
from inferplan.models.huggingface import import_config
from inferplan.models.huggingface.families.absent import STATED, UNCOUNTED, WRITTEN
from inferplan.models.huggingface.reader import UNIMPORTANT
from inferplan.models.huggingface.towers import BESIDE, TIED_BY_DEFAULT, UNFLAGGED
from inferplan.models.huggingface.towers.defaults import OUTER_TEXT_DEFAULTS
from inferplan.models.spec import ModelSpec

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import CONFIG_MAPPING

from tests.cases import for_each
from tests.oracle.built import config_of, kinds
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


@for_each("layers", [1, 2, 5, 9])
@for_each("name", sorted(WRITTEN))
def test_lists_that_a_class_writes_are_its_own(name: str, layers: int) -> None:
    own = CONFIG_MAPPING[name](num_hidden_layers=layers)
    for field, rule in WRITTEN[name].items():
        assert rule(layers) == getattr(own, field)


def test_modules_that_are_not_counted_are_those_of_the_class() -> None:
    for kind, fields in UNCOUNTED.items():
        assert {field: getattr(CONFIG_MAPPING[kind](), field) for field in fields} == fields


def test_the_outer_flag_that_ties_is_that_of_each_class() -> None:
    for kind in BESIDE:
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


@for_each("name", sorted(STATED))
def test_what_a_class_fills_in_is_its_own_and_must_be_stated(name: str) -> None:
    own = CONFIG_MAPPING[name]()
    assert {field: getattr(type(own), field, getattr(own, field)) for field in STATED[name]} == STATED[name]
    config = json.loads(json.dumps(own.to_dict(), default=str))
    for field in STATED[name]:
        with pytest.raises(SpecError, match=field):
            import_config({key: value for key, value in config.items() if key != field}, name, "test")
