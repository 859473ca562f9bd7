"""Options that were given and changed nothing of the answer: those of ``explain`` and ``plot``, of the host in
``estimate``, and of the load of ``simulate``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

import click
import numpy as np

from inferplan.errors import InferplanError
from inferplan.traffic.requests import Requests, Traffic

_ASKED_AGAIN = "inferplan.asked_again"
_OF_THE_OUTPUT = ("style", "report_file")


class _AnsweredError(Exception):
    """What a command answers that is asked again; nothing behind it is done."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer


def asked_again() -> bool:
    """Whether the running command is asked once more, without an option of its own."""
    return _ASKED_AGAIN in click.get_current_context().meta


def unheard(answer: object, of: Collection[str] | None = None) -> list[str]:
    """The options of the running command, or those ``of`` some, that were given and without which it gives the same
    ``answer``.

    For quick commands whose answer is about one thing of many. The command is asked once more for each option, up to
    where it calls this: what it writes is written behind that.
    """
    context = click.get_current_context()
    if asked_again():
        raise _AnsweredError(answer)
    plain = context.command.make_context(context.info_name, [], resilient_parsing=True).params
    given = [
        (one.name, one.opts[0])
        for one in context.command.params
        if isinstance(one, click.Option) and one.name and not one.required and one.name not in _OF_THE_OUTPUT
        if (of is None or one.opts[0] in of) and context.params[one.name] != plain[one.name]
    ]
    kept = dict(context.meta)
    try:
        context.meta[_ASKED_AGAIN] = True
        return [option for name, option in given if _answer_without(context, name, plain[name]) == answer]
    finally:
        context.meta.clear()
        context.meta.update(kept)


def _answer_without(context: click.Context, name: str, absent: object) -> object:
    """The answer of the command without an option; ``None`` where it needs it."""
    assert context.command.callback is not None
    try:
        context.command.callback(**{**context.params, name: absent})
    except _AnsweredError as found:
        return found.answer
    except (InferplanError, click.ClickException):
        pass
    return None


Load = Traffic | Requests


def unheard_of_load(values: Mapping[str, Any], load: Callable[[dict[str, Any]], Load], given: bool) -> list[str]:
    """Notes on options that were given and that nothing of a load heeds. load: what other options make of it. given:
    a share of prompts is found in caches because somebody says so."""
    seed, cached = values["seed"], values["prefix_caching"]
    if not seed and cached is None:
        return []
    made, found = _requests(load({**values})), []
    if seed and _alike(made, _requests(load({**values, "seed": seed - 1}))):
        found.append("--seed changes nothing: no part of this load is random")
    if cached is not None and made.hashes is None and not given:
        option = "--prefix-caching" if cached else "--no-prefix-caching"
        found.append(f"{option} changes nothing: these prompts share no text")
    return found


def _requests(load: Load) -> Requests:
    return load if isinstance(load, Requests) else load.requests()


def _alike(one: Requests, other: Requests) -> bool:
    """Whether two loads have the same numbers."""
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    arrays = ((left, right) for left, right in pairs if isinstance(left, np.ndarray) and isinstance(right, np.ndarray))
    return all(np.array_equal(left, right, equal_nan=left.dtype.kind == "f") for left, right in arrays)
