"""KV offload: cache that the device drops is kept in host memory and brought back over the host link.

Loading ``n`` tokens takes ``n*bytes/bandwidth``; computing them again takes their prefill. Loading wins where the model
needs more than ``bytes/bandwidth`` seconds of arithmetic a token, so on long prefixes of large models nearly always:
:func:`reload_gain` prices both. In the simulator the host is a tier below the prefix cache
(:mod:`inferplan.serving.cache_tiers`), and the step that admits a request waits for its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import prefill_phase
from inferplan.fields import Quantity, Topic, need, require_limits
from inferplan.units import Num


def bytes_per_token(deployment: Deployment) -> float:
    """Bytes of cache that one token keeps on the fullest device, below every window."""
    return max(stage.per_token for stage in Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).stages)


@dataclass(frozen=True, kw_only=True)
class HostTier:
    """``capacity`` bytes of host memory for each device, behind a link of ``bandwidth`` bytes a second each way.

    Raises ``UsageError`` for either that is not above zero.
    """

    topic: ClassVar = Topic("KV offload", "there is none", "--kv-offload 100GB --offload-bandwidth 64GB/s")
    capacity: float = field(
        metadata=need(
            "--kv-offload",
            Quantity("bytes", above=True),
            "Host memory per device, for cache entries evicted from the device.",
        )
    )
    bandwidth: float = field(
        metadata=need(
            "--offload-bandwidth", Quantity("bytes/s", above=True), "Bandwidth of the link to the host, such as 64GB/s."
        )
    )

    def __post_init__(self) -> None:
        require_limits(self)

    def seconds_per_token(self, deployment: Deployment) -> float:
        """Seconds to bring back one token's cache; every device loads its own share."""
        return bytes_per_token(deployment) / self.bandwidth


def load_time(deployment: Deployment, host: HostTier, tokens: Num) -> Num:
    """Seconds to bring the cache of ``tokens`` back to the device."""
    return np.asarray(tokens, dtype=np.float64) * host.seconds_per_token(deployment)


def reload_gain(deployment: Deployment, host: HostTier, tokens: Num) -> Num:
    """How many times faster loading ``tokens`` is than computing them again; below 1 recomputing wins."""
    recompute = prefill_phase(deployment, StaticLoad(batch=1.0, prompt=np.asarray(tokens, dtype=np.float64))).time
    return recompute / load_time(deployment, host, tokens)
