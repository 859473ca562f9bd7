"""Settings and completion put onto commands; ``inferplan settings`` and ``inferplan completion``."""

from __future__ import annotations

import difflib
from functools import cache
from typing import Any

import click
import click.shell_completion

from inferplan.catalog.files import aliases, names
from inferplan.cli.given import refuse_empty
from inferplan.cli.layers import Layered
from inferplan.cli.options import report_options
from inferplan.cli.settings import Settings, read_settings
from inferplan.errors import UsageError
from inferplan.table import Report, Table

_CATALOGUES = {
    **dict.fromkeys(("model", "models", "name", "draft_model"), "models"),
    "workload": "workloads",
    "classes": "classes",
    "sessions": "sessions",
    "profile": "profiles",
    "service": "services",
    "horizon": "horizons",
    "regions": "regions",
    "gpu": "hardware",
    "engine": "engines",
}


_SECRET = ("token",)
"""Options whose values ``inferplan settings`` does not print."""


class CatalogueName(click.types.StringParamType):
    """A text that completes to names of the catalogue."""

    name = "text"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        done, comma, last = incomplete.rpartition(",")
        known = sorted({*names(self.kind), *aliases(self.kind)})
        return [click.shell_completion.CompletionItem(f"{done}{comma}{n}") for n in known if n.startswith(last)]


def with_completion(command: click.Command) -> click.Command:
    """The command, its model, GPU and engine names completing from the catalogue; those below a group too."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            with_completion(below)
    for param in command.params:
        kind = _CATALOGUES.get(param.name or "")
        if kind and isinstance(param.type, click.types.StringParamType):
            param.type = CatalogueName(kind)
    return command


@cache
def current(commands: frozenset[str]) -> Settings:
    """The settings of this process."""
    return read_settings(commands)


def options_of(command: click.Command) -> dict[str, click.Parameter]:
    """Option names without dashes, to parameters; of a group those of all commands below it."""
    if isinstance(command, click.Group):
        return {name: param for below in command.commands.values() for name, param in options_of(below).items()}
    return {
        option.lstrip("-"): param
        for param in command.params
        if isinstance(param, click.Option)
        for option in param.opts
        if option.startswith("--")
    }


def defaults_for(name: str, command: click.Command, settings: Settings) -> dict[str, Any]:
    """Click's default map of a command, or of each below a group.

    Raises ``UsageError`` for an unknown option in the command's own section.
    """
    if isinstance(command, click.Group):
        known = _defaults(name, options_of(command), settings)
        own = {below: {param.name for param in one.params} for below, one in command.commands.items()}
        return {below: {param: value for param, value in known.items() if param in own[below]} for below in own}
    return _defaults(name, options_of(command), settings)


def _defaults(name: str, options: dict[str, click.Parameter], settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option, setting in settings.of(name).items():
        param = options.get(option)
        if param is None:
            if option in settings.values.get(name, {}):
                close = difflib.get_close_matches(option, options, n=1)
                raise UsageError(
                    f"{setting.origin}: {name} has no option {option!r}",
                    hint=f"did you mean {close[0]}?" if close else f"inferplan {name} --help",
                )
            continue
        value = setting.value
        refuse_empty(option, value, setting.origin)
        if getattr(param, "multiple", False) and isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        elif isinstance(value, list) and not getattr(param, "multiple", False):
            value = ",".join(map(str, value))
        found[param.name or option] = value
    return found


@click.command("settings", cls=Layered)
@report_options
def settings_command() -> Report:
    """The defaults in force here, and where each comes from. Unknown names are an error.

    A file inferplan.yaml in this folder, or the one INFERPLAN_CONFIG names, maps option names to values; a section with
    a command's name holds for that command. INFERPLAN_GPU and INFERPLAN_PLAN_GPU do the same and win over the file.

    Example: INFERPLAN_GPU=h100-sxm inferplan settings
    """
    ctx = click.get_current_context()
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    commands = frozenset(group.list_commands(ctx))
    settings = current(commands)
    rows = []
    everywhere = {option for name in sorted(commands) for option in options_of(_command(group, ctx, name))}
    for name, table in sorted(settings.values.items()):
        known = everywhere if not name else set(options_of(_command(group, ctx, name)))
        for option, setting in table.items():
            if option not in known:
                close = difflib.get_close_matches(option, known, n=1)
                raise UsageError(
                    f"{setting.origin}: no option {option!r}", hint=f"did you mean {close[0]}?" if close else ""
                )
            value = "(not shown)" if option in _SECRET else setting.value
            rows.append({"command": name or "all", "option": option, "value": value, "origin": setting.origin})
    table_rows = [[str(value) for value in row.values()] for row in rows]
    shown = Table(title=f"{len(rows)} settings", columns=["command", "option", "value", "from"], rows=table_rows)
    example = "" if rows else "none set: a line such as gpu: h100-sxm in ./inferplan.yaml, or INFERPLAN_GPU=h100-sxm"
    return Report(record={"settings": rows}, tables=[shown], rows=rows, notes=[example] if example else [])


def _command(group: click.Group, ctx: click.Context, name: str) -> click.Command:
    command = group.get_command(ctx, name)
    assert command is not None
    return command


@click.command("completion", cls=Layered)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """The script that completes commands, options, models and GPUs in a shell.

    Example: inferplan completion bash >> ~/.bashrc
    """
    kind = click.shell_completion.get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root()
    click.echo(kind(root.command, {}, "inferplan", "_INFERPLAN_COMPLETE").source())
