"""The first token of one request on a server that does nothing else, by what takes its seconds.

docs/glossary.md names them: *alone* is the prefill of a batch that an engine is handed directly (``estimate``), *at
the server* is what a client next to it measures, which has the front end, launches and scheduling in it. The steady
state of one user, and a simulated run in which nobody meets anybody, are the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from inferplan.estimate.anchoring import correction
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import StepTime, prompt_drain
from inferplan.serving.latency import front_end
from inferplan.serving.launches import launch_floors
from inferplan.serving.rounds import seen_late
from inferplan.serving.techniques.speculation import PLAIN, Speculation, prompt_with_drafts, step_with_drafts
from inferplan.terms import Field, Term, name_term
from inferplan.units import Num
from inferplan.work.step import prefill


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstToken:
    """Seconds until a client next to the server sees the first token: parts that add up to ``at_server``.

    Scalars or arrays, as the prompt.
    """

    latency: Num
    """Of client and server, the same for every request."""
    front_end: Num
    """The request and its prompt tokens pass the front end (tokeniser, server)."""
    host_loads: Num
    """The cached part of the prompt comes back from the memory of the host."""
    prompt: Num
    """The prefill that an engine is handed directly: one step, its kernels replayed from a graph."""
    launches: Num
    """What steps that hold prompts add to it: kernels launched one by one, pieces no longer than the token budget."""
    seen_late: Num
    """The next step, where clients see what this one has made only when that is done."""

    @property
    def alone(self) -> Num:
        """TTFT of the batch alone."""
        return self.host_loads + self.prompt

    @property
    def server(self) -> Num:
        """What the server adds."""
        return self.latency + self.front_end + self.launches + self.seen_late

    @property
    def at_server(self) -> Num:
        """TTFT at the server, idle."""
        return self.alone + self.server

    def terms(self, deployment: Deployment, prompt: Num, alone: Field = ()) -> Term:
        """``at_server`` with its formula. prompt: tokens, cached ones too. alone: where that part is explained."""
        serving, anchor = deployment.engine.serving, deployment.calibration.anchor
        front: Any = name_term(serving.front_request, "front_request", "s", ("serving", "front_request"))
        each = name_term(serving.front_token, "front_token", "s", ("serving", "front_token"))
        front = front + each * name_term(prompt, "prompt", "", ("load", "prompt"))
        parts = [
            name_term(self.alone, "alone", "s", alone),
            name_term(self.latency, "latency", "s", ("serving", "latency")),
            front if np.any(self.front_end) and anchor is None else name_term(self.front_end, "front end", "s"),
            name_term(self.launches, "launches", "s", ("serving", "eager_layer")),
        ]
        if np.any(self.seen_late):
            parts.append(name_term(self.seen_late, "seen late", "s", ("serving", "seen_late")))
        term: Term = name_term(sum(parts[1:], start=parts[0]), "ttft_at_server", "s")
        return term

    def anchored(self, deployment: Deployment, prompt: Num, output: Num) -> FirstToken:
        """The same times what measured over predicted first tokens of one user come to, where runs of the user's own
        say so.
        """
        if deployment.calibration.anchor is None:
            return self
        factor = correction(deployment, 1.0, prompt, output).ttft
        return FirstToken(**{part.name: getattr(self, part.name) * factor for part in fields(self)})

    def parts(self) -> dict[str, Num]:
        """What it is made of, in seconds, by the keys of JSON (docs/json.md)."""
        return {
            "alone_s": self.alone,
            "latency_s": self.latency,
            "front_end_s": self.front_end,
            "launches_s": self.launches,
            "seen_late_s": self.seen_late,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class IdlePrompt:
    """A prompt of ``cached`` tokens whose keys and values are known and ``new`` ones that are not.

    budget: tokens of a step. load: seconds in which the cached part comes back from the host.
    """

    new: Num
    cached: Num
    budget: float
    load: Num = 0.0


def first_token(deployment: Deployment, prompt: IdlePrompt, speculation: Speculation = PLAIN) -> FirstToken:
    """The first token of ``prompt`` on an idle server; without the anchor (:meth:`FirstToken.anchored`)."""
    tokens = prompt.new + prompt.cached
    whole = prompt_with_drafts(deployment, speculation, 1.0, prompt.new, prompt.cached).passage
    late: Num = step_with_drafts(deployment, speculation, 1.0, tokens).total if seen_late(deployment) else 0.0
    front = front_end(deployment, tokens)
    return FirstToken(
        latency=front.latency,
        front_end=front.work,
        host_loads=prompt.load,
        prompt=whole,
        launches=_pieces(deployment, prompt, speculation) - whole,
        seen_late=late,
    )


def _pieces(deployment: Deployment, prompt: IdlePrompt, speculation: Speculation) -> Num:
    """Seconds of the prompt in the steps in which an engine computes it, kernels launched one by one.

    All pieces but the last hold the budget; together they take as long as so many of the mean one of them. Where chunks
    of a mask begin anew on the way (Llama 4), what a piece looks at falls there: each is priced.
    """
    new = np.asarray(prompt.new, dtype=np.float64)
    room = np.minimum(prompt.budget, new) if deployment.engine.defaults.scheduler.chunked_prefill else new
    earlier = np.ceil(new / room) - 1.0
    done = earlier * room
    last = _launched(deployment, speculation, new - done, prompt.cached + done)
    if not np.any(earlier):
        return last.passage
    passages: Num
    if _begins_anew(deployment):
        number = np.arange(float(np.max(earlier))).reshape(-1, *(1,) * new.ndim)
        each = _launched(deployment, speculation, room + 0.0 * number, prompt.cached + number * room)
        there = number < earlier
        passages = np.sum(np.where(there, each.passage, 0.0), axis=0)
        first, others = np.asarray(each.passage)[0], np.sum(np.where(there, each.interval, 0.0)[1:], axis=0)
    else:
        mean = _launched(deployment, speculation, room, prompt.cached + np.maximum(earlier - 1.0, 0.0) * room / 2)
        passages, first, others = earlier * mean.passage, mean.passage, (earlier - 1.0) * mean.interval
    if deployment.engine.batching.pieces_apart:
        return last.passage + passages
    seconds: Num = np.where(earlier, first + others + last.interval, last.passage)
    return seconds


def _begins_anew(deployment: Deployment) -> bool:
    """Whether a layer looks at the chunk alone that a token is in."""
    return any(part.cache().mask.kind == "chunk" for layer, _ in deployment.model.distinct for part in layer.parts)


def _launched(deployment: Deployment, speculation: Speculation, new: Num, past: Num) -> StepTime:
    """A step that holds one piece of a prompt, with the engine's eager floor."""
    time = prompt_drain(deployment, 1.0, new, past).step_time
    time = speculation.with_drafts(time, lambda draft: _launched(draft, PLAIN, new, past))
    floors = launch_floors(deployment, prefill(1.0, new, past))
    return time.at_least(floors) if floors else time
