"""Heads that draft for a model from its hidden states, as models of their own beside it.

Multi-token prediction (DeepSeek-V3, 2412.19437, eq. 21-23): the hidden state of the last layer and the embedding of the
next token, each normalised, are joined, projected from ``2*d_model`` to ``d_model``, and pass one more layer and the
head; every drafted token is one pass of the same module (TensorRT-LLM's "MTP Eagle", SGLang's NEXTN, vLLM's ``mtp``).
Vocabulary tables are the model's, also where the checkpoint repeats them (DeepSeek's README_WEIGHTS: embed_tokens and
shared_head share their parameters; vLLM ``_maybe_share_lm_head``, SGLang ``set_embed_and_head``). The projection is a
plain matrix in the base format, and every rank has the whole of it (SGLang ``deepseek_nextn.py``, ``eh_proj``).
DeepSeek-V4's module has a square matrix for the embedding and one for each residual stream of the model, quantised as
its other matrices, and hands its own streams, ahead of the sum that its head reads, to the next pass (vLLM
``deepseek_v4/nvidia/mtp.py``, SGLang ``deepseek_v4_nextn.py``).

EAGLE-3 (2503.01840): hidden states of three layers are joined and projected to the head's width for every token that
the model has computed; one decoder layer reads that beside the embedding; its head may have fewer words than the
model's. Passes after the first read the head's own output, and project nothing.

A block draft (DFlash, 2602.06036) projects features likewise, and each of its layers keeps keys and values of the
projection. One pass over the last token and a mask for each drafted one attends to them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from inferplan.errors import UsageError
from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.spec import DraftHead, LayerGroup, ModelSpec, Native


class DraftModels(NamedTuple):
    """A draft as models: ``whole``, with all that it keeps; what runs in the ``first`` pass of a round, and ``later``.

    block: all tokens come from one pass after the first.
    """

    whole: ModelSpec
    first: ModelSpec
    later: ModelSpec
    block: bool = False


def draft_models(model: ModelSpec, name: str) -> DraftModels | None:
    """The module (``mtp``) or the head of that name of ``model``; ``None`` where it has no head of that name.

    Raises ``UsageError`` for ``mtp`` where there is no module, and for a block draft whose layers are not attention.
    """
    if name == MTP:
        module = prediction_model(model)
        return DraftModels(module, module, module)
    head = next((head for head in model.drafts if head.name == name), None)
    return None if head is None else head_models(model, head)


MTP = "mtp"
"""The name under which a model's own prediction module drafts."""


def prediction_model(model: ModelSpec) -> ModelSpec:
    """The module of ``model`` as a model; every drafted token is one step of it, as engines run it.

    Raises ``UsageError`` for a model without one, or with several, which no engine on file runs one after another.
    """
    module = model.mtp
    if module is None:
        heads = "".join(f"--draft {head.name}, " for head in model.drafts)
        raise UsageError(
            f"{model.name} has no prediction module to draft with",
            because="its file in the catalogue has no mtp",
            hint=f"{heads}--draft with a smaller model of its family, or --draft free for n-grams",
        )
    if module.modules > 1:
        raise UsageError(
            f"{model.name} has {module.modules} prediction modules", hint="models with one module can be priced"
        )
    if model.hyper_streams > 1 and not module.each_stream:
        raise UsageError(
            f"the time of {model.name}'s prediction module is not known",
            because="no source on file says how it joins the model's residual streams",
            hint="its parameters are counted; --draft free for n-grams",
        )
    one = module.projection and not module.each_stream
    formats = [entry for entry in model.native.exceptions if not entry.layers]
    return ModelSpec(
        name=f"{model.name} mtp",
        source=model.source,
        d_model=model.d_model,
        vocab=model.vocab,
        max_context=model.max_context,
        norm=model.norm,
        layers=module.layers,
        joined=[(2 * model.d_model, model.d_model)] if one else [],
        joined_streams=module.each_stream,
        hyper_streams=model.hyper_streams,
        hyper_mean=model.hyper_mean,
        input_norms=max(module.norms - 1, 0),
        borrowed=["embedding", "head"],
        native=Native(**{**dict(model.native), "exceptions": formats}),
    )


def head_models(model: ModelSpec, head: DraftHead) -> DraftModels:
    """A head of ``model`` as models. Raises ``UsageError`` for a block draft whose layers are not attention."""
    width = head.d_model or model.d_model
    fused = [(head.features * model.d_model, width)] if head.features else []
    joined = [(2 * width, width)] if head.joins_embedding else []
    tables: tuple[tuple[Literal["embedding", "head"], bool], ...]
    tables = (("embedding", head.own_embedding), ("head", head.own_head))
    later = ModelSpec(
        name=f"{model.name} {head.name}",
        source=head.source,
        d_model=width,
        vocab=head.vocab or model.vocab,
        max_context=model.max_context,
        norm=model.norm,
        layers=head.layers,
        joined=joined,
        input_norms=head.norms,
        borrowed=[name for name, own in tables if not own],
        native=head.native,
    )
    whole = later.model_copy(update={"joined": [*fused, *joined]})
    first = _context_model(whole, fused, head.layers) if head.block else whole
    return DraftModels(whole, first, later, head.block)


def _context_model(whole: ModelSpec, fused: list[tuple[int, int]], layers: list[LayerGroup]) -> ModelSpec:
    """What a block draft computes of tokens that it only attends to: their features, and keys and values of those."""
    kept = 0
    for layer in [one for group in layers for one in group.sequence()]:
        if not isinstance(layer.mixer, AttentionLayer):
            raise UsageError(f"{whole.name} has a layer without attention", hint="block drafts of attention are priced")
        kept += layer.mixer.cache().per_token
    fields = {"layers": [], "joined": [*fused, (whole.d_model, kept)], "bare": True}
    return ModelSpec(**{**{name: getattr(whole, name) for name in ModelSpec.spec_fields}, **fields})
