"""Options that commands share, and the objects they become."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from inferplan.errors import UsageError
from inferplan.extras import require
from inferplan.files import require_writable, save
from inferplan.table import FORMATS, Report, format_of, pieces
from inferplan.units import MOST, MOST_PUE, parse_count

if TYPE_CHECKING:
    from inferplan.catalog.assemble import Request

Command = Callable[..., Any]
MEMORY = "Usable memory of one device, such as 64GB; at most what it is sold with."
"""Help of ``--memory``, of one device."""
IDEAL = "No losses: every efficiency 1, every overhead 0; times are lower bounds."
"""Help of ``--ideal``; docs/nomenclature.md defines the word."""
TAKEN, WORDS, REQUEST, PROGRESS = (f"inferplan.{name}" for name in ("taken", "words", "request", "progress"))
"""Keys of a context's ``meta``, for programs that run a command (cli/programs.py).

TAKEN: a list to which reports go instead of stdout. WORDS: the command's words, where they are not those of this
process. REQUEST: the deployment that was asked for. PROGRESS: what is told how far a command is.
"""


def command_line() -> str:
    """The command that runs, as it is typed."""
    words = click.get_current_context().meta.get(WORDS)
    return shlex.join(["inferplan", *(sys.argv[1:] if words is None else words)])


MOST_JOBS = 1024


if TYPE_CHECKING:
    _Any = click.ParamType[Any]
else:
    _Any = click.ParamType  # generic from click 8.3 on


class _Digits(_Any):
    """A number in the digits 0 to 9: Python reads those of every script."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.isascii():
            self.fail(f"{value!r} is not a number", param, ctx)
        return super().convert(value, param, ctx)


class Whole(_Digits, click.IntRange):
    """A whole number in a range."""


class Finite(_Digits, click.types.FloatParamType):
    """A finite number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Within(_Digits, click.FloatRange):
    """A number in a range; NaN, which compares with nothing, is refused too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class Fraction(Within):
    """A number above 0 and up to 1."""

    def __init__(self) -> None:
        super().__init__(0, 1, min_open=True)


class Positive(Finite):
    """A finite number above 0, or of ``low`` and more."""

    def __init__(self, low: float | None = None) -> None:
        self.low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if number <= 0 if self.low is None else number < self.low:
            self.fail(f"{value} is not {'above 0' if self.low is None else f'{self.low:g} or more'}", param, ctx)
        return number


class Pue(Within):
    """Power usage effectiveness, see :data:`inferplan.units.MOST_PUE`."""

    def __init__(self) -> None:
        super().__init__(1, MOST_PUE)


class Count(click.types.IntParamType):
    """A positive count: 4096, 8k, 128Ki."""

    name = "count"

    def __init__(self, low: int = 1, most: int = MOST) -> None:
        self.low, self.most = low, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = value if isinstance(value, int) and not isinstance(value, bool) else parse_count(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if number < self.low:
            self.fail(f"{number} must be {self.low} or more", param, ctx)
        if number > self.most:
            self.fail(f"{number} must be at most {self.most:,}", param, ctx)
        return number


def jobs_option(text: str) -> Callable[[Any], Any]:
    """``--jobs``: processes, all cores where it is not given."""
    return click.option("--jobs", type=Count(most=MOST_JOBS), help=f"{text} [all cores]")


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


def suffixed(suffixes: Sequence[str], what: str) -> Callable[..., str | None]:
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


ROLES = ("weights", "activations", "kv", "experts", "embedding", "head")
_FLAGS = {
    "memory_fraction": "gpu_memory_utilization",
    "token_budget": "max_num_batched_tokens",
    "max_sequences": "max_num_seqs",
    "block_size": "block_size",
    "two_batch_overlap": "two_batch_overlap",
    "backends": "backend",
}
"""Fields of ``EngineFlags`` and the options that set them."""
BACKEND = "Kernels that a flag of the engine chooses: experts=triton, attention=flashinfer, linear=@0.19."
_REDUNDANT = "Slots for copies of popular experts (EPLB), beyond one for each."
SKEW = "Deviation of the logarithm of the experts' popularity; 0 is uniform [measured, or configs/routing.yaml]."
_DEGREES = {
    "tp": "Tensor parallelism.",
    "pp": "Pipeline stages.",
    "ep": "Expert groups (each expert sliced over tp*dp/ep ranks).",
    "dp": "Attention data parallelism.",
    "cp": "Context parallelism.",
    "replicas": "Independent copies behind a balancer.",
}


USUAL = "vllm; llama.cpp for GGUF files and on Apple's chips"
"""The default of ``--engine`` (:func:`inferplan.catalog.assemble.usual_engine`)."""


CALIBRATION = (
    "Constants measured on this device (inferplan calibrate), over those on file: kernel by kernel and format by "
    "format the nearer to what the engine runs prices. First a library that the engine calls, measured here; then the "
    "engine's kernel on file for the device; then a stand-in measured here (torch); then what is carried from others."
)
"""What ``--calibration`` does."""


def _engine_is_named() -> bool:
    source = click.get_current_context().get_parameter_source("engine")
    return source is not click.core.ParameterSource.DEFAULT


def part_of_request(
    options: Sequence[tuple[tuple[str, ...], dict[str, Any]]], field: str, read: Callable[[dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """A decorator that adds options, of which ``read`` takes the values and makes a field of the command's request."""

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            part, request = read(values), values.pop("request")
            return command(request=replace(request, **{field: part}), **values)

        decorated: Command = wrapper
        for declarations, keywords in reversed(options):
            decorated = click.option(*declarations, **keywords)(decorated)
        return decorated

    return add


def usual_engine(values: dict[str, Any]) -> str:
    """The engine that was named, else the usual one of the model and the device, or of comma lists of them."""
    models, gpus = (_listed(values[name] or "") for name in ("model", "gpu"))
    return str(values["engine"]) if _engine_is_named() else usual_engines(values["engine"], models, gpus)[0]


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def usual_engines(given: str, models: Sequence[str], gpus: Sequence[str]) -> tuple[str, ...]:
    """The engines that were named (``given``), else the usual one; raises ``UsageError`` where lists have several."""
    from inferplan.catalog import assemble

    if _engine_is_named() or not (models and gpus):
        return tuple(_listed(given))
    return assemble.usual_engines(models, gpus)


def engine_option(text: str, **more: Any) -> Callable[[Any], Any]:
    """``--engine`` with a help text, checked by :func:`known_engines`."""
    more = {"show_default": True} | more
    return click.option("--engine", default="vllm", callback=known_engines, help=text, **more)


def anchor_option() -> Callable[[Any], Any]:
    """``--anchor``: measured runs of the system."""
    return click.option(
        "--anchor", metavar="FILE", help="Measured runs of this system, which correct it (inferplan anchor fit)."
    )


def _constant_options() -> list[Callable[[Any], Any]]:
    """What times are priced with."""
    return [
        click.option("--calibration", metavar="FILE", help=CALIBRATION),
        anchor_option(),
        click.option("--ideal", is_flag=True, help=IDEAL),
    ]


def without(command: click.Command, *names: str) -> None:
    """Take options from a command of :func:`deployment_options` in which they would change nothing."""
    command.params = [parameter for parameter in command.params if parameter.name not in names]


def engine_flag_options() -> list[Callable[[Any], Any]]:
    """The engine flags that replace its version's defaults."""
    return [
        click.option(
            "--gpu-memory-utilization",
            type=Fraction(),
            help="Share of the device's memory that the engine may use.",
        ),
        click.option("--max-num-batched-tokens", type=Count(), help="Token budget of a step."),
        click.option("--max-num-seqs", type=Count(), help="Most sequences in a step."),
        click.option("--block-size", type=Count(), help="Tokens of a KV page."),
        click.option(
            "--two-batch-overlap",
            is_flag=True,
            default=None,
            help="Cut a step into two half batches: experts are exchanged while the other half computes.",
        ),
        backend_option(),
    ]


def backend_option() -> Callable[[Any], Any]:
    """``--backend``: pairs of a role and the name of its kernels, or ``None``."""
    return click.option("--backend", metavar="ROLE=NAME", multiple=True, callback=backends, help=BACKEND)


def backends(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...] | None:
    """Callback of ``--backend``: pairs of role and name. Raises ``UsageError``."""
    pairs = [one.partition("=") for one in given]
    for role, equals, name in pairs:
        if not (role and equals and name):
            raise UsageError(f"--backend {role}{equals}{name} is no ROLE=NAME", hint="--backend experts=triton")
    twice = [role for role, count in Counter(role for role, _, _ in pairs).items() if count > 1]
    if twice:
        raise UsageError(f"--backend {twice[0]}= is given more than once", hint="one kernel library for each role")
    return tuple((role, name) for role, _, name in pairs) or None


def expert_options() -> list[Callable[[Any], Any]]:
    """How experts and dense layers are kept by many ranks, and how popular experts are."""
    return [
        click.option("--redundant-experts", type=Count(0), default=0, show_default=True, help=_REDUNDANT),
        click.option(
            "--spread-dense", is_flag=True, help="With --dp: dense layers over all ranks, which gather their tokens."
        ),
        click.option("--expert-skew", type=Within(0, 3), metavar="SKEW", help=SKEW),
    ]


def noted(request: Request) -> Request:
    """The request, which the context now knows too."""
    click.get_current_context().meta[REQUEST] = request
    return request


def deployment_options(command: Command) -> Command:
    """Adds what describes a deployment; the command gets one :class:`inferplan.catalog.assemble.Request`."""

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        from inferplan.catalog.assemble import Request
        from inferplan.devices.engine import EngineFlags
        from inferplan.work.parallel import Parallelism

        degrees = {name: values.pop(name) for name in _DEGREES}
        parallel = Parallelism(
            **degrees, redundant=values.pop("redundant_experts"), spread_dense=values.pop("spread_dense")
        )
        roles = tuple((role, name) for role in ROLES if (name := values.pop(f"{role}_format")))
        names = ("model", "gpu", "quant", "engine", "calibration", "ideal", "memory", "unfused_attention", "prune")
        generation = tuple(
            (field, value)
            for field, option in (("block", "block_tokens"), ("steps", "block_steps"), ("block_cache", "block_cache"))
            if (value := values.pop(option))
        )
        given = {field: value for field, option in _FLAGS.items() if (value := values.pop(option, None)) is not None}
        flags = EngineFlags(**given) if given else EngineFlags.default()
        values["engine"] = usual_engine(values)
        chosen = {name: values.pop(name, None) for name in (*names, "expert_skew", "anchor")}
        request = Request(generation=generation, flags=flags, parallel=parallel, roles=roles, **chosen)
        return command(request=noted(request), **values)

    options: list[Callable[[Any], Any]] = [
        click.argument("model"),
        click.option("--gpu", required=True, help="Accelerator: a name (inferplan gpus) or a path to a YAML."),
        click.option(
            "--quant", help="Formats of all roles: bf16, fp8, w4a16kv8, q4_k_m ... (inferplan formats) [native]"
        ),
        *(
            click.option(f"--{role}", f"{role}_format", metavar="FORMAT", help=f"Format of the {text}.")
            for role, text in zip(
                ROLES, ("linear weights", "linear inputs", "KV cache", "routed experts", "embedding", "head")
            )
        ),
        *(
            click.option(f"--{name}", type=Count(), default=1, show_default=True, help=text)
            for name, text in _DEGREES.items()
        ),
        *expert_options(),
        engine_option("Engine and version: vllm, vllm@0.20, llama.cpp, none.", show_default=USUAL),
        *engine_flag_options(),
        *_constant_options(),
        click.option("--memory", metavar="SIZE", help=MEMORY),
        click.option(
            "--unfused-attention",
            is_flag=True,
            help="Attention without a fused kernel: its scores are written to memory and read back.",
        ),
        click.option("--prune", metavar="AXES", help="Prune the model first: layers=24,d_ff=0.75 (sizes or shares)."),
        click.option("--block-tokens", type=Count(), help="Diffusion models: tokens of a block."),
        click.option("--block-steps", type=Count(), help="Diffusion models: denoising passes of a block."),
        click.option("--block-cache", is_flag=True, help="Diffusion models: cache the finished blocks."),
    ]
    return _apply(wrapper, options)


def load_options(command: Command, batch: int | None = 1) -> Command:
    """Adds the static batch; the command gets one ``load`` (:class:`inferplan.estimate.load.StaticLoad`).

    batch: the batch where none is given; with ``None`` the command chooses it, and finds one sequence in ``load``.
    """

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        from inferplan.estimate.load import StaticLoad

        given = click.get_current_context().get_parameter_source("prompt")
        load = StaticLoad(
            batch=float(values.pop("batch") or 1),
            usual=given is ParameterSource.DEFAULT,
            prompt=float(values.pop("prompt") + values.pop("image_tokens")),
            output=float(values.pop("output_tokens")),
            kv_cache=not values.pop("no_kv_cache"),
            all_logits=values.pop("all_logits"),
        )
        return command(load=load, **values)

    options: list[Callable[[Any], Any]] = [
        click.option(
            "--batch",
            type=Count(),
            default=batch,
            show_default=batch is not None,
            help="Sequences per replica." if batch else "Sequences per replica [as many as memory and engine hold].",
        ),
        click.option("--prompt", type=Count(), default=1024, show_default=True, help="Prompt tokens of a sequence."),
        click.option(
            "--image-tokens",
            type=Count(0),
            default=0,
            help="Further prompt tokens that stand for images; their encoder's own time is not counted.",
        ),
        click.option(
            "--output", "output_tokens", type=Count(), default=256, show_default=True, help="Generated tokens."
        ),
        click.option("--no-kv-cache", is_flag=True, help="Recompute the whole prefix for every token."),
        click.option(
            "--all-logits", is_flag=True, help="The prefill computes logits for every position, not for the last alone."
        ),
    ]
    return _apply(wrapper, options)


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

    options: list[Callable[[Any], Any]] = [
        click.option("--format", "style", type=click.Choice(FORMATS), help="Output format [table, or by -o's suffix]."),
        click.option("-o", "report_file", metavar="FILE", callback=writable, help="Write to a file instead of stdout."),
    ]
    return _apply(wrapper, options)


def write(report: Report, style: str, path: str | None = None) -> None:
    """Put a report on stdout or into a file. Raises ``InputFileError`` when the file cannot be written."""
    if path is None:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        from shutil import get_terminal_size

        width = get_terminal_size().columns if sys.stdout.isatty() else None
        for text in pieces(report, style, width, colour):
            click.echo(text, nl=False, color=colour)
        return
    save(path, pieces(report, style))
    if report.headline:
        click.echo(f"{report.headline}\nwritten to {path}", err=True)
