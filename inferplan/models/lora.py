"""LoRA adapters beside a model: which matrices they adapt, their parameters, their bytes on a rank.

An adapter of rank r adds ``(x A) B`` to the output of a matrix of ``d_in x d_out``: ``r (d_in + d_out)`` parameters. A
batch of requests with different adapters multiplies each row by its own (Punica, 2310.18547; S-LoRA, 2311.03285). Slots
are divided as in vLLM 0.20.2 (``vllm/lora/layers``): of a matrix that is divided by columns A is whole on each rank and
B divided, of one divided by rows the reverse (``fully_sharded_loras`` false, ``config/lora.py:39``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inferplan.errors import UsageError
from inferplan.models.layers import Weight
from inferplan.models.spec import LayerGroup, ModelSpec, count_distinct
from inferplan.work.adapters import MODULES, USUAL_SLOTS, Adapters, LoraAsked, StoredAdapter
from inferplan.work.formats import Format
from inferplan.work.parallel import Parallelism

BY_ROWS = frozenset({"o", "down"})
"""Matrices whose inputs tensor parallelism divides, and not their outputs."""
_KINDS = ("attention", "mlp")
"""Kinds of part whose matrices are adapted here."""


def _elements(weight: Weight, rank: int, parallel: Parallelism) -> float:
    """``r (d_in + d_out)`` with the dimension that tensor parallelism divides as one rank has it."""
    outputs, inputs = weight.shape
    share = weight.per_rank(parallel) / weight.elements
    return rank * (inputs * share + outputs if weight.name in BY_ROWS else inputs + outputs * share)


def _layer_weights(model: ModelSpec) -> Iterator[tuple[Weight, int]]:
    for layer, count in model.distinct:
        yield from ((weight, count) for weight in model.layer_weights(layer))


def adapters_of(model: ModelSpec, asked: LoraAsked, base: Format, stored: StoredAdapter | None) -> Adapters | None:
    """The adapters asked for beside a model, in its 16-bit format; ``None`` without any.

    Raises ``UsageError`` for matrices that the model does not have, that nobody knows how an adapter runs on, and for
    an adapter of a higher rank than a slot.
    """
    if not asked.any:
        return None
    if model.encoder is not None or model.generation.kind == "diffusion":
        raise UsageError(f"adapters for {model.name} are not modelled", because="it is no plain decoder")
    ranks = {} if stored is None else dict(stored.ranks)
    rank = asked.rank or max(ranks.values(), default=1)
    if max(ranks.values(), default=0) > rank:
        raise UsageError(
            f"the adapter's rank {max(ranks.values())} exceeds the rank of a slot, {rank}",
            hint=f"--lora-rank {max(ranks.values())}",
        )
    modules = asked.modules or tuple(ranks) or _every(model)
    if not ranks.keys() <= set(modules):
        raise UsageError(f"the adapter also changes {', '.join(sorted(ranks.keys() - set(modules)))}")
    _require_known(model, frozenset(modules))
    slots = asked.slots or USUAL_SLOTS
    found = Adapters(
        rank=rank,
        modules=frozenset(modules),
        slots=slots,
        active=float(slots if asked.active is None else asked.active),
        format=base,
        ranks=ranks,
        stored=stored,
    )
    if stored is not None and stored.elements != parameters(found, model):
        raise UsageError(
            f"{stored.name} is no adapter of {model.name}",
            because=f"its file has {stored.elements:,} parameters, its config promises {parameters(found, model):,}",
        )
    return found


def _every(model: ModelSpec) -> tuple[str, ...]:
    """Every linear layer. Raises ``UsageError`` where some are none of :data:`MODULES`."""
    linear = {
        weight.name: None
        for weight, _ in _layer_weights(model)
        if weight.role in ("weights", "experts") and len(weight.shape) > 1
    }
    own = [name for name in linear if name in MODULES]
    odd = [name for name in linear if name not in MODULES]
    if odd:
        raise UsageError(
            f"adapters on every linear layer of {model.name} are not known here: {', '.join(odd[:4])}",
            hint=f"--lora-modules {','.join(own)}" if own else "",
        )
    return tuple(own)


def _require_known(model: ModelSpec, modules: frozenset[str]) -> None:
    """Raise ``UsageError`` for a matrix that no layer has, or that lies in a part that is not known with adapters."""
    seen: set[str] = set()
    for part in (part for layer in model.sequence for part in layer.parts):
        names = {weight.name for weight in part.weights(model.d_model)} & modules
        if names and part.kind not in _KINDS:
            raise UsageError(
                f"adapters on {part.kind} layers are not known here",
                because=f"{model.name} has {', '.join(sorted(names))} there",
                hint="a narrower --lora-modules",
            )
        seen |= names
    if missing := modules - seen:
        raise UsageError(f"{model.name} has no {', '.join(sorted(missing))} to adapt", hint="a narrower --lora-modules")


def slot_bytes(adapters: Adapters, model: ModelSpec, layers: list[LayerGroup], parallel: Parallelism) -> float:
    """Bytes of one slot on a rank that holds these layers: its matrices, and those that are merged with them."""
    held = dict.fromkeys(adapters.held, adapters.rank)
    return adapters.format.width * _of_layers(held, model, layers, parallel)


def loaded_bytes(adapters: Adapters, model: ModelSpec, layers: list[LayerGroup], parallel: Parallelism) -> float:
    """Bytes that a rank that holds these layers gets of one adapter when it is loaded."""
    return adapters.format.width * _of_layers(adapters.own, model, layers, parallel)


def parameters(adapters: Adapters, model: ModelSpec) -> int:
    """Parameters of one adapter: ``sum r (d_in + d_out)``."""
    return round(_of_layers(adapters.own, model, model.sequence, Parallelism()))


def _of_layers(ranks: Mapping[str, int], model: ModelSpec, layers: list[LayerGroup], parallel: Parallelism) -> float:
    """Elements of an adapter of these ranks, by matrix, on one rank that holds these layers."""
    return sum(
        _elements(weight, ranks[weight.name], parallel) * count
        for layer, count in count_distinct(layers)
        for weight in model.layer_weights(layer)
        if weight.name in ranks
    )
