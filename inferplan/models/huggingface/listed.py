"""Layers that no kind describes, written down tensor by tensor and operator by operator."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.dialect import Layer

Polynomial = dict[str, int]
TOKENS: Polynomial = {"bn": 1}
"""Every token of every sequence."""


class Listing:
    """The tensors and the operators of a part of a layer, in the order in which they run."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.operators: list[dict[str, Any]] = []
        self.rows = TOKENS
        """What matrices, norms and maps work on from here."""

    def _each(self, number: int) -> Polynomial:
        """So many of each row."""
        return {name: number * count for name, count in self.rows.items()}

    def tensor(self, name: str, *shape: int, role: str = "base") -> None:
        """A parameter that no operator of its own multiplies."""
        self.tensors.append({"name": name, "shape": list(shape), "role": role})

    def matmul(self, name: str, inputs: int, outputs: int, *, groups: int = 1, bias: bool = True) -> None:
        """A linear layer of every row; in groups, each has its share of the inputs and of the outputs."""
        k, n = inputs // groups, outputs // groups
        shape = [n, k] if groups == 1 else [groups, n, k]
        self.tensors.append({"name": name, "shape": shape})
        if bias:
            self.tensor(f"{name}.bias", outputs)
        copies = {} if groups == 1 else {"copies": groups}
        rows = {} if self.rows == TOKENS else {"rows": self.rows}
        self.operators.append({"runs": "matmul", "name": name, "k": k, "n": n, **copies, **rows})

    def attention(self, heads: int, head_dim: int) -> None:
        """Every token sees every other."""
        core = {"heads": heads, "kv_heads": heads, "key_dim": head_dim, "value_dim": head_dim, "mask": "full"}
        self.operators.append({"runs": "attention", "name": "core", **core})

    def product(self, name: str, *sides: Polynomial) -> None:
        """Activations times activations: how many, rows, what is summed over, columns."""
        self.operators.append({"runs": "product", "name": name, "sides": list(sides)})

    def pointwise(self, name: str, flop: Polynomial, read: Polynomial, write: Polynomial) -> None:
        """One kernel between two of the others."""
        self.operators.append({"runs": "pointwise", "name": name, "flop": flop, "read": read, "write": write})

    def map(self, name: str, width: int, *, reads: int = 1, flops: int = 1) -> None:
        """A kernel over ``width`` outputs of every row, each of ``reads`` inputs and ``flops`` FLOP."""
        self.pointwise(name, self._each(flops * width), self._each(reads * width), self._each(width))

    def residual(self, width: int) -> None:
        """The sum with what the part has read."""
        self.map("residual", width, reads=2)

    def norm(self, name: str, width: int, *, plain: bool = False) -> None:
        """A norm with weight and bias; ``plain``: those two alone, without a mean (MobileBERT's)."""
        self.tensor(name, 2, width)
        flops = 2 if plain else 7
        self.pointwise(name, self._each(flops * width), {**self._each(width), "1": 2 * width}, self._each(width))

    def part(self, width: int, untimed: str = "") -> Layer:
        """The mapping of a YAML. width: elements of a token that are alive at once; untimed: why it has no time."""
        if untimed:
            tensors = {one["name"]: one["shape"] for one in self.tensors}
            return {"kind": "untimed", "why": untimed, "tensors": tensors, "width": width}
        return {"kind": "traced", "tensors": self.tensors, "operators": self.operators, "width": width}
