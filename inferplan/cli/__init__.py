"""The command line: options become value objects, one library call, one report. No arithmetic here.

Each command lives in a module of its own that is imported when the command runs, so that none pays for another.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from inferplan import __version__
from inferplan.cli.start import quick_start
from inferplan.errors import InferplanError

COMMANDS: dict[str, tuple[str, str]] = {
    "estimate": ("estimate", "What one batch costs: memory, intensity, TTFT, TPOT, the largest batch and context."),
    "fit": ("fit", "Which GPUs hold a model, in which format, with what context and how many requests."),
    "explain": ("explain", "Where a number of an estimate comes from: formula, inputs, YAML lines, sources."),
    "simulate": (
        "simulate",
        "What users experience under load: latency percentiles, queue, cache; policies, traces, pools.",
    ),
    "plan": ("plan", "What to buy and how to run it: the cheapest deployment that meets the limits under a load."),
    "report": ("plan", "A plan as one self-contained page to send on: HTML or Markdown."),
    "cost": ("cost", "What a batch costs in money and energy: an hour, a token, a request, a user."),
    "compare": ("compare", "Models, GPUs, formats or degrees of parallelism side by side, with ratios and reasons."),
    "sweep": ("sweep", "A grid over models, GPUs, formats, parallelism and loads, on all cores or a cluster."),
    "recipe": ("recipe", "A claimed speed-up taken apart: one ingredient at a time, each with its factor."),
    "plot": ("plot", "Roofline, memory, operators, KV cache, latency against throughput: PNG, SVG, PDF."),
    "calibrate": ("calibrate", "Measure this device with torch and fit its constants, or check stored ones."),
    "measure": ("measure", "A live OpenAI-compatible server: TTFT, TPOT and more over lengths and users."),
    "validate": ("validate", "Predicted against measured: benchmark files of nine tools, start-up logs."),
    "anchor": ("anchor", "Which runs of your own system to measure, and predictions corrected by them."),
    "emit": ("emit", "The command line or the Kubernetes manifest of a deployment or a plan."),
    "prices": ("cost", "The prices on file, with their dates and sources."),
    "settings": ("defaults", "The defaults in force here, from inferplan.yaml and INFERPLAN_*."),
    "completion": ("defaults", "The script that completes commands, models and GPUs in a shell."),
    "models": ("catalog", "The models on file."),
    "gpus": ("catalog", "The accelerators on file."),
    "formats": ("catalog", "The number formats: bits with their scales, arithmetic, sources; GGUF file types."),
    "import": ("import_model", "A Hugging Face config, checkpoint folder or GGUF file as a model YAML."),
    "show": ("catalog", "One model or accelerator in full, from the catalogue or a path."),
}
"""Command name to its module in this package and its one-line help (shown without importing the module)."""


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
            _refuse_repeated(found[1], click.Context(found[1], parent=ctx, info_name=found[0]), found[2])
            ctx.default_map = {found[0]: _defaults(found[0], found[1])}
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _prepared(command: click.Command) -> click.Command:
    """The command with completion of names, when a shell asks for it."""
    if "_INFERPLAN_COMPLETE" not in os.environ:
        return command
    from inferplan.cli.defaults import with_completion

    return with_completion(command)


def _refuse_repeated(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """Raise ``click.UsageError`` for an option of one value that is given twice: click would take the last, unsaid."""
    try:
        _, _, given = command.make_parser(ctx).parse_args(list(args))
    except click.UsageError:
        return  # said when the command reads them itself
    for option in command.params:
        if isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count):
            times = sum(one is option for one in given)
            if times > 1:
                raise click.UsageError(f"{option.opts[0]} is given {times} times, and takes one value.", ctx)


def _defaults(name: str, command: click.Command) -> dict[str, object]:
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
@click.version_option(__version__, prog_name="inferplan")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Predict how a large language model runs on real hardware, before anyone buys or rents it.

    Results go to stdout, messages to stderr. Exit codes: 0 answered, 1 a bug, 2 usage or a bad spec, 3 infeasible, 4 an
    unreadable input file, 5 network, 6 outside the tolerance asked for.
    """
    if ctx.invoked_subcommand is None:  # said here, for releases of click differ in the stream and the exit code
        click.echo(ctx.get_help(), err=True)
        sys.exit(2)


def main() -> None:
    """Run the command line; every error a user can cause is one message and an exit code, never a traceback."""
    quick_start()
    try:
        cli.main(prog_name="inferplan", standalone_mode=False)
    except InferplanError as error:
        click.echo(error.render(), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"hint: {error.ctx.command_path} --help", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stdout = None
        sys.exit(0)
    except Exception as error:
        if os.environ.get("INFERPLAN_TRACEBACK"):
            raise
        click.echo(f"error: a bug in inferplan: {type(error).__name__}: {error}", err=True)
        click.echo("hint: INFERPLAN_TRACEBACK=1 shows where; please report it with the command", err=True)
        sys.exit(1)
