"""The command line: options become value objects, one library call, one report. No arithmetic here.

Each command lives in a module of its own that is imported when the command runs, so that none pays for another.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise, takewhile
from typing import Any, NoReturn

import click

from inferplan import __version__
from inferplan.cli.given import refuse_unclear
from inferplan.cli.start import quick_start
from inferplan.errors import InferplanError, InputFileError, UsageError, has_control
from inferplan.files import reason

QUESTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Where to begin": {
        "ask": ("ask", "Five questions, asked one by one: does it run, what to buy, ..."),
    },
    "Does it fit, how fast is it, and what do users see?": {
        "fit": ("fit", "Which GPUs hold a model, which models fit GPUs; in which format."),
        "estimate": ("estimate", "One batch: memory, time to first token, time per token."),
        "compare": ("compare", "Models, GPUs, formats or divisions side by side, with reasons."),
        "sweep": ("sweep", "A grid of models, GPUs, formats and loads, on all cores."),
        "recipe": ("recipe", "A claimed speed-up taken apart: each technique with its factor."),
        "simulate": ("simulate", "Latency percentiles, queue and cache under live traffic."),
    },
    "What do I buy, what does it cost, and how do I start it?": {
        "plan": ("plan", "The cheapest deployment that meets the limits under a load."),
        "report": ("plan", "A plan as one page to share: HTML or Markdown."),
        "fleet": ("fleet", "GPUs owned and GPUs to rent behind one router: the cheapest mix."),
        "several": ("several", "Several models on one fleet: replicas, machines, latencies."),
        "day": ("day", "A load that rises and falls: what scaling costs, who waits."),
        "horizon": ("horizon", "Months to come: what to buy, reserve and release, and when."),
        "regions": ("regions", "Several regions: who serves whom by hour, one of them lost."),
        "cost": ("cost", "Cost and energy of a batch: per hour, token, request, user."),
        "prices": ("catalog", "The prices on file, with their dates and sources."),
        "emit": ("emit", "The command line, or the Kubernetes manifest, of a deployment."),
    },
    "Why is that so?": {
        "explain": ("explain", "Where a number comes from: formula, inputs, sources."),
        "plot": ("plot", "Roofline, memory, operators, latency: PNG, SVG, PDF."),
    },
    "Is my server as fast as it should be?": {
        "measure": ("measure", "Measure a live server: TTFT and TPOT by length and load."),
        "watch": ("watch", "A running service against its plan, one line per minute."),
        "validate": ("validate", "Benchmark files and start-up logs against the predictions."),
        "learn": ("learn", "Constants fitted to the steps that a server recorded."),
        "anchor": ("anchor", "A few runs of your own system correct its predictions."),
        "calibrate": ("calibrate", "Measure this device with torch and fit its constants."),
    },
    "What is on file?": {
        "models": ("catalog", "The models on file."),
        "gpus": ("catalog", "The accelerators on file."),
        "formats": ("catalog", "The number formats and GGUF file types."),
        "show": ("catalog", "One model or accelerator in full."),
        "import": ("import_model", "A Hugging Face config, checkpoint or GGUF file as a model YAML."),
    },
    "This program": {
        "web": ("web", "The same answers on a page in the browser, and a JSON API."),
        "mcp": ("mcp", "The same answers as tools of an assistant, over MCP."),
        "settings": ("defaults", "The defaults in force here, and where each comes from."),
        "completion": ("defaults", "The script that completes commands and names in a shell."),
        "compile": ("compile", "The simulator as machine code: much faster, same results."),
    },
}
"""The commands by the question that they answer: the name, its module in this package and its one-line help, which is
shown without importing the module."""
COMMANDS = {name: where for commands in QUESTIONS.values() for name, where in commands.items()}


class _ReaderLeftError(Exception):
    """Nobody reads stdout any more."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, not when the program starts."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"inferplan.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return _prepared(command)

    def invoke(self, ctx: click.Context) -> object:
        """As usual; a reader of a pipe who has left is said as such, for click would make an exit code of 1 of it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderLeftError from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0]) if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, COMMANDS, n=2)
            hint = f" Did you mean {' or '.join(close)}?" if close else " See inferplan --help."
            ctx.fail(f"No command named {name!r}.{hint}")
        found = super().resolve_command(ctx, args)
        if found[0] and found[1] is not None and not ctx.resilient_parsing:
            found = found[0], found[1], _in_our_words(found[1], found[2])
            defaults = _defaults(found[0], found[1])
            ctx.default_map = {found[0]: defaults}
            if ctx.obj is not None:
                own = defaults.get(found[2][0], {}) if isinstance(found[1], click.Group) and found[2] else defaults
                ctx.obj.update(own if isinstance(own, dict) else {})
            refuse_unclear(found[1], click.Context(found[1], parent=ctx, info_name=found[0]), found[2])
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for question, commands in QUESTIONS.items():
            formatter.write(f"\n{question}\n")
            with formatter.indentation():
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in commands.items()])


def _in_our_words(command: click.Command, args: list[str]) -> list[str]:
    """The words behind a command, those of other tools for the same options replaced, which is said on stderr."""
    if not any(word.startswith("-") for word in args):
        return args
    from inferplan.cli.synonyms import understood

    if isinstance(command, click.Group):
        below = command.commands.get(args[0])
        return args if below is None else [args[0], *_in_our_words(below, args[1:])]
    words, notes = understood(command, args)
    for note in notes:
        click.echo(note, err=True)
    return words


_COMPILED = {
    "in use": "event loop compiled by {command}",
    "off": "event loop compiled, and not used: INFERPLAN_COMPILED=0",
    "of other sources": "event loop compiled from other sources, and not used: {command}",
    "unusable": "event loop compiled, and not used, because it does not load: {command}",
    "none": "",
}


def _say_version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    """Callback of ``--version``: the version, and whether the event loop is compiled."""
    if asked and not ctx.resilient_parsing:
        from inferplan.compiled import made_by, state

        loop = _COMPILED[state()].format(command=made_by())
        click.echo(", ".join(part for part in (f"inferplan, version {__version__}", loop) if part))
        ctx.exit()


def _prepared(command: click.Command) -> click.Command:
    """The command with completion of names, when a shell asks for it."""
    if "_INFERPLAN_COMPLETE" not in os.environ:
        return command
    from inferplan.cli.defaults import with_completion

    return with_completion(command)


def _defaults(name: str, command: click.Command) -> dict[str, Any]:
    """The user's own defaults of a command; nothing is imported when there are none."""
    if not any(key.startswith("INFERPLAN_") for key in os.environ) and not os.path.isfile("inferplan.yaml"):
        return {}
    from inferplan.cli.defaults import current, defaults_for

    return {} if name == "settings" else defaults_for(name, command, current(frozenset(COMMANDS)))


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Predict how language models run on real hardware, before you buy or rent it.

    Results go to stdout, messages to stderr. Exit codes: 0 answered, 1 a bug, 2 usage, 3 infeasible, 4 a file that
    cannot be read or written, 5 network, 6 outside the tolerance, 130 interrupted. Terms: docs/glossary.md.
    """
    if ctx.invoked_subcommand is None:
        if all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
            from inferplan.cli.ask import ask_command

            ctx.invoke(ask_command)
            return
        # said here, for releases of click differ in the stream and the exit code
        click.echo(ctx.get_help(), err=True)
        sys.exit(2)


def refusal(error: Exception) -> InferplanError:
    """Any error as one that is said: what, because, hint, and the exit code."""
    if isinstance(error, InferplanError):
        return error
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = "" if context is None else f"{context.command_path} --help"
        what = error.format_message()
        if isinstance(error, click.NoSuchOption) and context is not None and (said := _meant(error, context)):
            what, hint = f"No such option '{error.option_name}'.", f"{said}; {hint}"
        if isinstance(error, click.MissingParameter) and context is not None and (such := _example(context.command)):
            hint = f"{such}; {hint}"
        found = InferplanError(what, hint=hint)
        found.exit_code = error.exit_code
        return found
    if isinstance(error, MemoryError):
        return UsageError("there is not enough memory for this question", hint="fewer points, users or requests")
    if isinstance(error, OSError) and error.errno in _OUTPUT:
        return InputFileError("cannot write the output", because=reason(error))
    found = InferplanError(
        f"a bug in inferplan: {type(error).__name__}: {error}",
        hint="INFERPLAN_TRACEBACK=1 shows where; please report it with the command",
    )
    found.exit_code = 1
    return found


def _meant(error: click.NoSuchOption, context: click.Context) -> str:
    """What an unknown option is called in a command, or which command has it; empty where nobody does."""
    from inferplan.cli.options import WORDS
    from inferplan.cli.synonyms import meant

    group = click.Context(cli, info_name="inferplan")
    others = ((name, cli.get_command(group, name)) for name in COMMANDS if name != context.command.name)
    words = context.find_root().meta.get(WORDS) or sys.argv[1:]
    return meant(error.option_name, context.command, {name: one for name, one in others if one is not None}, words)


def _example(command: click.Command) -> str:
    """The first command line that a command's help gives as an example."""
    found = re.search(r"Examples?: (inferplan [^;\n]+)", command.help or "")
    return "" if found is None else found[1].strip()


def main() -> None:
    """Run the command line; every error a user can cause is one message and an exit code, never a traceback."""
    quick_start()
    if sys.stdout is None or sys.stderr is None:  # closed: >&-
        _stand_in_for_closed()
    defaults: dict[str, Any] = {}
    try:
        _refuse_control(sys.argv[1:])
        cli.main(prog_name="inferplan", standalone_mode=False, obj=defaults)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        interrupted = InferplanError("interrupted")
        interrupted.exit_code = 130
        _leave(interrupted, defaults)
    except (BrokenPipeError, _ReaderLeftError):  # head has seen enough
        sys.stdout = None
        sys.exit(0)
    except Exception as error:
        known = isinstance(error, (InferplanError, click.ClickException))
        if os.environ.get("INFERPLAN_TRACEBACK") and not known:
            raise
        said = refusal(error)
        if isinstance(error, OSError) and said.exit_code == InputFileError.exit_code:
            sys.stdout = None  # what it still holds cannot be written either
        _leave(said, defaults)


_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG)
"""What the system says where stdout cannot be written. Other files are written by :func:`inferplan.files.save`."""


def _leave(error: InferplanError, defaults: Mapping[str, Any]) -> NoReturn:
    """Say why, as people or programs read it, and end with an exit code; where nothing can be said, the code has to
    do. defaults: the user's own of the command, where it was found."""
    try:
        click.echo(_error_text(error, _format_given(sys.argv[1:]) or defaults.get("style")), err=True)
    except OSError:
        sys.stderr = None  # what it still holds cannot be written either
    sys.exit(error.exit_code)


def _error_text(error: InferplanError, style: str | None) -> str:
    """An error in the format of the answer that was asked for: one line of JSON, or what people read."""
    if style not in ("json", "jsonl"):
        return error.render() if error.exit_code != 130 else error.what
    import json

    from inferplan.table import SCHEMA_VERSION

    return json.dumps({"schema_version": SCHEMA_VERSION, "error": error.record()})


def _format_given(words: Sequence[str]) -> str | None:
    """What stands behind ``--format``. It is read from the words: an error may come before click has read them."""
    options = [*takewhile(lambda word: word != "--", words)]
    given = [word.removeprefix("--format=") for word in options if word.startswith("--format=")]
    given += [value for word, value in pairwise(options) if word == "--format"]
    return given[-1] if given else None


def _stand_in_for_closed() -> None:
    """Give a closed stdout and stderr a place that refuses what is written to it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _Closed())


class _Closed(io.TextIOBase):
    """A stream that is closed: writing to it is an error of the system's kind."""

    encoding = "utf-8"

    def write(self, _: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def _refuse_control(arguments: list[str]) -> None:
    """Raise ``UsageError`` for an argument with control characters: no name, number or path of anybody's has them."""
    for argument in arguments:
        if has_control(argument) or "\n" in argument or "\t" in argument:
            raise UsageError(
                f"an argument has control characters: {ascii(argument)[1:-1]}", hint="write it without them"
            )
