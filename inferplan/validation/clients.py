"""Load generators of measured campaigns, and the flags of their published run scripts (``configs/clients.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from inferplan.catalog.files import config_root, read_yaml, validate
from inferplan.spec import Spec
from inferplan.units import Seconds
from inferplan.validation.names import resolve_names


class TokenBudget(Spec):
    """A token budget that a script computes: of one prompt and every place, in steps of 64.

    ``MAX_NUM_TOKENS=$(( (each*places + ISL + 64 + 63)/64*64 ))``. each: tokens of a place in a step, its drafts among
    them. per_rank: places are those of an attention rank, the users over ``decode_ranks`` or ``tp``; else the users.
    """

    each: int
    per_rank: bool = False

    def sets(self, facts: Mapping[str, str]) -> dict[str, str]:
        """The budget of a row; nothing where its users, prompt or ranks are no numbers, which refuses it elsewhere."""
        try:
            users, prompt = int(float(facts["concurrency"])), int(float(facts["isl"]))
            ranks = int(float(facts.get("decode_ranks") or facts["tp"])) if self.per_rank else 1
        except (KeyError, ValueError):
            return {}
        places = max(users // max(ranks, 1), 1)
        return {"max_num_batched_tokens": str((self.each * places + prompt + 64 + 63) // 64 * 64)}


class Script(Spec):
    """Flags that a campaign's run script sets for the rows whose facts are those of ``when``.

    They stand in for what a result file says otherwise or not at all: the script is what ran. Names are those of the
    CSV's columns (:data:`inferplan.validation.rows.INPUTS`), values those of the catalogue; of several any will do, and
    ``0`` is also what is not stated. until: the last ``date`` of rows that it ran for, where it was changed later.
    budget: ``max_num_batched_tokens`` where the script computes it.
    """

    source: str
    when: dict[str, str | list[str]]
    until: str = ""
    sets: dict[str, str] = {}
    budget: TokenBudget | None = None

    def flags(self, facts: Mapping[str, str]) -> dict[str, str]:
        """What it sets for a row with these facts."""
        return self.sets | ({} if self.budget is None else self.budget.sets(facts))


class LoadGenerator(Spec):
    """What is known of a load generator.

    latency: of each request between client and server, whatever its size; ``None`` is the engine's own. start: all
    users at once, or spread over the time of one request. timeout: seconds after which the client gives up.
    """

    source: str
    latency: Seconds | None = None
    start: Literal["burst", "spread"] = "burst"
    timeout: Seconds | None = None
    scripts: list[Script] = []


@cache
def clients() -> dict[str, LoadGenerator]:
    """Load generators by campaign."""
    path = config_root() / "clients.yaml"
    return {name: validate(path, entry, LoadGenerator) for name, entry in read_yaml(path).items()}


def client_named(campaign: str) -> LoadGenerator:
    """The load generator of a campaign; one without latency and with a first burst where it is not on file."""
    return clients().get(campaign) or LoadGenerator(source="no campaign")


def script_facts(facts: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The facts that the run script of their campaign sets otherwise, and a note for each script."""
    found: dict[str, str] = {}
    notes: list[str] = []
    scripts = client_named(str(facts.get("campaign") or "")).scripts
    named = resolve_names(facts) if scripts else {}
    for script in scripts:
        if not all(_among(named.get(name), values) for name, values in script.when.items()):
            continue
        if script.until and not "" < str(facts.get("date") or "") <= script.until:
            continue
        other = {name: value for name, value in script.flags(facts).items() if not _alike(facts.get(name), value)}
        if other:
            found |= other
            told = ", ".join(f"{name} {value}" for name, value in other.items())
            notes.append(f"{told}: as the run script says ({script.source})")
    return found, tuple(notes)


def _among(stated: str | None, wanted: str | list[str]) -> bool:
    return any(_alike(stated, value) for value in ([wanted] if isinstance(wanted, str) else wanted))


def _alike(stated: str | None, wanted: str) -> bool:
    """Whether two facts say the same; numbers by their value, an empty one as 0."""
    text = str(stated or "").strip().lower()
    try:
        return float(text or 0) == float(wanted)
    except ValueError:
        return text == wanted.lower()
