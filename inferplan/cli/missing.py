"""What a command lacks of its load, said at once: one error names all of it, and its hint is the whole command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from inferplan.catalog.files import load_model
from inferplan.catalog.workloads import WorkloadSpec, asked_limits
from inferplan.cli.options import command_line
from inferplan.errors import UsageError
from inferplan.traffic.requests import Slo

_LONG = 400
"""A command line of more characters is not repeated: the hint has what is to be added to it."""

_LIMIT = "a limit on latency"


class Lack(NamedTuple):
    """Something that nobody said, and options that say it."""

    what: str
    options: str

    @property
    def of_limits(self) -> bool:
        return self.what == _LIMIT


def lacks_of_load(model: str, values: Mapping[str, Any], named: WorkloadSpec | None, traced: bool) -> list[Lack]:
    """The lengths of requests and the limits on latency, where no option says them. traced: a file has the lengths."""
    encodes = load_model(model).encodes
    if encodes and named is not None and named.output:
        raise _generates(model, values, named)
    limited = bool(values["slo"] or asked_limits(values, named, Slo()).limits)
    prompt = bool(values["prompt"] or (named and named.prompt) or traced)
    output = bool(values["output"] or (named and named.output) or traced or encodes)
    sizes = " ".join([*(["--prompt 512"] if not prompt else []), *(["--output 256"] if not output else [])])
    limits = "--slo chat" if traced else "--ttft 500ms --tpot 40ms"
    found = [Lack("the lengths of requests", sizes)] if sizes else []
    if encodes and values.get("people") and not values.get("think_time"):  # of others a workload says it
        found.append(Lack("the time from an answer to the next request", "--think-time 60s"))
    if not limited:
        found.append(Lack(_LIMIT, "--e2e 200ms" if encodes else limits))
    if len(found) > 1 and not (encodes or prompt or output or named):
        return [Lack("the lengths of requests", "--workload chat"), Lack(_LIMIT, "")]
    return found


def _generates(model: str, values: Mapping[str, Any], named: WorkloadSpec) -> UsageError:
    """That the requests of a workload are answered, and those of a model are not."""
    limited = values["slo"] or values.get("deadline") or asked_limits(values, None, Slo()).limits
    more = [*([] if values["prompt"] else ["--prompt 512"]), *([] if limited else ["--e2e 200ms"])]
    typed = re.sub(r"\s--workload[ =]\S+", "", command_line())
    return UsageError(
        f"workload {named.name} has output tokens, and {load_model(model).name} generates nothing",
        because="one pass over a request is all of its work",
        hint=" ".join([typed, *more]),
    )


def refuse_lacks(what: str, lacks: Sequence[Lack], because: str = "") -> None:
    """Raise ``UsageError`` that names all that is missing, if anything is."""
    if not lacks:
        return
    *others, last = [one.what for one in lacks]
    before = f"{', '.join(others)} and " if others else ""
    more, typed = " ".join(one.options for one in lacks if one.options), command_line()
    whole = len(typed) <= _LONG and " -- " not in typed
    raise UsageError(
        f"{what} needs {before}{last}",
        because=because,
        hint=f"{typed} {more}" if whole else more,
    )
