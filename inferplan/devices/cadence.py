"""How engines keep prompts out of most steps while requests decode: a cadence that a flag asks for.

vLLM's ``--prefill-schedule-interval N``: while a request decodes, prompts enter every N-th step, counted from the last
step that held one, or, of attention ranks that share experts, from when all of them were idle. What could not start in
such a step ends the waiting until the queue is empty. SGLang's ``--prefill-decode-interval N``: N steps that only
decode follow a batch of prompts, on all attention ranks where one of them had some. Both hold back pieces of prompts,
too. Where and since when is in ``configs/engines`` (:class:`inferplan.devices.engine.PromptCadence`).
"""

from __future__ import annotations

from typing import NamedTuple

from inferplan.devices.engine import Engine
from inferplan.devices.releases import release_order
from inferplan.errors import UsageError


class Cadence(NamedTuple):
    """What of it a scheduler follows.

    gap: steps that only decode behind one with prompts. grid: of attention ranks that share experts every so many steps
    may hold prompts; 1: each. yields: what could not start in a step that may hold prompts ends the waiting.
    """

    gap: int = 0
    grid: int = 1
    yields: bool = False

    @property
    def any(self) -> bool:
        return self.gap > 0 or self.grid > 1

    @property
    def words(self) -> str:
        """What it does, for people; empty where it does nothing."""
        if self.grid > 1:
            return f"while requests decode, prompts enter one step of {self.grid}, on all attention ranks the same"
        return f"while requests decode, {self.gap} steps without prompts follow one with some" if self.gap else ""


NO_CADENCE = Cadence()


def cadence_of(engine: Engine, ranks: int) -> Cadence:
    """What the flags of an engine ask for; each at its default asks for nothing.

    ranks: attention ranks that share experts, and make every step together. Raises ``UsageError`` for an engine, or a
    release of it, that has no such flag, or does not heed it here.
    """
    scheduled, rounds = engine.defaults.prefill_schedule_interval, engine.defaults.prefill_decode_interval
    if scheduled > 1 and rounds:
        raise UsageError("--prefill-schedule-interval is vLLM's, --prefill-decode-interval SGLang's", hint="one")
    if scheduled > 1:
        _require(engine, ranks, "prefill_schedule_interval")
        return Cadence(grid=scheduled, yields=True) if ranks > 1 else Cadence(gap=scheduled - 1, yields=True)
    if rounds > 0:
        _require(engine, ranks, "prefill_decode_interval")
        return Cadence(gap=rounds)
    return NO_CADENCE


def _require(engine: Engine, ranks: int, name: str) -> None:
    """Raise ``UsageError`` where the engine does nothing with a flag."""
    option, known = f"--{name.replace('_', '-')}", engine.batching.cadence
    if known is None or known.option != name:
        other = "" if known is None else f"; it has --{known.option.replace('_', '-')}"
        raise UsageError(f"{engine.name} has no {option}{other}", hint=f"leave {option} out, or another --engine")
    release = engine.release or engine.defaults.version
    if _before(release, known.since):
        raise UsageError(
            f"{engine.name} {release} has no {option}",
            because=f"it is there from {known.since} on",
            hint=f"--engine {engine.name}@{known.since}, or leave it out",
        )
    if ranks == 1 and known.alone_since and _before(release, known.alone_since):
        raise UsageError(
            f"{engine.name} {release} does not heed {option} here",
            because=f"before {known.alone_since} only attention ranks that share experts do",
            hint=f"--dp 2 or more of a model with experts, --engine {engine.name}@{known.alone_since}, or leave it out",
        )


def _before(release: str, first: str) -> bool:
    """Whether a release is older than another; one that is all of a line (``0.5``) is its newest."""
    found, known = release_order(release), release_order(first)
    if found is None or known is None or found >= known:
        return False
    return len(found[0]) < 2 or found[0] != known[0][: len(found[0])]
