"""Models that generate nothing: BERT-base counted by hand, and what follows from one pass being all of the work."""

from inferplan.models.spec import ModelSpec

LAYER = {
    "repeat": 12,
    "norms": 2,
    "mixer": {
        "kind": "attention",
        "heads": 12,
        "kv_heads": 12,
        "head_dim": 64,
        "causal": False,
        "rotary": False,
        "qkv_bias": True,
        "out_bias": True,
    },
    "ffn": {"kind": "mlp", "d_ff": 3072, "gated": False, "bias": True, "activation": "gelu"},
}


def bert(**ends: object) -> ModelSpec:
    pooler = {"name": "pooler", "layers": [{"inputs": 768, "outputs": 768}]}
    return ModelSpec.model_validate(
        {
            "name": "bert",
            "source": "1810.04805",
            "d_model": 768,
            "vocab": 30522,
            "max_context": 512,
            "norm": "layer",
            "final_norm": False,
            "embedding_norm": True,
            "generation": {"kind": "encode"},
            "ends": {"tables": {"positions": 512, "token_types": 2}, "heads": [pooler]} | ends,
            "layers": [LAYER],
        }
    )


def test_bert_base_has_the_parameters_of_its_matrices():
    tables = (30522 + 512 + 2) * 768 + 2 * 768
    layer = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 2 * 2 * 768
    assert bert().parameters["total"] == tables + 12 * layer + 768 * 768 + 768 == 109_482_240
    assert bert(heads=[]).parameters["total"] == tables + 12 * layer


def test_what_generates_nothing_keeps_nothing():
    model = bert()
    assert model.kv_elements_per_token == 0
    assert model.parameters["lm_head"] == 0
    assert ModelSpec.model_validate(model.to_dict()) == model
