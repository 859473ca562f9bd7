"""Load generators of measured campaigns, and the flags of their published run scripts (``configs/clients.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from inferplan.catalog.files import config_root, read_yaml, validate
from inferplan.spec import Spec
from inferplan.units import Seconds
from inferplan.validation.names import resolve_names


class Script(Spec):
    """Flags that a campaign's run script sets for the rows whose facts are those of ``when``.

    They stand in for what a result file says otherwise or not at all: the script is what ran. Names are those of the
    CSV's columns (:data:`inferplan.validation.rows.INPUTS`), values those of the catalogue; of several any will do, and
    ``0`` is also what is not stated.
    """

    source: str
    when: dict[str, str | list[str]]
    sets: dict[str, str]


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
        other = {name: value for name, value in script.sets.items() if not _alike(facts.get(name), value)}
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
