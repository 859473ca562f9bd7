"""Folders as transformers writes them, and as releases on the hub differ from that, against their configs."""

from __future__ import annotations

import json

import pytest

from inferplan.errors import InferplanError
from inferplan.models.checkpoint import read_folder
from inferplan.models.huggingface import import_path
from tests.cases import for_each

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
SMALL |= {"vocab_size": 256, "max_position_embeddings": 64}
HALVES = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
HALVES |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 256}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 256}
EYES = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
EYES |= {"num_attention_heads": 4, "image_size": 28, "patch_size": 14, "projection_dim": 32}
POSITIONS = {"embeddings.position_ids": torch.arange(64)[None]}
COPIES = {f"{half}.embed_tokens.weight": "shared.weight" for half in ("encoder", "decoder")}
MODULES = {"mtp.fc.weight": torch.zeros(64, 128), "mtp.norm.weight": torch.zeros(64)}
NEXT = SMALL | {"num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
NEXT |= {"shared_expert_intermediate_size": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
BUFFERS = {"gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 64, 64, dtype=torch.bool)}
BUFFERS |= {"gpt_neox.layers.0.attention.masked_bias": torch.tensor(1.0)}
OLD_T5 = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(32, 4)}


def save(folder, kind, config, beside=None, without=(), **fields):
    """What a class of transformers writes; tensors added (or copied, by name) and left out, fields of the config."""
    name = "Qwen3Next" if kind.startswith("Qwen3Next") else kind.partition("For")[0].removesuffix("Model")
    model = getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**config))
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = safetensors.load_file(path)
    tensors |= {name: tensors[t].clone() if isinstance(t, str) else t for name, t in (beside or {}).items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(without))}
    safetensors.save_file(tensors, path)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | fields), encoding="utf-8")
    return sum(parameter.numel() for parameter in model.parameters())


@for_each(
    ("kind", "config", "change"),
    [
        ("BartForConditionalGeneration", HALVES | {"max_position_embeddings": 64}, {}),  # final_logits_bias
        ("T5ForConditionalGeneration", T5, {"beside": COPIES | {"lm_head.weight": "shared.weight"}}),  # flan-t5
        ("T5ForConditionalGeneration", T5, {"beside": OLD_T5}),  # t5-small
        ("BertModel", SMALL, {"beside": POSITIONS}),  # bge, all-MiniLM
        ("BertModel", SMALL, {"without": ["pooler"], "said": "its pooler is not in it"}),
        ("BertForMaskedLM", SMALL, {"beside": {"bert.pooler.dense.bias": torch.zeros(64)}, "said": "pooler is stored"}),
        ("GPTNeoXForCausalLM", SMALL, {"beside": BUFFERS}),  # pythia
        ("Qwen3NextForCausalLM", NEXT, {"beside": MODULES, "said": "mtp is stored as well"}),
        (
            "LlavaForConditionalGeneration",
            {"text_config": {"model_type": "llama"} | SMALL, "vision_config": EYES, "image_token_index": 255},
            {},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_folder_as_it_is_released_is_read(tmp_path, kind, config, change):
    change = dict(change)
    said = change.pop("said", "")
    parameters = save(tmp_path, kind, config, **change)
    model = import_path(tmp_path).model
    assert model.parameters["total"] + model.tower_parameters == parameters
    assert any(said in note for note in model.notes)


def test_a_tensor_that_nothing_explains_is_refused(tmp_path):
    save(tmp_path, "BertModel", SMALL, beside={"encoder.layer.0.extra.weight": torch.zeros(3)})
    with pytest.raises(InferplanError, match=r"\+3"):
        import_path(tmp_path)


def test_weights_in_two_types_and_adapters_are_told_from_the_model(tmp_path):
    """Whisper's folders have model.safetensors and model.fp32-00001-of-00002.safetensors."""
    save(tmp_path, "BertModel", SMALL)
    whole = tmp_path / "model.safetensors"
    size = read_folder(tmp_path).size
    safetensors.save_file(safetensors.load_file(whole), tmp_path / "model.fp32-00001-of-00001.safetensors")
    safetensors.save_file({"lora_A.weight": torch.zeros(8, 64)}, tmp_path / "adapter_model.safetensors")
    assert read_folder(tmp_path).size == size
    (tmp_path / "model.fp32-00001-of-00001.safetensors").unlink()
    whole.rename(tmp_path / "pytorch_model.bin")
    assert read_folder(tmp_path) is None


def test_the_names_of_mistral_are_compared_by_their_sum(tmp_path):
    """q and k of mistral-inference are the same matrices in another order of rows (its ``convert`` scripts)."""
    names = {"embed_tokens": "tok_embeddings", "self_attn": "attention", "q_proj": "wq", "lm_head": "output"}
    parameters = save(tmp_path, "MistralForCausalLM", SMALL | {"num_key_value_heads": 2})
    whole = tmp_path / "model.safetensors"
    own = {}
    for name, tensor in safetensors.load_file(whole).items():
        short = name.removeprefix("model.")
        for theirs, mistrals in names.items():
            short = short.replace(theirs, mistrals)
        own[short] = tensor
    safetensors.save_file(own, tmp_path / "consolidated.safetensors")
    whole.unlink()
    found = import_path(tmp_path).model
    assert found.parameters["total"] == parameters
    assert any("mistral-inference" in note for note in found.notes)
