"""Graph times roofline: what a static batch costs in each phase, and what binds it.

A batch is prefilled together and then decoded together. ``TTFT`` is the prefill. Decode step ``i = 1 .. output - 1``
has ``prompt + i - 1`` tokens behind it; ``TPOT`` is the mean of those steps and total latency is
``TTFT + (output - 1)*TPOT``: the first token comes from the prefill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np

from inferplan.devices.anchors import Metric
from inferplan.errors import UsageError
from inferplan.estimate.anchoring import Correction, anchored_bands, correction
from inferplan.estimate.bands import latency_band, latency_bands
from inferplan.estimate.deployment import Deployment, parts_rest_on
from inferplan.estimate.graph import build, masks
from inferplan.estimate.load import Band, StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import Phase, decode_phase, prefill_phase
from inferplan.estimate.pieces import Steps, kinks, pieces_of_steps, quadrature_pair, stairs
from inferplan.estimate.resting import Resting
from inferplan.estimate.sharing import Sharing
from inferplan.shown import Shown
from inferplan.terms import Naming, Term, name_term, plain, total
from inferplan.units import Num
from inferplan.work.ops import Mask

_RECOMPUTED_PIECES = 16
"""Pieces over which the mean step without a KV cache is taken."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Estimate(Shown):
    """A static batch on a deployment: its phases, latencies, throughput and memory. Scalars or arrays, as the load."""

    deployment: Deployment
    load: StaticLoad

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        return self.deployment.features | self.load.features

    @cached_property
    def footprint(self) -> Footprint:
        tokens, logits = self._longest_pass
        return Footprint(
            deployment=self.deployment,
            batch=self.load.batch,
            prompt=tokens,
            context=self.load.context,
            cached=self.load.kv_cache,
            logits=logits,
            sharing=Sharing(samples=self.load.samples, prompt=self.load.prompt),
        )

    @property
    def _longest_pass(self) -> tuple[Num, Num]:
        """Tokens of one sequence in its longest pass, and how many of them go through the head."""
        load = self.load
        tokens = load.prompt if load.kv_cache else load.context - 1.0
        return tokens, load.prompt if load.all_logits else 1.0

    @cached_property
    def prefill(self) -> Phase:
        return prefill_phase(self.deployment, self.load)

    @cached_property
    def decode(self) -> Phase:
        """One decode step at the mean context of the generation (at the prompt when there is no decode step)."""
        return decode_phase(self.deployment, self.load, self.load.prompt + np.maximum(self.load.output - 2.0, 0.0) / 2)

    @cached_property
    def ttft(self) -> Num:
        """Seconds to the first token: the prefill, times the anchor if there is one. No queue: the batch is alone."""
        return self._first()

    @cached_property
    def tpot(self) -> Num:
        """Mean seconds of decode steps 1 .. output - 1; NaN when output is 1."""
        return self._mean_decode() * self._anchor("tpot")

    @cached_property
    def tpot_start(self) -> Num:
        """Seconds of the first decode step."""
        return self._token_seconds(self.load.prompt) * self._anchor("tpot")

    @cached_property
    def tpot_end(self) -> Num:
        """Seconds of the last decode step."""
        last = self.load.prompt + np.maximum(self.load.output - 2.0, 0.0)
        return self._token_seconds(last) * self._anchor("tpot")

    @property
    def _piece(self) -> str:
        """What a token of every sequence takes, in words."""
        return "step"

    def _token_seconds(self, past: Num) -> Num:
        """Seconds of a token of every sequence with ``past`` tokens behind it."""
        return decode_phase(self.deployment, self.load, past).time

    @cached_property
    def _correction(self) -> Correction:
        return correction(self.deployment, self.load.batch, self.load.prompt, self.load.output)

    def _anchor(self, metric: Metric, name: Naming = plain) -> Num:
        """Measured over predicted latency of this load, from a user's own runs; 1 without any."""
        if self.deployment.calibration.anchor is None:
            return 1.0
        return name(getattr(self._correction, metric), "anchor", "", ("anchor", metric))

    def _first(self, name: Naming = plain) -> Num:
        """Seconds until the first token."""
        return name(self.prefill.time, "prefill", "s", ("number", "prefill.time")) * self._anchor("ttft", name)

    def terms(self, number: str) -> Term:
        """One of its numbers with its formula: ttft, tpot, e2el or output_tokens_per_s.

        Raises ``UsageError`` for a time per output token where the prefill gives the only one, ``KeyError`` for another
        number.
        """
        made: dict[str, Callable[[], Any]] = {
            "ttft": lambda: self._first(name_term),
            "tpot": self._mean_terms,
            "e2el": lambda: self._last(name_term),
            "output_tokens_per_s": lambda: self._rate(name_term),
        }
        if number == "tpot":
            self._require_decode()
        term: Term = name_term(made[number](), number, "token/s" if number == "output_tokens_per_s" else "s")
        return term

    def _require_decode(self) -> None:
        if not np.all(np.asarray(self.load.output) > 1):
            raise UsageError("with --output 1 there is no time per output token", hint="--output 2 or more, or ttft")

    def _mean_terms(self) -> Num:
        steps = name_term(self.load.output - 1.0, "decode steps", "", ("load", "steps"))
        mean: Num = total(self._decode_pieces(name_term), "pieces") / steps
        return mean * self._anchor("tpot", name_term)

    def _last(self, name: Naming = plain) -> Num:
        """Seconds until the last token; the terms of a scalar load have no decode where it has none."""
        ttft, steps = name(self.ttft, "ttft", "s", ("number", "ttft")), self.load.output - 1.0
        if not np.any(steps):
            return ttft
        tpot = name(np.nan_to_num(self.tpot), "tpot", "s", ("number", "tpot"))
        return ttft + name(steps, "decode steps", "", ("load", "steps")) * tpot

    def _rate(self, name: Naming = plain) -> Num:
        """Output tokens a second over all samples and replicas."""
        tokens = name(self.load.batch, "batch", "", ("load", "batch"))
        if self.load.samples != 1:
            tokens = tokens * name(self.load.samples, "samples", "", ("load", "samples"))
        tokens = tokens * name(self.load.output, "output", "", ("load", "output"))
        replicas = name(self.deployment.parallel.replicas, "replicas", "", ("parallel", "replicas"))
        return replicas * tokens / name(self.e2el, "e2el", "s", ("number", "e2el"))

    @property
    def forms(self) -> tuple[str, ...]:
        """What it has beyond its deployment that measured systems must have had too (:func:`lacking`)."""
        return ()

    def band(self, metric: str) -> Band | None:
        """Factors on ``ttft``, ``tpot`` or ``e2el`` between which 80 % of measurements lie; ``None`` when unknown."""
        if metric == "e2el":
            first, rest = self.band("ttft"), self.band("tpot")
            if first is None or rest is None:
                return None
            share = float(np.mean(self.ttft / self.e2el))
            return share * first[0] + (1 - share) * rest[0], share * first[1] + (1 - share) * rest[1]
        phase, load = self.prefill if metric == "ttft" else self.decode, self.load
        band = latency_band(self.deployment, metric, phase, self.forms)
        if band is None or self.deployment.calibration.anchor is None:
            return band
        return anchored_bands(self.deployment, load.batch, load.prompt, load.output).get(metric, band)

    def bands(self) -> dict[str, tuple[Num, Num]]:
        """By latency :meth:`band` at each point of a grid; NaN where it is not known, and with an anchor."""
        first = latency_bands(self.deployment, "ttft", self.prefill, self.forms)
        rest = latency_bands(self.deployment, "tpot", self.decode, self.forms)
        share = np.nan_to_num(self.ttft / self.e2el, nan=1.0)
        low, high = (share * a + (1 - share) * b for a, b in zip(first, rest))
        return {"ttft": first, "tpot": rest, "e2el": (low, high)}

    @cached_property
    def e2el(self) -> Num:
        """Seconds from the request to its last token: ``TTFT + (output - 1)*TPOT``."""
        return self._last()

    @cached_property
    def answer_ttft(self) -> Num:
        """Seconds to the first token behind the thought: ``TTFT`` and as many decode steps as it has tokens."""
        load = self.load
        return replace(self, load=replace(load, output=load.before + 1.0, before=0.0)).e2el

    @property
    def output_rate(self) -> Num:
        """Output tokens a second over all replicas."""
        return self._rate()

    @property
    def total_rate(self) -> Num:
        """Input and output tokens a second over all replicas."""
        answers = self.load.samples * self.load.output
        return self.output_rate * (self.load.prompt + answers) / answers

    @property
    def request_rate(self) -> Num:
        return self.output_rate / (self.load.samples * self.load.output)

    @property
    def basis(self) -> str:
        """What most of the time rests on: ``roofline``, ``calibrated``, ``transferred`` or ``extrapolated``."""
        shares: dict[str, float] = defaultdict(float)
        for phase, time in ((self.prefill, self.ttft), (self.decode, self.e2el - self.ttft)):
            for basis, share in phase.by_basis().items():
                shares[basis] += share * float(np.sum(time))
        return max(shares, key=lambda name: shares[name])

    @property
    def rests_on(self) -> dict[str, Resting]:
        """What the price of each part rests on."""
        return parts_rest_on(self.deployment)

    def _mean_decode(self) -> Num:
        """Mean over integer steps."""
        steps = np.asarray(self.load.output - 1.0, dtype=float)
        shape = np.broadcast(np.asarray(self.load.prompt), steps, np.asarray(self.load.batch)).shape
        seconds = np.zeros(shape) + sum(self._decode_pieces(), start=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(steps > 0, seconds / steps, np.nan)
        return float(mean) if mean.ndim == 0 else mean

    def _decode_pieces(self, name: Naming = plain) -> Iterator[Num]:
        """Seconds of the decode steps by two-point quadrature on each piece between the kinks of the masks."""
        prompt, steps = np.asarray(self.load.prompt, dtype=float), np.asarray(self.load.output - 1.0, dtype=float)
        shape = np.broadcast(prompt, steps, np.asarray(self.load.batch)).shape
        found = self._masks
        climbed, _ = stairs(found)
        between = pairwise(self._edges(found, prompt, steps))
        for low, high in chain.from_iterable(pieces_of_steps(prompt, *ends, climbed) for ends in between):
            count = high - low
            if not np.any(count > 0):
                continue
            places = quadrature_pair(prompt, low, high, climbed)  # one graph: what has no past is priced once
            places = places.reshape(2, *(1,) * (len(shape) - places.ndim + 1), *places.shape[1:])
            times = np.broadcast_to(self._token_seconds(places), (2, *shape))
            early = name(times[0], f"{self._piece} before the middle", "s")  # the two Gauss points of the piece
            late = name(times[1], f"{self._piece} past the middle", "s")
            yield name(count, "steps") * (early + late) / 2

    @cached_property
    def _masks(self) -> set[Mask]:
        """The masks of a decode step."""
        low = float(np.min(self.load.prompt))
        point = StaticLoad(batch=1.0, prompt=low, output=2.0, kv_cache=self.load.kv_cache)
        return masks(build(self.deployment, point.decode_step(low)))

    def _edges(self, found: set[Mask], prompt: Steps, steps: Steps) -> list[Steps]:
        """Step numbers at which a mask's reach changes its slope, with the first and the last step around them."""
        at = kinks(found, float(np.min(prompt)), float(np.max(prompt + steps)))
        inner = [np.clip(kink - prompt, 0.0, steps) for kink in at]
        if not self.load.kv_cache:  # a recomputed prefix grows through the ridge points of its operators
            inner += [np.floor(steps * piece / _RECOMPUTED_PIECES) for piece in range(1, _RECOMPUTED_PIECES)]
            inner = list(np.sort(np.stack(np.broadcast_arrays(*inner)), axis=0))
        return [np.zeros_like(steps), *inner, steps]
