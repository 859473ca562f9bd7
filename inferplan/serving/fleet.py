"""What a fleet is made of: how many engines there are, what they are, and how requests find one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

from inferplan.devices.engine import CacheSending
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.features import those
from inferplan.fields import Text, Whole, Words, ask
from inferplan.serving.autoscaling import Losses, Scaling
from inferplan.serving.failures import Failures
from inferplan.serving.flags import Flags, with_flags
from inferplan.serving.routing import Routing
from inferplan.serving.techniques.speculation import Speculation


class Beside(NamedTuple):
    """Other replicas behind the same router. weight: requests that one gets, by proportion. speculation: their drafts;
    ``None``: those of the run.
    """

    deployment: Deployment
    flags: Flags
    replicas: int
    weight: float
    speculation: Speculation | None = None


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """How many engines there are, what they are and how requests find one.

    prefill, decode: with both, that many replicas compute prompts and that many decode; the cache of a request moves
    over ``kv_link``, a link of the hardware by name, when ``kv_sending`` says (``None``: as the engine does it).
    Without, all ``--replicas`` do both. prefill_deployment, prefill_flags: of the replicas that compute prompts, where
    they are not those of the run, which are those of the replicas that decode.
    """

    routing: Routing = ask(
        "--routing", Words(get_args(Routing)), "How requests are routed to replicas.", "round-robin", shown=True
    )
    prefill: int = ask(
        "--prefill-replicas",
        Whole(0),
        "Disaggregated: replicas that compute prompts; both pools share one cache format (--kv).",
        0,
    )
    decode: int = ask("--decode-replicas", Whole(0), "Disaggregated: replicas that decode.", 0)
    kv_link: str | None = ask(
        "--kv-link", Text(), "Link over which the cache moves [the accelerator's fastest].", None, metavar="NAME"
    )
    kv_sending: CacheSending | None = ask(
        "--kv-sending",
        Words(get_args(CacheSending)),
        "When the cache is sent: after the prompt, piece by piece, or layer by layer [as the engine does it].",
        None,
    )
    prefill_deployment: Deployment | None = None
    prefill_flags: Flags | None = None
    scaling: Scaling | None = None
    """Who has replicas come and go during the run; ``None``: the deployment's replicas are there all the time."""
    losses: Losses | None = None
    """How often such replicas are taken away."""
    failures: Failures | None = None
    """Which are lost at stated times; they are back after the cold start of ``scaling``."""
    others: tuple[Beside, ...] = ()
    """Replicas that are not alike, behind those of the run; round robin then gives each turns by its weight."""
    weight: float = 1.0
    """That of a replica of the run."""

    def __post_init__(self) -> None:
        if self.failures is not None and self.scaling is None:
            raise UsageError("failed replicas need a time to restart, and it is missing", hint="--restart 3min")
        if not all(weight > 0 for weight in (self.weight, *(beside.weight for beside in self.others))):
            raise UsageError("the weight of a replica must be more than 0")
        if (self.prefill > 0) != (self.decode > 0) or self.prefill < 0:
            raise UsageError("disaggregated pools need at least one prefill and one decode replica")
        described = (self.prefill_deployment, self.prefill_flags, self.kv_link, self.kv_sending)
        if not self.prefill and any(given is not None for given in described):
            raise UsageError(
                "a separate pool for prompts, or its link, is described, and there is none",
                hint="--prefill-replicas 1 --decode-replicas 1",
            )

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        return those(
            pools=self.disaggregated,
            failures=self.failures is not None,
            elastic=self.changes or (self.scaling is not None and self.failures is None),
            unlike=bool(self.others),
            prefix_aware=self.routing == "prefix-aware",
            cache_aware=self.routing == "cache-aware",
            sticky=self.routing == "sticky",
        )

    @property
    def changes(self) -> bool:
        """Whether somebody orders replicas or takes them away while the run lasts, failures aside."""
        return self.losses is not None or (self.scaling is not None and self.scaling.looks)

    @property
    def disaggregated(self) -> bool:
        return self.prefill > 0

    @property
    def alike(self) -> bool:
        """Whether all replicas are the same deployment under the same flags."""
        return self.prefill_deployment is None and self.prefill_flags is None

    def prompts(self, deployment: Deployment, flags: Flags) -> tuple[Deployment, Flags] | None:
        """The replicas that compute prompts, with their flags, beside others of ``deployment`` under ``flags``; when
        clients give up is the run's to say. ``None`` where all are alike.
        """
        if self.alike:
            return None
        flags = replace(self.prefill_flags or flags, client_timeout=flags.client_timeout)
        return with_flags(self.prefill_deployment or deployment, flags), flags

    def engines(self, deployment: Deployment) -> int:
        """Engines that requests are spread over: replicas times attention data-parallel ranks."""
        ranks = deployment.parallel.dp
        if not self.disaggregated:
            own = (deployment.parallel.replicas if self.scaling is None else self.scaling.first) * ranks
            return own + sum(beside.replicas * beside.deployment.parallel.dp for beside in self.others)
        return self.prefill * (self.prefill_deployment or deployment).parallel.dp + self.decode * ranks
