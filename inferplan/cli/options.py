"""Options that commands share, and the objects they become."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferplan.catalog.assemble import Request
from inferplan.cli.declared import Declared, options_of, with_options
from inferplan.cli.numbers import Count
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.estimate.formats import ROLES
from inferplan.extras import require
from inferplan.fields import option_values
from inferplan.files import require_writable, save
from inferplan.table import FORMATS, Report, format_of, pieces
from inferplan.work.adapters import USUAL_RANK

if TYPE_CHECKING:
    from inferplan.catalog.assemble import Request
    from inferplan.measuring.address import Key
    from inferplan.reports.progress import Bar

Command = Callable[..., Any]
TAKEN, WORDS, REQUEST, PROGRESS = (f"inferplan.{name}" for name in ("taken", "words", "request", "progress"))
"""Keys of a context's ``meta``, for programs that run a command (cli/programs.py).

TAKEN: a list to which reports go instead of stdout. WORDS: the command's words, where they are not those of this
process. REQUEST: the deployment that was asked for. PROGRESS: what is told how far a command is.
"""


API_KEY = Declared(
    "--api-key-env",
    default="OPENAI_API_KEY",
    show_default=True,
    metavar="NAME",
    help="Environment variable that holds the key, where the server wants one.",
)


def key_asked(variable: str) -> Key:
    """The key in the variable of ``--api-key-env``. Raises ``UsageError``, also where it was named and is not set."""
    from inferplan.measuring.address import key_of

    source = click.get_current_context().get_parameter_source("api_key_env")
    return key_of(variable, os.environ, named=source is not click.core.ParameterSource.DEFAULT)


def command_line() -> str:
    """The command that runs, as it is typed."""
    words = click.get_current_context().meta.get(WORDS)
    return shlex.join(["inferplan", *(sys.argv[1:] if words is None else words)])


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Bar | None]:
    """Who is to be told how many ``what`` are done: the program that asked, or a terminal."""
    from inferplan.reports.progress import ended, progress_counter

    told = click.get_current_context().meta.get(PROGRESS)
    if told is not None:
        with ended(lambda done, of: told(done, of, what), total) as heard:
            yield heard
    else:
        with progress_counter(what, total) as bar:
            yield bar


@contextmanager
def watching() -> Iterator[Callable[[str, int, int], None]]:
    """Who is to be told what is done with a server, how much of it, of how much: a terminal, nobody elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda *_: None
        return
    # drawn twice a second: drawing takes the same interpreter as the time stamps
    with Progress(console=console, transient=True, refresh_per_second=2) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, planned: bar.update(task, description=what, completed=done, total=planned or None)


def processes(jobs: int | None) -> int:
    """So many processes as somebody says; else one on each core, or one where a program asks."""
    if jobs is not None or click.get_current_context().meta.get(WORDS) is not None:
        return jobs or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--jobs`` and ``--scheduler``: who does the parts of an answer, which the command gets as ``jobs``."""

    @click.option("--jobs", type=Count(), help="Processes; the answer is the same for any number [all cores].")
    @click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Workers of a Dask cluster in the place of processes: tcp://host:8786. The answer is the same.",
    )
    @functools.wraps(command)
    def chosen(*given: Any, jobs: int | None, scheduler: str | None, **values: Any) -> Any:
        if scheduler is None:
            return command(*given, jobs=processes(jobs), **values)
        if jobs is not None:
            raise UsageError("--jobs does not go with --scheduler", hint="as many workers as the cluster has")
        require("dask", "a cluster")
        return command(*given, jobs=scheduler, **values)

    return chosen


def picture(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of an option that names a picture: what it needs is said before the work, not after it.

    Raises ``UsageError`` for a suffix that names no picture, ``MissingExtraError`` without matplotlib, and as
    :func:`writable`.
    """
    if value is not None and not ctx.resilient_parsing:
        from inferplan.reports.plots import require_picture

        require("plot", "drawing")
        require_picture(value)
    return writable(ctx, parameter, value)


def suffix_callback(suffixes: Sequence[str], what: str) -> Callable[..., str | None]:
    """A callback of an option that names a file to write, by one of these suffixes; ``what`` it is, for the error."""

    def check(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and Path(value).suffix.lower() not in suffixes:
            raise UsageError(f"cannot write {what} as {value}", hint=f"a suffix of {' or '.join(suffixes)}")
        return writable(ctx, parameter, value)

    return check


def writable(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """Callback of an option that names a file to write: what stands in its way is said before the work, not after it.

    Raises ``InputFileError``.
    """
    if value is None or ctx.resilient_parsing:
        return value
    require_writable(value)
    return value


def known_engines(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """Callback of ``--engine``: an unknown engine or version is an error here, and a stand-in is said on stderr.

    Raises ``UnknownNameError``.
    """
    from inferplan.catalog.assemble import load_engine

    for name in [] if ctx.resilient_parsing or value is None else value.split(","):
        note = load_engine(name.strip()).note
        if note:
            click.echo(f"note: {note}", err=True)
    return value


def _apply(command: Command, decorators: list[Callable[[Any], Any]]) -> Command:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order in which help shows them."""
    return lambda command: _apply(command, [*options])


BACKEND_HELP = "Kernels chosen by a flag of the engine: experts=triton, attention=flashinfer, linear=@0.19."
USUAL = "vllm; llama.cpp for GGUF files and on Apple's chips"
"""The default of ``--engine`` (:func:`inferplan.catalog.assemble.usual_engine`)."""
ENGINES = "Engine and version: vllm, vllm@0.20, sglang, trtllm, atom, llama.cpp, ik_llama.cpp, ktransformers, none."


def engine_is_named() -> bool:
    """Whether the command that runs was given an engine."""
    source = click.get_current_context().get_parameter_source("engine")
    return source is not click.core.ParameterSource.DEFAULT


def usual_engine(values: dict[str, Any]) -> str:
    """The engine that was named, else the usual one of the model and the device, or of comma lists of them."""
    models, gpus, quants = (_listed(values.get(name) or "") for name in ("model", "gpu", "quant"))
    return str(values["engine"]) if engine_is_named() else usual_engines(values["engine"], models, gpus, quants)[0]


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def usual_engines(
    given: str, models: Sequence[str], gpus: Sequence[str], quants: Sequence[str | None] | None = None
) -> tuple[str, ...]:
    """The engines that were named (``given``), else the usual one; raises ``UsageError`` where lists have several."""
    from inferplan.catalog import assemble

    if engine_is_named() or not (models and gpus):
        return tuple(_listed(given))
    return assemble.usual_engines(models, gpus, quants)


def engine_option(text: str, **more: Any) -> Callable[[Command], Command]:
    """``--engine`` with a help text, checked by :func:`known_engines`."""
    return with_options([_engine(text, **more)])


def _engine(text: str, **more: Any) -> Declared:
    return Declared("--engine", default="vllm", callback=known_engines, help=text, **{"show_default": USUAL, **more})


def without(command: click.Command, *names: str) -> None:
    """Take options from a command of :func:`deployment_options` in which they would change nothing."""
    command.params = [parameter for parameter in command.params if parameter.name not in names]


def backends(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...] | None:
    """Callback of ``--backend``: pairs of role and name. Raises ``UsageError``."""
    pairs = [one.partition("=") for one in given]
    for role, equals, name in pairs:
        if not (role and equals and name):
            raise UsageError(f"--backend {role}{equals}{name} is not ROLE=NAME", hint="--backend experts=triton")
    twice = [role for role, count in Counter(role for role, _, _ in pairs).items() if count > 1]
    if twice:
        raise UsageError(f"--backend {twice[0]}= is given more than once", hint="one kernel library for each role")
    if pairs:
        from inferplan.devices.releases import require_role  # only here: most commands name no kernels

        for pair in pairs:
            require_role(pair[0])
    return tuple((role, name) for role, _, name in pairs) or None


BACKEND = Declared("--backend", metavar="ROLE=NAME", multiple=True, callback=backends, help=BACKEND_HELP)
"""``--backend``: pairs of a role and the name of its kernels, or ``None``."""


def note_request(request: Request) -> Request:
    """The request, which the context now knows too."""
    click.get_current_context().meta[REQUEST] = request
    return request


_ROLE_HELP = ("linear weights", "linear inputs", "KV cache", "routed experts", "embedding", "head")
_DIFFUSION = (
    Declared("--block-tokens", type=Count(), help="Diffusion models: tokens of a block."),
    Declared("--block-steps", type=Count(), help="Diffusion models: denoising passes of a block."),
    Declared("--block-cache", is_flag=True, help="Diffusion models: cache the finished blocks."),
)
_ELSEWHERE = ("quant", "parallel", "expert_skew", "flags", "media", "lora", "offload", "host", "power_cap", "sampling")
"""Fields of a request whose options stand further up, or that only some commands ask (:func:`asks_of_request`)."""
_GENERATION = {"block": "block_tokens", "steps": "block_steps", "block_cache": "block_cache"}
"""Fields of a diffusion model's generation, and the options that set them."""


def _of_deployment() -> list[Declared]:
    """The options that describe a deployment."""
    return [
        Declared(
            "--gpu",
            required=True,
            help="Accelerator: a name (inferplan gpus) or a path to a YAML; 2x-h100: two, with --tp 2.",
        ),
        *options_of(Request, "quant"),
        *(
            Declared(f"--{role}", f"{role}_format", metavar="FORMAT", help=f"Format of the {text}.")
            for role, text in zip(ROLES, _ROLE_HELP)
        ),
        *options_of(Request, "parallel", "expert_skew"),
        _engine(ENGINES),
        *options_of(Request, "flags"),
        BACKEND,
        *options_of(Request, without=_ELSEWHERE),
        *_DIFFUSION,
    ]


def rank_served(given: Mapping[str, Any], named: int | None) -> int | None:
    """The rank of adapters' slots: where requests name some the usual one, unless a rank or a folder is given."""
    rank: int | None = given["lora_rank"]
    return USUAL_RANK if rank is None and named is not None and given["lora_folder"] is None else rank


def deployment_of(model: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Adds what describes a deployment, and ``model``; the command gets one
    :class:`inferplan.catalog.assemble.Request`."""
    options = _of_deployment()

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            given = {one.name: values.pop(one.name, None) for one in options} | {"model": values.pop("model")}
            roles = tuple((role, name) for role in ROLES if (name := given[f"{role}_format"]))
            generation = tuple((field, given[name]) for field, name in _GENERATION.items() if given[name])
            chosen = option_values(Request, given)
            if given["backend"]:
                chosen["flags"] = chosen.get("flags", EngineFlags()).model_copy(update={"backends": given["backend"]})
            request = Request(
                model=given["model"],
                gpu=given["gpu"],
                engine=usual_engine(given),
                generation=generation,
                roles=roles,
                **chosen,
            )
            return command(request=note_request(request), **values)

        return model(with_options(options)(wrapper))

    return add


def deployment_options(command: Command) -> Command:
    """:func:`deployment_of` of MODEL, an argument."""
    return deployment_of(click.argument("model"))(command)


def asks_of_request(*names: str) -> Callable[[Command], Command]:
    """A decorator that adds the options of further fields of the command's request."""
    options = options_of(Request, *names)

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(request: Request, **values: Any) -> Any:
            given = {one.name: values.pop(one.name, None) for one in options}
            if "lora_rank" in given:
                given["lora_rank"] = rank_served(given, values.get("loras"))
            changed = option_values(Request, given)
            return command(request=note_request(replace(request, **changed)) if changed else request, **values)

        return with_options(options)(wrapper)

    return add


def typed(names: Collection[str] | None = None, without: Collection[str] = ()) -> list[str]:
    """The options of the running command that were given, as they are typed: of ``names``, by their keys."""
    ctx = click.get_current_context()
    return [
        one.opts[0]
        for one in ctx.command.params
        if (names is None or one.name in names)
        and one.name not in without
        and ctx.get_parameter_source(one.name or "") is not click.core.ParameterSource.DEFAULT
    ]


def report_options(command: Command) -> Command:
    """Adds ``--format`` and ``-o``; the command returns a :class:`Report`, which is then written."""

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        style, path = values.pop("style"), values.pop("report_file")
        style = format_of(path, style)
        report, taken = command(**values), click.get_current_context().meta.get(TAKEN)
        if taken is None:
            write(report, style, path)
        else:
            taken.append(report)
        if report.ends is not None:
            report.ends()

    options: list[Callable[[Any], Any]] = [
        click.option("--format", "style", type=click.Choice(FORMATS), help="Output format [table, or by -o's suffix]."),
        click.option("-o", "report_file", metavar="FILE", callback=writable, help="Write to a file instead of stdout."),
    ]
    return _apply(wrapper, options)


def write(report: Report, style: str, path: str | None = None) -> None:
    """Put a report on stdout or into a file. Raises ``InputFileError`` when the file cannot be written."""
    if path is None:
        colour, width = sys.stdout.isatty() and "NO_COLOR" not in os.environ, None
        if sys.stdout.isatty():
            from shutil import get_terminal_size

            width = get_terminal_size().columns
        for text in pieces(report, style, width, colour):
            click.echo(text, nl=False, color=colour)
        return
    save(path, pieces(report, style))
    if report.headline:
        said = report.headline.replace(" FILE ", f" {shlex.quote(path)} ")  # of a command that reads it
        click.echo(f"{said}\nwritten to {path}", err=True)
