"""What a measured row states beside model, device and engine: adapters, weights on the host, sampling, a cap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from inferplan.catalog.assemble import Request, adapters_asked, capped, with_host_memory
from inferplan.catalog.filters import with_filters
from inferplan.catalog.offload import OffloadAsked
from inferplan.estimate.deployment import Deployment
from inferplan.models.gguf_formats import is_file_type
from inferplan.work.adapters import LoraAsked

WHOLE = {"lora_rank": "rank", "max_loras": "slots", "active_loras": "active"}
"""Columns of adapters, and what they are there."""
AWAY = ("gpu_layers", "cpu_moe_layers", "cpu_offload_gb", "host", "host_memory", "host_link")
"""Columns of weights in host memory."""
COLUMNS = (*WHOLE, *AWAY, "sampling", "power_cap_w")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """As a row asks for them; nothing where all fields have their defaults. power_cap: watts of a device."""

    lora: LoraAsked = LoraAsked()
    offload: OffloadAsked = OffloadAsked()
    sampling: str | None = None
    power_cap: float | None = None

    @classmethod
    def stated(cls, told: Mapping[str, Any]) -> Parts:
        """Of the columns that a row fills, as numbers or text. Raises what their options do."""
        lora = {WHOLE[name]: value for name, value in told.items() if name in WHOLE}
        away = {name: value for name, value in told.items() if name in AWAY}
        return cls(
            lora=LoraAsked(**lora),
            offload=OffloadAsked(**away),
            sampling=told.get("sampling"),
            power_cap=told.get("power_cap_w"),
        )

    @property
    def record(self) -> dict[str, Any]:
        """As JSON, without what is left to defaults."""
        adapters = {name: getattr(self.lora, field) for name, field in WHOLE.items()}
        away = {name: getattr(self.offload, name) for name in AWAY}
        told = {**adapters, **away, "sampling": self.sampling, "power_cap_w": self.power_cap}
        return {name: value for name, value in told.items() if value}

    def over(self, deployment: Deployment, model: str, gpu: str, weights: str | None) -> Deployment:
        """The deployment of a row with them. weights: as the row states them. Raises what ``assemble`` does."""
        if self == Parts():
            return deployment
        precision, engine = deployment.precision, deployment.engine.name
        of_file = weights is not None and is_file_type(weights)
        named = {role: getattr(precision, role).name for role in ("weights", "experts", "activations", "kv")}
        request = Request(
            model=model,
            gpu=gpu,
            engine=engine,
            quant=weights if of_file else None,
            roles=() if of_file else tuple(named.items()),
            lora=self.lora,
            offload=self.offload,
        )
        found = replace(deployment, lora=adapters_asked(request, deployment.model, precision.base))
        if self.sampling is not None:
            found = with_filters(found, self.sampling)
        if self.power_cap is not None:
            found = capped(found, self.power_cap)
        return with_host_memory(request, found)
