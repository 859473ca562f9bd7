"""What a run is asked beside its deployment, its traffic and the engine's flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from inferplan.errors import UsageError
from inferplan.estimate.structured import Structured
from inferplan.features import those
from inferplan.fields import Text, Whole, ask, part, require_limits
from inferplan.mapped import Spool
from inferplan.serving.fleet import Fleet
from inferplan.serving.techniques.offload import HostTier
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.serving.techniques.tiers import FORM, CacheTier, parse_tier
from inferplan.traffic.requests import Slo

MOST_PROCESSES = 1024


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is not the engine's: how replicas are fed, what users accept, what is recorded.

    warmup: requests sent ahead and waited for, then left out of every figure (an open loop does not wait). trim: leave
    out what fills the system and what runs empty after the last arrival. progress: called with the number of requests
    that are done. hit_rate: share of every prompt taken as found in the prefix cache. host: memory of the host that
    keeps what the prefix cache drops. tiers: what keeps it instead, nearest the device first. tokens_timed: keep the
    gaps between tokens. spool: of these requests, where records are kept.
    """

    fleet: Fleet = field(default_factory=Fleet)
    speculation: Speculation = PLAIN
    hit_rate: float = 0.0
    host: HostTier | None = part(HostTier, None)
    tiers: tuple[CacheTier, ...] = ask(
        "--cache-tier",
        Text(parse_tier),
        "A tier for entries that the device's cache drops; repeat for more, the nearest first: host:200GB:50GB/s, "
        "ssd:2TB:6GB/s:100us:0.1USD/GB-month, store:20TB:10GB/s:1ms:shared. Sizes are per device; all replicas "
        "share a shared tier.",
        (),
        metavar=FORM,
        several=True,
    )
    lora_bandwidth: float | None = None
    """Bytes a second of the link that brings adapters to a device; ``None`` for the host link on file."""
    structured: Structured | None = part(Structured, None)
    """Requests that follow a grammar."""
    slo: Slo = field(default_factory=Slo)
    warmup: int = ask(
        "--warmup",
        Whole(0),
        "Requests at the start that are not counted [those that fill the system; none for a trace or a burst].",
        0,
    )
    trim: bool = False
    jobs: int = ask(
        "--jobs",
        Whole(most=MOST_PROCESSES),
        "Processes that simulate replicas in parallel, at most one per replica: with --rate or --trace, round robin "
        "or sticky, and no --turns. [1]",
        1,
    )
    """Processes among which replicas are divided that nothing connects: arrivals known ahead, sent round robin."""
    figures: frozenset[str] = frozenset()
    """What else is read off the run: ``energy``, ``hit-curve``."""
    timeline: bool = False
    tokens_timed: bool = True
    spool: Spool | None = None
    progress: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.hit_rate < 1:
            raise UsageError(f"a prefix-cache hit rate is in [0, 1), not {self.hit_rate:g}")
        require_limits(self)
        if self.lora_bandwidth is not None and not self.lora_bandwidth > 0:
            raise UsageError("--lora-bandwidth must be more than 0")

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        own = those(
            structured=self.structured is not None,
            drafts=self.speculation.length > 0 or self.speculation.draft is not None,
            hit_rate=self.hit_rate > 0,
            kv_offload=self.host is not None,
            tiers=bool(self.tiers),
            shared_tiers=any(tier.shared for tier in self.tiers),
            warmup=self.warmup > 0,
            trim=self.trim,
            jobs=self.jobs > 1,
        )
        return own | self.fleet.features | self.figures
