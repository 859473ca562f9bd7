"""What a forward pass runs: every operator that torch dispatches, with its shapes and whose results it reads."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from inferplan.models.tracing.experts import RecordedRouting, watch_routing
from inferplan.models.tracing.masks import describe

ATTENTION = "inferplan"
"""The name of the attention, and of the masks, that stand in place of kernels."""
Place = tuple[str, int]
"""Where in the model: ``("layer", 3)``, ``("ahead", 0)`` of the layers, ``("behind", 3)`` the fourth."""
_COPIES = ("clone", "_to_copy", "copy", "contiguous", "lift_fresh_copy", "_reshape_copy", "expand_copy")
"""Changes of layout and width, which a kernel makes as it writes."""
_MOVES = ("cat", "index", "index_select", "embedding", "gather", "stack", "constant_pad_nd", "slice_scatter", "scatter")
_LOOKUPS = ("index", "index_select", "embedding", "gather")
"""What reads as many elements of its table as it puts out."""
_REDUCTIONS = frozenset(
    [
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "var",
        "var_mean",
        "std",
        "linalg_vector_norm",
        "norm",
        "topk",
        "sort",
        "histc",
        "argmax",
        "any",
        "all",
        "prod",
        "logsumexp",
        "bincount",
        "cumsum",
    ]
)
"""What does a FLOP for each element that it takes in, not for each that it puts out."""
_CREATES = ("empty", "zeros", "ones", "full", "arange", "new_", "scalar_tensor", "rand", "eye", "lift_fresh")


@dataclass
class Event:
    """One operator of a pass: what it runs, its sizes, and the memory that it reads and writes, by identity."""

    runs: str
    name: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    reads: list[tuple[int, int]] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    flop: int = 0
    mask: tuple[str, int] | None = None
    softmax: bool = False
    source: int | None = None
    """Of a matmul, whose memory its rows are."""


@dataclass(frozen=True)
class Stops:
    """The modules whose borders the recorder sees: the layers, the embedding, the head, and mixers inside layers that
    are described by name."""

    layers: list[Any]
    embedding: Any = None
    head: Any = None
    mixers: Mapping[str, Any] = field(default_factory=dict)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records the passes that run inside it, each place of the model apart."""

    def __init__(self, model: Any, stops: Stops, loose: bool = False) -> None:
        super().__init__()
        self.model, self.stops, self.loose = model, stops, loose
        self.routing = RecordedRouting()
        self.names = {tensor.untyped_storage()._cdata: name for name, tensor in model.named_parameters()}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
        self.masks: dict[int, tuple[str, int] | None] = {}
        self.layer_of: dict[Place, Any] = {}
        self.cached: dict[Place, set[int]] = defaultdict(set)
        self.clear()

    def clear(self) -> None:
        """Begins a pass."""
        self.events: dict[Place, list[Event]] = defaultdict(list)
        self.touched: dict[str, Place] = {}
        self.place: Place = ("ahead", 0)
        self.paused = 0
        self.inside = 0
        self.ran = 0
        self.width = 0
        self.headed = False
        self._alias: dict[int, int] = {}
        self._kept: list[Any] = []

    # identity of memory

    def root(self, tensor: Any) -> int:
        """Whose memory a tensor is, copies of layout taken for what they copy."""
        self._kept.append(tensor)
        key: int = tensor.untyped_storage()._cdata
        while key in self._alias:
            key = self._alias[key]
        return key

    def _operand(self, tensor: Any) -> tuple[int, int]:
        key = self.root(tensor)
        if key in self.names:
            self.touched.setdefault(self.names[key], self.place)
        held = tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
        return key, min(tensor.numel(), held)

    def parameter(self, tensor: Any) -> str | None:
        """The name of the parameter whose memory it is."""
        return self.names.get(self.root(tensor))

    # what is recorded

    def add(self, event: Event) -> None:
        self.events[self.place].append(event)

    @contextmanager
    def pause(self) -> Iterator[None]:
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.paused:
            inputs = [x for x in _tensors((args, kwargs or {})) if x.device.type == "meta"]
            outputs = [x for x in _tensors(result) if x.device.type == "meta"]
            if outputs:
                self._record(func, inputs, outputs)
        return result

    def _record(self, func: Any, inputs: list[Any], outputs: list[Any]) -> None:
        name = func._schema.name.partition("::")[2]
        mutates = func._schema.is_mutable
        if name in _COPIES and inputs and not mutates:
            self._kept += [*inputs, *outputs]
            mine, source = outputs[0].untyped_storage()._cdata, self.root(inputs[0])
            if mine != source:
                self._alias[mine] = source
            return
        keys = {x.untyped_storage()._cdata for x in inputs}
        if not mutates and inputs and all(x.untyped_storage()._cdata in keys for x in outputs):
            self._kept += outputs
            return  # a view
        if not inputs or name.startswith(_CREATES) or name.endswith("_like"):
            self._kept += outputs
            return
        heavy = _HEAVY.get(name)
        event = heavy(self, inputs, outputs) if heavy else None
        if event is None:
            event = self._light(name, inputs, outputs)
        else:
            event.reads = event.reads or [self._operand(x) for x in inputs]
            event.writes = [self._operand(x) for x in outputs]
        self.add(event)

    def _light(self, name: str, inputs: list[Any], outputs: list[Any]) -> Event:
        """A pointwise operator, one FLOP for each element that it puts out; a reduction, one for each it takes in."""
        reads, writes = [self._operand(x) for x in inputs], [self._operand(x) for x in outputs]
        if name in _LOOKUPS:
            reads[0] = reads[0][0], min(reads[0][1], writes[0][1])
        flop = 0 if name.rstrip("_") in _MOVES else (inputs if name in _REDUCTIONS else outputs)[0].numel()
        if name == "convolution":  # depthwise
            flop = 2 * outputs[0].numel() * prod(inputs[1].shape[1:])
        chosen = {"of": inputs[0].shape[-1], "top": outputs[0].shape[-1]} if name == "topk" else {}
        if chosen:
            self.routing.tops.setdefault(self.place, set()).add((chosen["of"], chosen["top"]))
        return Event("light", name, chosen, reads, writes, flop, softmax="softmax" in name)

    def attention(self, query: Any, key: Any, value: Any, mask: tuple[str, int] | None) -> Any:
        """Attention of ``[batch, heads, tokens, size]`` as one operator; its output has the queries' layout."""
        batch, heads, new, size = query.shape
        sizes = {"batch": batch, "heads": heads, "new": new, "key_dim": size, "keys": key.shape[2]}
        sizes |= {"kv_heads": key.shape[1], "value_dim": value.shape[-1]}
        with self.pause():
            out = query.new_empty(batch, heads, new, value.shape[-1])
        reads = [self._operand(x) for x in (query, key, value)]
        self.add(Event("attention", "attention", sizes, reads, [self._operand(out)], mask=mask))
        return out

    # the borders

    @contextmanager
    def watch(self) -> Iterator[Recorder]:
        """Records what runs inside: borders, caches, attention and masks of transformers are seen."""
        with ExitStack() as stack:
            for module in {id(one): one for one in self.stops.layers}.values():
                handles = [
                    module.register_forward_pre_hook(self._enter),
                    module.register_forward_hook(self._leave),
                ]
                for handle in handles:
                    stack.callback(handle.remove)
            for module, ends in ((self.stops.embedding, False), (self.stops.head, True)):
                if module is not None:
                    stack.enter_context(self._whole(module, ends))
            for name, module in self.stops.mixers.items():
                stack.enter_context(self._mixer(name, module))
            stack.enter_context(watch_routing(self.model, self.routing, self.loose))
            stack.enter_context(_interfaces(self))
            stack.enter_context(_caches(self))
            stack.enter_context(_Products(self))
            stack.enter_context(self)
            yield self

    def _enter(self, module: Any, args: Any) -> None:
        self.place = ("layer", self.ran)
        self.layer_of[self.place] = module

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        self.place = ("behind", self.ran)
        self.ran += 1
        self.width = next((x.shape[-1] for x in _tensors(output)), 0)

    @contextmanager
    def _whole(self, module: Any, ends: bool) -> Iterator[None]:
        """A module that the model's own fields describe: nothing of it is recorded, nor what follows the head."""

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            if ends and not self.headed:
                self.headed = True
                self.finish((args, kwargs))
            self.paused += 1

        def leave(module: Any, args: Any, output: Any) -> None:
            self.paused -= 0 if ends else 1

        handles = module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave)
        yield
        for handle in handles:
            handle.remove()

    @contextmanager
    def _mixer(self, name: str, module: Any) -> Iterator[None]:
        """A module that a described kind stands for: one operator, and nothing of what it runs."""
        begun: list[Event] = []

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            if not self.paused:
                begun.append(Event("mixer", name, reads=[self._operand(x) for x in _tensors((args, kwargs))]))
            self.paused += 1
            self.inside += 1

        def leave(module: Any, args: Any, output: Any) -> None:
            self.paused -= 1
            self.inside -= 1
            if not self.paused:
                event = begun.pop()
                event.writes = [self._operand(x) for x in _tensors(output)]
                self.add(event)

        handles = module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave)
        yield
        for handle in handles:
            handle.remove()

    def finish(self, outputs: Any) -> None:
        """What the pass is for: tensors that somebody reads after it."""
        self.add(Event("end", reads=[self._operand(x) for x in _tensors(outputs)]))


def _tensors(found: Any) -> Iterator[Any]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (list, tuple)):
        for one in found:
            yield from _tensors(one)
    elif isinstance(found, dict):
        for one in found.values():
            yield from _tensors(one)


def _mm(recorder: Recorder, inputs: list[Any], outputs: list[Any]) -> Event | None:
    """``mm``, ``addmm``, ``bmm`` and ``baddbmm``: with a parameter a matmul, of two activations a product."""
    a, b = inputs[-2:]
    names = recorder.parameter(a), recorder.parameter(b)
    copies = a.shape[0] if a.dim() == 3 else 1
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if names[1] is not None:
        return Event("matmul", names[1], {"m": m, "k": k, "n": n, "copies": copies}, source=recorder.root(a))
    if names[0] is not None:
        return Event("matmul", names[0], {"m": n, "k": k, "n": m, "copies": copies}, source=recorder.root(b))
    reads = [recorder._operand(x) for x in (a, b)]
    return Event("product", "product", {"batch": copies, "m": m, "k": k, "n": n}, reads)


def _grouped(recorder: Recorder, inputs: list[Any], outputs: list[Any]) -> Event | None:
    x, weight = inputs[:2]
    name = recorder.parameter(weight)
    if name is None:
        return None
    experts, k, n = weight.shape
    return Event("experts", name, {"m": x.shape[0], "k": k, "n": n, "experts": experts})


def _convolution(recorder: Recorder, inputs: list[Any], outputs: list[Any]) -> Event | None:
    """A convolution that joins channels is a matmul over its patches; a depthwise one is pointwise."""
    weight, out = inputs[1], outputs[0]
    inner = prod(weight.shape[1:])
    name = recorder.parameter(weight)
    if name is None or weight.shape[1] == 1:
        return None
    copies = inputs[0].shape[1] // weight.shape[1]
    return Event(
        "matmul",
        name,
        {"m": out.numel() // out.shape[1], "k": inner, "n": weight.shape[0] // copies, "copies": copies},
    )


_HEAVY: dict[str, Callable[[Recorder, list[Any], list[Any]], Event | None]] = {
    "mm": _mm,
    "addmm": _mm,
    "bmm": _mm,
    "baddbmm": _mm,
    "_grouped_mm": _grouped,
    "grouped_mm_fallback": _grouped,
    "convolution": _convolution,
}


class _Products(TorchFunctionMode):  # type: ignore[misc]
    """Attention that a model asks torch for directly."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention and not self.recorder.paused:
            given: list[Any] = [*args, *(options[x] for x in ("query", "key", "value") if x in options)]
            query, key, value, *rest = given
            mask = rest[0] if rest else options.get("attn_mask")
            causal = options.get("is_causal", False) or (len(rest) > 2 and rest[2])
            if query.dim() == 4:
                known = self.recorder.masks.get(mask.untyped_storage()._cdata) if mask is not None else None
                kind = ("causal", 0) if causal else ("full", 0) if mask is None and query.shape[2] > 1 else known
                return self.recorder.attention(query, key, value, kind)
        return func(*args, **options)


@contextmanager
def _interfaces(recorder: Recorder) -> Iterator[None]:
    """Stands in for the kernels of attention and the makers of masks that transformers calls by name."""
    from transformers import masking_utils
    from transformers.integrations import moe
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

    chunked = masking_utils.chunked_overlay

    def unpadded(chunk_size: int, left_padding: Any) -> Any:
        return chunked(chunk_size, torch.zeros(1, dtype=torch.long, device="cpu"))

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **options: Any) -> Any:
        if attention_mask is not None:
            mask = recorder.masks.get(recorder.root(attention_mask))
        else:
            causal = options.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            mask = ("causal", 0) if causal else ("full", 0)
        if recorder.paused:
            out = query.new_empty(*query.shape[:3], value.shape[-1])
        else:
            out = recorder.attention(query, key, value, mask)
        return out.transpose(1, 2).contiguous(), None

    def see(*, batch_size: int, q_length: int, kv_length: int, **options: Any) -> Any:
        with recorder.pause():
            mask = torch.empty(batch_size, 1, q_length, kv_length, dtype=torch.bool, device="meta")
            recorder._kept.append(mask)
            found = describe(options.get("mask_function"), options.get("local_size"))
            recorder.masks[mask.untyped_storage()._cdata] = found
        return mask

    def grouped(x: Any, weight: Any, offs: Any) -> Any:
        with recorder.pause():
            out = x.new_empty(x.shape[0], weight.shape[-1])
        if not recorder.paused:
            event = _grouped(recorder, [x, weight], [out])
            if event is not None:
                event.reads, event.writes = [recorder._operand(y) for y in (x, weight)], [recorder._operand(out)]
                recorder.add(event)
        return out

    own, warn = moe._grouped_mm, PreTrainedModel.warn_if_padding_and_no_attention_mask
    PreTrainedModel.warn_if_padding_and_no_attention_mask = lambda *_: None  # it reads numbers
    moe._grouped_mm = grouped  # torch's own asks for strides that no shape of a kernel needs
    masking_utils.chunked_overlay = unpadded  # a mask of no padding, which can be asked about positions
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, see)
    try:
        yield
    finally:
        masking_utils.chunked_overlay, moe._grouped_mm = chunked, own
        PreTrainedModel.warn_if_padding_and_no_attention_mask = warn
        for table in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
            table._global_mapping.pop(ATTENTION, None)


@contextmanager
def _caches(recorder: Recorder) -> Iterator[None]:
    """What goes into a cache is a copy of that size, whatever transformers does to append it."""
    from transformers.cache_utils import Cache

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def update(cache: Any, *args: Any, **options: Any) -> Any:
            given = list(_tensors((args, options)))
            layer = next((x for x in (*args, *options.values()) if isinstance(x, int)), None)
            outer = recorder.paused == recorder.inside
            if outer and layer is not None:
                recorder.cached[recorder.place].add(layer)
            if not recorder.paused:
                operands = [recorder._operand(x) for x in given]
                recorder.add(Event("copy", "cache", {"elements": sum(x.numel() for x in given)}, operands))
            with recorder.pause():
                return original(cache, *args, **options)

        return update

    names = [name for name in vars(Cache) if name.startswith("update")]
    originals = {name: getattr(Cache, name) for name in names}
    for name, original in originals.items():
        setattr(Cache, name, wrapped(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(Cache, name, original)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of a library about weights that nobody will load."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
