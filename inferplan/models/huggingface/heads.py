"""What a config's ``architectures`` says of the end of a model: logits over the vocabulary, or another head, or none.

The class decides, not the family: ``LlamaForSequenceClassification`` has a matrix of ``num_labels`` rows in place of
the vocabulary's, ``MistralModel`` has neither. A class whose end is not known is refused by name.
"""

from __future__ import annotations

import re
from typing import Any

from inferplan.models.huggingface.reader import Reader

GENERATES = re.compile(
    r"\w*(ForCausalLM|LMHeadModel|LMHead|ForConditionalGeneration|ForImageTextToText|ForMultimodalLM|ModelLM"
    r"|ForBlockDiffusion|ForVisionText2Text|ForProteinText2Text|ForSpeechToText|SpeechEncoderDecoderModel"
    r"|ChatModel|OmniModel|MTModel|ForCausalLMNextN|MTPModel)|PaLM|MiniCPM[VO]|NemotronH_\w*Omni\w*"
)
"""Classes that end in logits over the vocabulary, by their last words, or by name."""
_BARE = frozenset({"chatglm"})
"""Families whose class without a last word generates."""
_LABELS = re.compile(
    r"(?P<owner>\w*?)(?P<end>ForSequenceClassification|ForTokenClassification|ForQuestionAnswering|Model)"
)
_REWARD = {
    "qwen2forrewardmodel": ("sequence", 1, 2),
    "qwen2forprocessrewardmodel": ("token", 2, 2),
    "internlm2forrewardmodel": ("sequence", 1, 1),
}
"""Rows, labels where none are given, and layers: two with a ReLU between them (vLLM 0.20, models/qwen2_rm.py), or one
without a bias (models/internlm2.py, ``v_head``)."""


def architecture(reader: Reader) -> str | None:
    """The class that a config names, if any."""
    said = reader.get("architectures")
    if said is None or said == []:
        return None
    if not isinstance(said, list) or not isinstance(said[0], str):
        raise reader.refuse(f"architectures = {said!r}", "it is not a list of classes")
    return said[0]


def labels(r: Reader) -> int:
    """Labels of a classifier: ``num_labels``, the entries of ``id2label``, or 2 as transformers takes them for none."""
    named = r.get("id2label")
    if isinstance(named, dict) and r.get("num_labels") is None:
        return len(named)
    return r.integer("num_labels", default=2)


def linear(inputs: int, outputs: int, bias: bool = True, norm: int = 0) -> dict[str, Any]:
    """A layer of a head, as a YAML writes it."""
    return {"inputs": inputs, "outputs": outputs, "bias": bias, "norm": norm}


def head(name: str, rows: str, *layers: dict[str, Any], vocabulary: bool = False) -> dict[str, Any]:
    """A head, as a YAML writes it."""
    return {"name": name, "rows": rows, "layers": list(layers), "vocabulary": vocabulary}


def decoder_ends(outer: Reader, fields: dict[str, Any], kinds: set[str]) -> dict[str, Any]:
    """Fields of a decoder that its class uses for something else than generation; nothing where it generates.

    kinds: the ``model_type`` of the config and of its nested one. Raises ``SpecError`` for a class that is not known.
    """
    name = architecture(outer)
    if name is None or GENERATES.fullmatch(name) or kinds & _BARE:
        return {}
    width, lower = int(fields["d_model"]), name.lower()
    if lower in _REWARD:
        rows, number, layers = _REWARD[lower]
        number = labels(outer) if outer.get("num_labels", "id2label") is not None else number
        last = linear(width, number, bias=layers > 1)
        return _encodes(fields, head("reward", rows, *[linear(width, width)] * (layers - 1), last))
    found = _LABELS.fullmatch(name)
    if found is None or _plain(found["owner"]) not in {_plain(kind) for kind in kinds} | {""}:
        raise outer.refuse(
            f"architectures = [{name!r}]",
            "the class decides which head a model has, and the end of this one is not known",
            "architectures: a ...ForCausalLM, ...Model or ...ForSequenceClassification of the family",
        )
    if fields.get("embedding_width"):
        raise outer.refuse(f"architectures = [{name!r}]", "its tables are narrower than the model")
    ends = {
        "Model": [],
        "ForSequenceClassification": [head("score", "sequence", linear(width, labels(outer), bias=False))],
        "ForTokenClassification": [head("score", "token", linear(width, labels(outer)))],
        "ForQuestionAnswering": [head("qa_outputs", "token", linear(width, 2))],
    }
    return _encodes(fields, *ends[found["end"]])


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _encodes(fields: dict[str, Any], *heads: dict[str, Any]) -> dict[str, Any]:
    return {
        "generation": {"kind": "encode"},
        "ends": {**fields.get("ends", {}), "heads": list(heads)},
        "tied": False,
        "head_bias": False,
        "mtp": None,
    }
