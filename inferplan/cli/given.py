"""What is refused of the words of a command before they are read: options given twice, and empty texts."""

from __future__ import annotations

import click

from inferplan.errors import UsageError


def refuse_unclear(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """Raise ``click.UsageError`` for an option of one value that is given twice: click would take the last, unsaid.

    Raise ``UsageError`` for an option or an argument that is given an empty text: commands would take that as not
    given. The commands below a group are looked at too.
    """
    if isinstance(command, click.Group):
        below = command.commands.get(args[0]) if args else None
        if below is not None:
            refuse_unclear(below, click.Context(below, parent=ctx, info_name=args[0]), args[1:])
        return
    try:
        values, _, given = command.make_parser(ctx).parse_args(list(args))
    except click.UsageError:
        return  # said when the command reads them itself
    for option in command.params:
        if isinstance(option, click.Argument):
            refuse_empty(option.human_readable_name, values.get(option.name or ""))
        elif isinstance(option, click.Option):
            times = sum(one is option for one in given)
            if times > 1 and not (option.multiple or option.is_flag or option.count):
                raise click.UsageError(f"{option.opts[0]} is given {times} times, and takes one value.", ctx)
            refuse_empty(option.opts[0], values.get(option.name or ""))


def refuse_empty(option: str, value: object, origin: str = "") -> None:
    """Raise ``UsageError`` for an option whose text, or one of whose texts, is empty. origin: where it stands."""
    if any(
        isinstance(one, str) and not one.strip() for one in (value if isinstance(value, (list, tuple)) else [value])
    ):
        raise UsageError(
            f"{origin and f'{origin}: '}{option} is empty",
            because="an empty text is not a value, and differs from leaving the option out",
            hint=f"a value for {option}; in a shell, look at the variable that should hold it",
        )
