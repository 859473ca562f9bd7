"""How tokens reach the ranks of their experts: the kernels of an engine, and the format in which tokens travel."""

from __future__ import annotations

from typing import Annotated, Protocol, Self

from inferplan.spec import Field, Spec
from inferplan.work.ops import ExchangeMode, Meeting


class Fabric(Protocol):
    """What joins devices."""

    def joins_nodes(self, ranks: int) -> bool: ...


class ExchangeRules(Spec):
    """How tokens reach the ranks of their experts under attention data parallelism, and their sums come back.

    See docs/operators/exchange.md.
    """

    source: str = ""
    prefill: Meeting = "normal"
    """Of a step that holds a prompt."""
    decode: Meeting = "normal"
    racks: ExchangeMode | None = None
    """Of every step where one fabric joins the ranks of several nodes (NVL72); absent: as anywhere else."""
    formats: dict[str, str] = {}
    """The format in which tokens travel to their experts, by that of the experts' inputs; others travel in the base
    format, as sums do."""
    blocks: int = Field(default=20, ge=1)
    """Thread blocks, and so multiprocessors, that carry an exchange of normal mode."""
    computes: dict[ExchangeMode, Annotated[float, Field(ge=0.0, le=1.0)]] = {}
    """By mode the share of an exchange in which its kernels hold all multiprocessors, and nothing runs beside it."""
    shows: dict[ExchangeMode, Annotated[float, Field(ge=0.0, le=1.0)]] = {}
    """By mode the share of the shorter of an exchange and a computation beside it by which they slow each other."""
    experts_apart: tuple[ExchangeMode, ...] = ()
    """Modes in which the routed experts of one half batch run beside no exchange of the other."""

    def on(self, hardware: Fabric, ranks: int) -> Self:
        """The same for ``ranks`` devices, with the kernels for racks where they apply."""
        if self.racks is None or ranks == 1 or not hardware.joins_nodes(ranks):
            return self
        return self.model_copy(update={"prefill": self.racks, "decode": self.racks})
