"""What a model was made from, and the one line in which every command says how far its counts can be trusted."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from pydantic import ValidationError

from inferplan.catalog.files import load_model
from inferplan.models.provenance import MadeFrom
from tests.cases import for_each

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}


@for_each(
    ("made", "trust"),
    [
        ({}, "unknown"),
        ({"page": "https://huggingface.co/a/b"}, "page"),
        ({"report": "arXiv 1910.10683", "where": "table 1"}, "report"),
        ({"file": "config.json"}, "config"),
        ({"report": "arXiv 1910.10683", "tensors": True}, "checkpoint"),
        ({"file": "config.json", "tensors": True, "named": "AWQ"}, "name"),
        ({"file": "config.json", "traced": "transformers 5.23.0, LlamaForCausalLM"}, "traced"),
    ],
)
def test_the_least_sure_of_what_is_stated_is_how_far_it_can_be_trusted(made, trust):
    assert MadeFrom.model_validate(made).trust == trust


def test_two_origins_a_hash_without_a_file_and_a_place_without_a_report_are_refused():
    for wrong in ({"file": "a", "page": "b"}, {"sha256": "0" * 64}, {"where": "table 1"}, {"file": "a", "sha256": "0"}):
        with pytest.raises(ValidationError):
            MadeFrom.model_validate(wrong)


def test_a_config_that_is_read_is_named_with_its_hash(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    made = load_model(str(path)).made_from
    assert (made.trust, made.file, made.sha256) == ("config", str(path), sha256(path.read_bytes()).hexdigest())


def test_a_yaml_that_does_not_say_is_unknown(tmp_path: Path):
    path = tmp_path / "own.yaml"
    text = "name: own\nsource: mine\nd_model: 64\nvocab: 256\nlayers: [{ffn: {kind: mlp, d_ff: 128}}]\n"
    path.write_text(text, encoding="utf-8")
    assert load_model(str(path)).made_from.trust == "unknown"
