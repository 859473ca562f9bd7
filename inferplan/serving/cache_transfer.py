"""The way of a cache from replicas that compute prompts to replicas that decode: what a rank sends and receives.

Every rank of the receiver fetches what it keeps, each piece from one rank of the sender that holds it. With more ranks
that need a piece (a KV head, a latent) than hold it, each holder sends it several times; with fewer, some holders send
nothing: a latent, which every rank of tensor parallelism keeps, goes over the wire once for each rank that needs it
(SGLang 0.5.23, ``srt/disaggregation``: rank ``d`` of twice as many reads from rank ``d // 2``; vLLM's NixlConnector
does the same). All ranks send at once, and the slower side sets the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.devices.engine import CacheSending, PoolsApart
from inferplan.devices.hardware import Link
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import single
from inferplan.estimate.resting import PARTS, Kind, Resting
from inferplan.estimate.stage_memory import StageMemory
from inferplan.serving.records import Records
from inferplan.serving.rounds import overlaps
from inferplan.units import Num

_ALL = 2**31
"""Devices of a group that only a link without limit joins."""


def find_link(deployment: Deployment, name: str | None) -> Link:
    """The one link of the hardware whose name begins so; the widest of all for ``None``. Raises ``UsageError``."""
    links = deployment.hardware.links
    if name is None:
        try:
            return deployment.hardware.link(_ALL)
        except MissingFactError:
            raise UsageError(
                f"no link of {deployment.hardware.name} on file carries a cache from one pool to another",
                because=f"its links: {', '.join(link.name for link in links) or 'none'}",
                hint="--replicas 2, which compute prompts and decode, or the link in a copy of the hardware YAML",
            ) from None
    chosen = [link for link in links if link.name.lower().startswith(name.lower())]
    if len(chosen) != 1:
        known = ", ".join(link.name for link in links) or "none"
        raise UsageError(f"{deployment.hardware.name} has no link named {name!r}", hint=f"--kv-link one of: {known}")
    return chosen[0]


Drafts = tuple[Deployment | None, Deployment | None]
"""What drafts beside the model where prompts are computed, and where decodes are."""


class Side(NamedTuple):
    """One end of a transfer: who is there, and the link of each of its ranks."""

    deployment: Deployment
    link: Link

    @property
    def stages(self) -> list[StageMemory]:
        """The different pipeline stages."""
        return list(dict.fromkeys(single(self.deployment).stages))


@dataclass(frozen=True, eq=False)
class Transfer:
    """How the cache of a prompt moves between two pools; made by :meth:`between`.

    draft: the way of the cache of what drafts beside the model, which lies beside every stage and moves with it.
    """

    sender: Side
    receiver: Side
    draft: Transfer | None = None
    _known: dict[int, float] = field(default_factory=dict)

    @classmethod
    def between(
        cls, sender: Deployment, receiver: Deployment, link: str | None = None, drafts: Drafts = (None, None)
    ) -> Transfer:
        """The way between two deployments over the link of that name, which both must have; the widest for ``None``.

        drafts: what drafts beside each; SGLang registers its cache with the model's (``draft_kv_data_ptrs`` in
        ``srt/disaggregation/prefill.py``), and other engines are taken to.
        Raises ``UsageError`` for pools that cannot exchange caches (another model, another engine, another format of
        the cache, devices of two kinds on a link that joins those of one only) and for a link that one of them does
        not have, ``MissingFactError`` where no link is on file.
        """
        _check(sender, receiver)
        sides = Side(sender, find_link(sender, link)), Side(receiver, find_link(receiver, link))
        if sender.hardware.name != receiver.hardware.name:
            for side in sides:
                if side.link.domain is not None:
                    raise UsageError(
                        f"{side.link.name} joins no {sender.hardware.name} and {receiver.hardware.name}",
                        because="it is a link between devices of one kind",
                        hint="leave --kv-link out: the cache then moves over the network",
                    )
        ours, theirs = drafts
        return cls(*sides, draft=cls.between(ours, theirs, link) if ours and theirs else None)

    def seconds(self, tokens: Num) -> Num:
        """Seconds to move the cache of ``tokens``: ``latency + max(sent/bandwidth, received/bandwidth)/reached`` of the
        busiest ranks."""
        longest: Num = np.maximum(
            self.sent(tokens) / self.sender.link.bandwidth, self.received(tokens) / self.receiver.link.bandwidth
        )
        taken: Num = self.latency + longest / self._reach.reached
        return taken if np.ndim(tokens) else float(taken)

    def last(self, seconds: Num, share: Num) -> Num:
        """Of a transfer of so many seconds the last ``share``, sent when the others are: no less waits for its first
        byte."""
        return self.latency + (seconds - self.latency) * share

    @cached_property
    def _reach(self) -> PoolsApart:
        """What the connector of the engine reaches of a link; all of it at the bare roofline."""
        receiver = self.receiver.deployment
        return PoolsApart() if receiver.calibration.basis == "roofline" else receiver.engine.apart

    @property
    def latency(self) -> float:
        """Seconds before the first byte of a transfer."""
        return self._reach.latency

    @property
    def part(self) -> Resting:
        """What its price rests on."""
        reach = self._reach
        kind: Kind = "carried" if reach.reached_carried else "published" if reach.reached_source else "formula"
        return PARTS["pools"].on(kind)

    def price(self, lengths: npt.NDArray[np.int64]) -> None:
        """Fill the table of :meth:`of` for prompts of these lengths, all at once."""
        seconds = np.broadcast_to(self.seconds(lengths.astype(np.float64)), lengths.shape)
        self._known.update(zip(lengths.tolist(), seconds.tolist()))

    def of(self, tokens: int) -> float:
        """:meth:`seconds` of a number of tokens, from a table."""
        if tokens not in self._known:
            self._known[tokens] = float(self.seconds(float(tokens)))
        return self._known[tokens]

    def sent(self, tokens: Num) -> Num:
        """Bytes that the busiest rank of the sender sends of ``tokens``."""
        most: Num = reduce(np.maximum, (self._sent_by(stage, tokens) for stage in self._stages[0]))
        return most if self.draft is None else most + self.draft.sent(tokens)

    def received(self, tokens: Num) -> Num:
        """Bytes that the busiest rank of the receiver keeps of ``tokens``, and therefore fetches."""
        most: Num = reduce(np.maximum, (stage.state(tokens) for stage in self._stages[1]))
        return most if self.draft is None else most + self.draft.received(tokens)

    @cached_property
    def _stages(self) -> tuple[list[StageMemory], list[StageMemory]]:
        return self.sender.stages, self.receiver.stages

    def _sent_by(self, stage: StageMemory, tokens: Num) -> Num:
        deployment = stage.deployment
        parallel, precision = deployment.parallel, deployment.precision
        kinds = {units for cache, _ in stage.caches for units in (cache.units, cache.state_units)}
        if all(self._times(units) == 1 for units in kinds):
            return stage.state(tokens)
        total: Num = 0.0
        for cache, count in stage.caches:
            share = cache.copies(cache.units, parallel.tp) / parallel.cp * self._times(cache.units)
            total += count * cache.token_bytes(precision.kv.width) * share * cache.mask.cached(tokens)
            state = cache.state_bytes(precision.base, precision.kv, parallel.tp)
            total += count * state * self._times(cache.state_units)
        return total

    def _times(self, units: int) -> int:
        """How often a rank of the sender sends a piece that a cache has ``units`` of, such as a KV head."""
        holders, needers = (_ranks_with(units, side.deployment.parallel.tp) for side in (self.sender, self.receiver))
        return max(ceil(needers / holders - 1e-9), 1)


def sending_of(sender: Deployment, asked: CacheSending | None = None) -> CacheSending:
    """When a prompt's cache leaves: as asked, else as the engine does it; in a pipeline, where its pieces are in flight
    together, when all of it is computed.
    """
    return "after" if sender.parallel.pp > 1 else asked or sender.engine.apart.sending


def handoff_of(decodes: Deployment) -> float:
    """Decode steps that a request waits, beside the transfer, until the pool that decodes takes it; none at the bare
    roofline.
    """
    return 0.0 if decodes.calibration.basis == "roofline" else decodes.engine.apart.handoff


def steps_to_answer(decodes: Deployment) -> float:
    """Mean decode steps from when a cache is there until its client sees the first token.

    The handoff, half of the step in progress, one more where steps are composed ahead, and the first own one where that
    makes or brings the token; none where the pool of prompts has answered.
    """
    answers = decodes.engine.apart.first_token
    if answers == "prompts":
        return 0.0
    return handoff_of(decodes) + 0.5 + overlaps(decodes) + (answers == "decodes")


class Sent(NamedTuple):
    """Tokens of a prompt whose cache has left, and when the piece that is being computed was begun."""

    tokens: int
    time: float


class Links:
    """The links of the ranks that compute prompts, one for each scheduler, and what has left over them."""

    def __init__(self, transfer: Transfer, records: Records, ranks: int, sending: CacheSending | None) -> None:
        deployment = transfer.sender.deployment
        self.transfer, self.records = transfer, records
        self.sending = sending_of(deployment, sending)
        self.layers = len(deployment.model.sequence)
        self.free = [0.0] * ranks
        """When each has sent what it was given."""
        self.left: dict[int, Sent] = {}
        """What has left of the prompts that are being computed."""
        transfer.price(np.unique(np.asarray(records.prompt)))

    def send(self, rank: int, request: int, tokens: int, time: float) -> float:
        """So many tokens of a prompt are computed at ``time``, and those that are new leave: gives when they are there.

        Layer by layer the first of ``n`` leaves when it is computed, and the last when all are: each takes an n-th of
        the step and of the bytes.
        """
        known = self.left.pop(request, None) or Sent(0, self.records.admitted[request])
        seconds, start, last = self.transfer.of(tokens), time, 0.0
        if known.tokens:
            seconds = max(seconds - self.transfer.of(known.tokens), 0.0) + self.transfer.latency
        if self.sending == "layers":
            start = known.time + (time - known.time) / self.layers
            last = float(self.transfer.last(seconds, 1.0 / self.layers))
        self.free[rank] = max(max(start, self.free[rank]) + seconds, time + last)
        if tokens < self.records.prompt[request]:
            self.left[request] = Sent(max(tokens, known.tokens), time)
        return self.free[rank]


def _ranks_with(units: int, tp: int) -> float:
    """How many of ``tp`` ranks keep each of ``units`` pieces."""
    return tp * max(ceil(units / tp), 1) / units


def _check(sender: Deployment, receiver: Deployment) -> None:
    """Raise ``UsageError`` for two deployments whose caches are not the same bytes."""
    if sender.model is not receiver.model and sender.model != receiver.model:
        what = f"{sender.model.name} cannot compute prompts for {receiver.model.name}"
        raise UsageError(what, because="the cache of one model says nothing to another")
    if sender.engine.name != receiver.engine.name:
        raise UsageError(
            f"{sender.engine.name} cannot send its cache to {receiver.engine.name}",
            because="each engine has a protocol and a layout of its own",
            hint=f"--engine {receiver.engine.name} for both pools",
        )
    ours, theirs = sender.precision.kv.name, receiver.precision.kv.name
    if ours != theirs:
        raise UsageError(
            f"the pools keep their caches in {ours} and {theirs}",
            because="it is sent as it is kept",
            hint=f"--kv {theirs} for both",
        )
