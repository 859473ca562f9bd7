"""Options that change nothing of an answer: the command is asked again without each of them."""

from __future__ import annotations

import click

from inferplan.cli.options import TAKEN
from inferplan.errors import InferplanError
from inferplan.table import Report

_ASKED_AGAIN = "inferplan.asked_again"
_OF_THE_OUTPUT = ("style", "report_file")


def unheard(report: Report) -> list[str]:
    """The options of the running command that were given, and without which its record is the same.

    For quick commands whose report is about one number of many. None for a command that is asked again.
    """
    context = click.get_current_context()
    if _ASKED_AGAIN in context.meta:
        return []
    plain = context.command.make_context(context.info_name, [], resilient_parsing=True).params
    given = [
        (one.name, one.opts[0])
        for one in context.command.params
        if isinstance(one, click.Option) and one.name and not one.required and one.name not in _OF_THE_OUTPUT
        if context.params[one.name] != plain[one.name]
    ]
    kept = dict(context.meta)
    try:
        return [option for name, option in given if _record_without(context, name, plain[name]) == report.record]
    finally:
        context.meta.clear()
        context.meta.update(kept)


def _record_without(context: click.Context, name: str, absent: object) -> object:
    """The record of the command without an option; ``None`` where it needs it."""
    taken: list[Report] = []
    context.meta.update({TAKEN: taken, _ASKED_AGAIN: True})
    assert context.command.callback is not None
    try:
        context.command.callback(**{**context.params, name: absent})
    except (InferplanError, click.ClickException):
        return None
    return taken[0].record
