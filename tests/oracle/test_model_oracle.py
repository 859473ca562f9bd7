"""Counts against the reference table: exact, through the importer and through the catalogue."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from inferplan.catalog import files as catalog
from inferplan.errors import UnknownNameError
from inferplan.models.huggingface import import_config, model_from_config
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import FORMATS
from tests.cases import for_each


def rows(shared: Path) -> list[dict[str, str]]:
    with (shared / "reference" / "model_oracle.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def number(row: dict[str, str], *columns: str) -> int:
    return next((int(float(row[column])) for column in columns if row[column]), 0)


def check(model: ModelSpec, row: dict[str, str]) -> None:
    counts = model.parameters
    found = {
        "total": counts["total"],
        "embedding": counts["embedding"],
        "lm_head": counts["lm_head"],
        "active": counts["active"],
        "layers": len(model.sequence),
        "kv": model.kv_elements_per_token,
        "state": model.state_elements_per_sequence,
        "towers": model.tower_parameters,
    }
    expected = {
        "total": number(row, "total_params_text"),
        "embedding": number(row, "embedding_params"),
        "lm_head": number(row, "lm_head_params"),
        "active": number(row, "active_params_per_token"),
        "layers": number(row, "layers"),
        "kv": number(row, "serving_kv_elements_per_token", "kv_elements_per_token_all_layers"),
        "state": number(row, "state_elements_per_sequence"),
        "towers": number(row, "vision_audio_params"),
    }
    # the table counts the tails of CSA layers, not what HCA layers gather
    if row["model_type"] in ("deepseek_v4", "deepseek_ref"):
        found.pop("state"), expected.pop("state")
    if not row["total_params_text"]:  # no class of transformers has its parts: its cache alone was built (Kimi-K3)
        for name in ("total", "active", "towers"):
            found.pop(name), expected.pop(name)
    assert found == expected
    beyond = row["long_ctx_kv_elements_per_token"]
    if beyond:
        assert model.kv_elements_per_token_beyond_windows == int(float(beyond))


def config_of(shared: Path, name: str) -> dict[str, object]:
    file = f"{name.replace('/', '--')}.json"
    found = (shared / "model_configs" / file, shared / "model_configs" / "real" / file)
    return json.loads(next(path for path in found if path.is_file()).read_text(encoding="utf-8"))


CLASS_ALONE = {"stepfun-ai/Step-3.7-Flash"}
"""Rows of a class's defaults: its file has no tables, and transformers reads none of its fields."""
WITHOUT_TOWER = {"nvidia/Gemma-4-31B-IT-NVFP4": {"vision_audio_params": "0"}}
"""The name is its text model's, in NVIDIA's formats; every command says that the tower is missing."""
MORE_ROWS = {"tencent/Hunyuan-A52B-Instruct": 512 * 6400}
"""Elements of the tied table beyond those of the reference, whose file was written by hand with the pretrained 128,512
rows: the released Instruct has 129,024."""


def test_every_row_through_the_importer(shared):
    table = rows(shared)
    assert len(table) > 100
    for row in table:
        if row["name"] in CLASS_ALONE:
            continue
        try:
            check(model_from_config(config_of(shared, row["name"]), row["name"], "test"), row)
        except AssertionError as error:
            raise AssertionError(f"{row['name']}: {error}") from None


def test_every_row_through_the_catalogue(shared):
    table, unknown = rows(shared), set()
    for row in table:
        try:
            model = catalog.load_model(row["name"])
        except UnknownNameError:
            unknown.add(row["name"])
            continue
        try:
            more = MORE_ROWS.get(row["name"], 0)
            columns = ("total_params_text", "embedding_params", "active_params_per_token")
            tables = {column: str(float(row[column]) + more) for column in columns if more}
            check(model, row | WITHOUT_TOWER.get(row["name"], {}) | tables)
        except AssertionError as error:
            raise AssertionError(f"{row['name']} ({model.name}): {error}") from None
    assert unknown == {row["name"] for row in table} & CLASS_ALONE


def test_prediction_modules(shared):
    """DeepSeek-V3: 684.49B with its module; GLM-5: 9.95B beside it (the traps of counting)."""
    deepseek = model_from_config(config_of(shared, "deepseek-ai/DeepSeek-V3"), "v3", "test")
    assert deepseek.parameters["total"] + deepseek.mtp_parameters == pytest.approx(684.49e9, abs=5e6)
    glm = model_from_config(config_of(shared, "zai-org/GLM-5"), "glm", "test")
    assert glm.mtp_parameters == pytest.approx(9.95e9, abs=5e6)


def test_what_was_tuned_has_the_shape_of_its_base(shared):
    """Their config.json, as published, beside the base model's file."""
    compared, other = 0, {}
    for name in catalog.names("models"):
        model = catalog.load_model(name)
        said = model.instruct_checkpoint
        file = shared / "model_configs" / "real" / f"{said.id if said else None}.json".replace("/", "--")
        if not file.is_file() or model.towers:
            continue
        tuned = model_from_config(json.loads(file.read_text()), "tuned", "test")
        compared += 1
        if (tuned.vocab, tuned.layers, tuned.tied) != (model.vocab, model.layers, model.tied):
            other[name] = said.id
    assert compared >= 8
    assert not other


def truth(shared: Path, model: str, metric: str) -> float:
    with (shared / "reference" / "memory_truths.csv").open(encoding="utf-8") as file:
        return next(float(r["value"]) for r in csv.DictReader(file) if r["model"] == model and r["metric"] == metric)


@for_each(
    ("row", "name"),
    [
        ("mistralai/Devstral-Small-2507 (Mistral-Small-24B arch)", "mistral-small-24b"),
        ("cognitivecomputations/Dolphin3.0-R1-Mistral-24B", "dolphin3.0-r1-mistral-24b"),
        ("google/medgemma-27b-it (Gemma-3-27B arch)", "medgemma-27b"),
        ("meta-llama/Llama-3.2-3B", "llama-3.2-3b"),
        ("state-spaces/mamba-2.8b-hf", "mamba-2.8b"),
    ],
)
def test_checkpoint_bytes_are_exact(shared, row, name):
    assert catalog.load_model(name).checkpoint_bytes == truth(shared, row, "checkpoint total_size")


def test_checkpoint_bytes_of_quantised_releases(shared):
    """gpt-oss-120b: 60.8 GiB on its card. Llama-3.1-8B in LLM.int8: a scale a row (0.03 %) is not counted."""
    assert catalog.load_model("gpt-oss-120b").checkpoint_bytes / 2**30 == pytest.approx(60.8, abs=0.05)
    config = config_of(shared, "meta-llama/Meta-Llama-3.1-8B")
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    stored = import_config(config, "llama", "test").model.checkpoint_bytes
    expected = truth(shared, "meta-llama/Llama-3.1-8B-Instruct", "checkpoint total_size")
    assert stored == pytest.approx(expected, rel=1e-3)


def gguf_rows(shared: Path) -> list[tuple[str, float, int, dict[str, int]]]:
    """Published tensor maps: model, bytes, elements, and bytes by type."""
    found = []
    with (shared / "reference" / "memory_truths.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            parts = re.match(r"(\d+) elements incl\. MTP \d+.*by dtype (\{.*\})", row["context"])
            if parts:
                found.append((row["model"], float(row["value"]), int(parts[1]), json.loads(parts[2])))
    return found


def test_gguf_formats_have_the_bytes_of_published_tensor_maps(shared):
    """Files whose matrices are all of one type: elements times width, and 4 bytes for the float32 tensors."""
    checked = 0
    for model, size, elements, types in gguf_rows(shared):
        kinds = [kind for kind in types if kind != "f32"]
        fmt = FORMATS.get({"f16": "fp16"}.get(kinds[0], kinds[0])) if len(kinds) == 1 else None
        if fmt is not None:
            wide = types.get("f32", 0)
            assert wide + (elements - wide / 4) * fmt.width == pytest.approx(size, rel=1e-6), model
            checked += 1
    assert checked >= 140


def test_elements_of_published_tensor_maps(shared):
    """Exact but for the router's correction bias, which is a buffer here and a tensor there."""
    checked = set()
    for name, _, elements, _ in gguf_rows(shared):
        try:
            model = catalog.load_model(name)
        except UnknownNameError:
            continue
        biases = sum(layer.ffn.experts for layer in model.sequence if getattr(layer.ffn, "experts", 0))
        module = model.mtp_parameters
        total = model.parameters["total"]
        extra = elements - total
        assert extra in (0, biases) or abs(extra - module - biases) <= 512 or name == "GLM-4.6", (name, extra, module)
        checked.add(name)
    assert len(checked) >= 18
