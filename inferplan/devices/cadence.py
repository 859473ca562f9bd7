"""How engines keep prompts out of most steps while requests decode: a cadence that flags ask for.

vLLM's ``--prefill-schedule-interval N``: while a request decodes, prompts enter every N-th step, counted from the last
step that held one, or, of attention ranks that share experts, from when all of them were idle. What could not start in
such a step ends the waiting until the queue is empty. SGLang's ``--prefill-decode-interval N``: N steps that only
decode follow a batch of prompts, on all attention ranks where one of them had some. Both hold back pieces of prompts,
too. SGLang's ``--enable-prefill-delayer``, and that of ATOM, hold prompts of attention ranks back until all ranks have
some (:mod:`inferplan.serving.prompt_delay`). Where and since when is in ``configs/engines``
(:class:`inferplan.devices.engine.PromptCadence`, :class:`inferplan.devices.engine.PromptDelayer`).
"""

from __future__ import annotations

from typing import NamedTuple

from inferplan.devices.engine import Engine, FilledSteps
from inferplan.devices.releases import release_order
from inferplan.errors import UsageError


class DelayRule(NamedTuple):
    """How attention ranks hold prompts back for each other. most: steps; fills: see :class:`FilledSteps`."""

    most: int
    fills: FilledSteps | None = None


class Cadence(NamedTuple):
    """What of it a scheduler follows.

    gap: steps that only decode behind one with prompts. grid: of attention ranks that share experts every so many steps
    may hold prompts; 1: each. yields: what could not start in a step that may hold prompts ends the waiting. delay: how
    attention ranks that share experts wait for each other.
    """

    gap: int = 0
    grid: int = 1
    yields: bool = False
    delay: DelayRule | None = None

    @property
    def any(self) -> bool:
        return self.gap > 0 or self.grid > 1 or self.delay is not None

    @property
    def words(self) -> str:
        """What it does, for people; empty where it does nothing."""
        found = []
        if self.grid > 1:
            found.append(f"while requests decode, prompts enter one step of {self.grid}, on all ranks the same")
        if self.gap:
            found.append(f"while requests decode, {self.gap} steps without prompts follow one with some")
        if self.delay is not None:
            found.append(f"attention ranks hold prompts back for each other, for {self.delay.most} steps at most")
        return "; ".join(found)


NO_CADENCE = Cadence()


def cadence_of(engine: Engine, ranks: int) -> Cadence:
    """What the flags of an engine ask for: nothing where none is given, or each does nothing.

    ranks: attention ranks that share experts, and make every step together. Raises ``UsageError`` for a flag that the
    engine, or this release of it, does not have or does not heed here, one that does nothing among them.
    """
    scheduled, rounds = engine.defaults.prefill_schedule_interval, engine.defaults.prefill_decode_interval
    if scheduled is not None and rounds is not None:
        raise UsageError("--prefill-schedule-interval is vLLM's, --prefill-decode-interval SGLang's", hint="one")
    delay = _delay_of(engine, ranks)
    if scheduled is not None:
        _require(engine, ranks, "prefill_schedule_interval")
        if scheduled > 1:
            return Cadence(grid=scheduled, yields=True) if ranks > 1 else Cadence(gap=scheduled - 1, yields=True)
    if rounds is not None:
        _require(engine, ranks, "prefill_decode_interval")
    return Cadence(gap=rounds or 0, delay=delay) if rounds or delay is not None else NO_CADENCE


def require_closed_form(cadence: Cadence, question: str) -> None:
    """Raise ``UsageError`` for what is simulated alone: when prompts of all ranks have come has no closed form here."""
    if cadence.delay is not None:
        raise UsageError(
            f"{question} has no closed form for attention ranks that hold prompts back for each other",
            hint="inferplan simulate with --enable-prefill-delayer, or leave it out",
        )


def _delay_of(engine: Engine, ranks: int) -> DelayRule | None:
    """How prompts are held back for other ranks; ``None`` where nothing asks for it."""
    asked, passes, known = engine.defaults, engine.defaults.prefill_delayer_max_delay_passes, engine.batching.delayer
    if not asked.enable_prefill_delayer:
        if passes is not None:
            raise UsageError("--prefill-delayer-max-delay-passes needs the delayer, which is off", hint=_DELAYER)
        return None
    if known is None:
        raise UsageError(f"{engine.name} has no {_DELAYER}", hint=f"leave {_DELAYER} out, or --engine sglang")
    _require_release(engine, known.since, _DELAYER)
    if ranks == 1:
        raise UsageError(
            f"{_DELAYER} holds prompts back until each attention rank has one, and there is one rank here",
            hint="--dp 2 or more of a model with experts, or leave it out",
        )
    return DelayRule((passes or known.passes) - known.counts_first, known.fills)


_DELAYER = "--enable-prefill-delayer"


def _require(engine: Engine, ranks: int, name: str) -> None:
    """Raise ``UsageError`` where the engine does nothing with a flag."""
    option, known = f"--{name.replace('_', '-')}", engine.batching.cadence
    if known is None or known.option != name:
        other = "" if known is None else f"; it has --{known.option.replace('_', '-')}"
        raise UsageError(f"{engine.name} has no {option}{other}", hint=f"leave {option} out, or another --engine")
    release = _require_release(engine, known.since, option)
    if known.delayed and not engine.defaults.enable_prefill_delayer:
        raise UsageError(
            f"{engine.name} obeys {option} only behind its delayer", hint=f"{_DELAYER} with it, or leave it out"
        )
    if ranks == 1 and known.alone_since and _before(release, known.alone_since):
        raise UsageError(
            f"{engine.name} {release} does not obey {option} here",
            because=f"before {known.alone_since} only attention ranks that share experts do",
            hint=f"--dp 2 or more of a model with experts, --engine {engine.name}@{known.alone_since}, or leave it out",
        )


def _require_release(engine: Engine, since: str, option: str) -> str:
    """The release that runs. Raises ``UsageError`` where it is older than the first with a flag."""
    release = engine.release or engine.defaults.version
    if _before(release, since):
        raise UsageError(
            f"{engine.name} {release} has no {option} that is known here",
            because=f"its rule exists since {since}",
            hint=f"--engine {engine.name}@{since}, or leave it out",
        )
    return release


def _before(release: str, first: str) -> bool:
    """Whether a release is older than another; one that is all of a line (``0.5``) is its newest."""
    found, known = release_order(release), release_order(first)
    if found is None or known is None or found >= known:
        return False
    return len(found[0]) < 2 or found[0] != known[0][: len(found[0])]
