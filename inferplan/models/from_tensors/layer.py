"""One layer of a model that nobody has described, from its modules: what it keeps, and the matmuls that they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from inferplan.models.from_tensors.modules import Module, format_of
from inferplan.models.header_bytes import Tensor
from inferplan.models.layers.base import Role
from inferplan.models.layers.traced import TracedCache, TracedLayer, TracedOperator, TracedTensor, operators_width

_SIBLINGS = (("query", "key", "value"), ("in",), ("experts_in",))
"""What reads the same rows and is multiplied at once, as engines do with q, k and v, and with gate and up."""

_HEAD_NORMS = ("self_attn.q_norm", "attn.q_norm", "attention.q_norm", "attn_q_norm")
"""Norms of queries, as wide as one head or as all of them."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a config says of the layers beside their tensors, as far as it says it.

    heads, head_dim: of queries. top_k: experts that a token reads. windows: of each layer, ``None`` for all tokens.
    unkept, untimed: why what a layer keeps, or its time, is not known.
    """

    width: int
    heads: int | None = None
    head_dim: int | None = None
    top_k: int | None = None
    windows: tuple[int | None, ...] = ()
    unkept: str = ""
    untimed: str = ""


@dataclass
class Told:
    """The tensors of one layer, told apart."""

    index: int
    modules: dict[str, Module]
    said: Said

    def layer(self) -> TracedLayer:
        """The layer; what it keeps and its time as far as they are known."""
        tensors = [one for module in self.modules.values() for one, _ in self.placed(module)]
        why = self._unkept()
        keeps = TracedCache(unknown=why) if why else self._keeps()
        operators = [] if why else self._attention()
        untimed = why or self.said.untimed or ("" if operators else self._unknown_heads())
        matmuls = self._matmuls()
        if not untimed and any(one.active is None for one in tensors):
            untimed = "the number of experts per token is not known: no config states it"
        live = max([operators_width(matmuls), *(self._rows(module) + self.said.width for module in self._multiplied())])
        return TracedLayer(
            tensors=tensors,
            keeps=keeps,
            operators=[] if untimed else self._in_order(operators, matmuls),
            width=live,
            untimed=untimed,
        )

    def _of(self, *roles: str) -> list[Module]:
        return [module for module in self.modules.values() if module.role in roles]

    def _multiplied(self) -> list[Module]:
        return [module for module in self.modules.values() if module.role not in ("", "small")]

    def _rows(self, module: Module) -> int:
        return (module.outputs(self.said.width) or 0) * (self.said.top_k or 1 if module.experts else 1)

    def placed(self, module: Module) -> list[tuple[TracedTensor, Tensor]]:
        """The tensors of a module as a model file has them, each with what is stored."""
        found = []
        for leaf, tensor in module.tensors.items():
            _, shape, _ = format_of(tensor)
            stack = [module.experts] if module.experts else []
            expert = module.role.startswith("experts")
            plain = module.role in ("", "small", "router") or not (len(shape) > 1 or stack)
            count = stack[0] if stack else shape[0] if expert and shape else 0
            known = self.said.top_k is not None and self.said.top_k <= count
            active = 1.0 if not expert else (self.said.top_k or 0) / count if known else None
            name = module.name if leaf in ("weight", "") else f"{module.name}{leaf if leaf[0] == '_' else f'.{leaf}'}"
            role: Role = "base" if plain else "experts" if expert else "weights"
            found.append((TracedTensor(name=name, shape=[*stack, *shape], role=role, active=active), tensor))
        return found

    def _unkept(self) -> str:
        """Why it is not known what the layer keeps of a sequence; empty where it is."""
        strange = [module.name for module in self.modules.values() if not module.role]
        if strange:
            more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
            return f"tensors of layer {self.index} are not understood: {', '.join(strange[:3])}{more}"
        kinds = {role: len(self._of(role)) for role in ("key", "value", "fused", "latent", "query", "out")}
        known = [(1, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 0, 0)]
        held = tuple(kinds[role] for role in ("key", "value", "fused", "latent"))
        if held not in known or (any(held) and kinds["out"] != 1) or (not any(held) and kinds["query"] + kinds["out"]):
            names = ", ".join(module.name for module in self._of(*kinds)) or "nothing of one"
            return f"what layer {self.index} keeps is not told by its attention: {names}"
        if any(held) and self._per_token() is None:
            return f"the attention of layer {self.index} is packed so that its shapes do not say how wide it is"
        return self.said.unkept

    def _per_token(self) -> int | None:
        """Elements that a token adds: keys and values, what fused projections have beside queries, or a latent."""
        width = self.said.width
        sizes = [module.outputs(width) for module in self._of("key", "value", "latent", "fused")]
        if self._of("fused"):
            queries = self._of("out")[0].inputs(width)
            both = None if sizes[0] is None or queries is None else sizes[0] - queries
            return both if both is not None and both > 0 else None
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def _keeps(self) -> TracedCache:
        window = self.said.windows[self.index] if self.said.windows else None
        per_token = self._per_token() or 0
        return TracedCache(per_token=per_token, window=window) if per_token else TracedCache()

    def _shape(self) -> tuple[int, int, int] | None:
        """Heads of queries, of keys, and columns of one head; ``None`` where nothing says them."""
        if self._of("latent") or not self._of("out"):
            return None
        inner, kept = self._of("out")[0].inputs(self.said.width), self._per_token() or 0
        said, normed = self.said, [m for m in self._of("small") if m.name in _HEAD_NORMS]
        column = normed[0].tensors["weight"].shape[-1] if normed and "weight" in normed[0].tensors else None
        head: float | None = column if column != inner else None  # what tensors tell holds against the config
        head = head or said.head_dim or (None if inner is None or not said.heads else inner / said.heads)
        if not inner or not head or not kept or inner % head or kept % (2 * head):
            return None
        heads, kv_heads = int(inner // head), int(kept // (2 * head))
        queries = [module.outputs(said.width) for module in self._of("query")]
        alike = {module.outputs(said.width) for module in self._of("key", "value")} <= {kept // 2}
        # queries may have a gate of their own beside them: twice as many rows
        if heads % kv_heads or not alike or (queries and queries[0] not in (inner, 2 * inner)):
            return None
        return heads, kv_heads, int(head)

    def _unknown_heads(self) -> str:
        if not self._of("out"):
            return ""
        if self._of("latent"):
            return "its attention is latent: how an engine runs it is not told by tensors"
        return "how many heads its attention has is told neither by its tensors nor by a config"

    def _attention(self) -> list[TracedOperator]:
        """Attention to what is kept, and the copy of what is new into it."""
        shape = self._shape()
        if shape is None:
            return []
        heads, kv_heads, head = shape
        window = self.said.windows[self.index] if self.said.windows else None
        mask = {"mask": "window", "size": window} if window else {"mask": "causal"}
        sizes = {"heads": heads, "kv_heads": kv_heads, "key_dim": head, "value_dim": head}
        return [
            TracedOperator(runs="copy", name="cache", write={"bn": 2 * kv_heads * head}),
            TracedOperator.model_validate({"runs": "attention", "name": "attention", **sizes, **mask}),
        ]

    def _matmuls(self) -> list[TracedOperator]:
        """One for each matrix, or for siblings that read the same rows in the same format."""
        joined: dict[tuple[object, ...], list[Module]] = defaultdict(list)
        for module in self._multiplied():
            matrix = module.matrix
            if matrix is None:
                continue
            group = next((at for at, roles in enumerate(_SIBLINGS) if module.role in roles), None)
            parent = module.name.rpartition(".")[0]
            alike = (group, parent, matrix.dtype, module.inputs_beside(self.said.width)) if group is not None else None
            if module.role == "query" and len(self._of("query")) > 1:
                alike = None  # one behind the other
            joined[alike or (module.name,)].append(module)
        return [self._matmul(group) for group in joined.values()]

    def _matmul(self, group: list[Module]) -> TracedOperator:
        first, width = group[0], self.said.width
        assert first.matrix is not None
        outputs = sum(module.outputs(width) or 0 for module in group)
        k = first.inputs_beside(width)
        if first.role in ("down", "experts_down", "out"):
            outputs, k = width, first.inputs(width) or 0
        if first.role.startswith("experts"):
            count = first.experts or first.matrix.shape[0]
            top = min(self.said.top_k or 1, count)
            return TracedOperator(
                runs="experts", name=first.name, role="experts", experts=count, top_k=top, k=k, n=outputs
            )
        role: Role = "base" if first.role == "router" else "weights"
        return TracedOperator(runs="matmul", name=first.name, role=role, k=k, n=outputs)

    def _in_order(self, attention: list[TracedOperator], matmuls: list[TracedOperator]) -> list[TracedOperator]:
        """Queries, keys and values; attention; what is behind it."""
        early = {module.name for module in self._of("query", "key", "value", "fused", "latent", "from_latent")}
        before = [one for one in matmuls if one.name in early]
        out = {module.name for module in self._of("out")}
        after = [one for one in matmuls if one.name in out]
        rest = [one for one in matmuls if one not in before and one not in after]
        return [*before, *attention, *after, *rest]
