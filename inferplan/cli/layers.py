"""Help in layers: the options that most people need first, the rest by group.

``inferplan COMMAND --help`` shows the options that :data:`COMMON` names, ``--help GROUP`` those of one group of
:data:`GROUPS`, ``--help all`` every option.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any, NamedTuple

import click

from inferplan.errors import UsageError

ALL = "all"
_COMMON = "common"
_LAYER = "inferplan.help_layer"
"""Key of a context's ``meta``: the group of options that help shows."""


class Group(NamedTuple):
    """Options about one subject. title: the heading in help. options: names without dashes, of any command."""

    title: str
    options: str


GROUPS: dict[str, Group] = {
    "deployment": Group(
        "Deployment",
        "gpu have model quant tp replicas engine memory most server url device vs with baseline own rent",
    ),
    "load": Group(
        "Load",
        "workload people sessions-a-day think-time answer-time rate in-flight concurrency batch prompt output isl osl "
        "context requests samples deadline arrivals burstiness burst ramp length-ratio-min trace profile "
        "profile-from fold replay replay-replicas peak duration seed warmup simulate",
    ),
    "limits": Group(
        "Limits",
        "ttft tpot e2e answer-ttft session-time slo percentile confidence utilisation miss-cost client-timeout fail-on "
        "max-error",
    ),
    "parallel": Group(
        "Parallelism",
        "pp dp ep cp division aggregated redundant-experts spread-dense expert-skew two-batch-overlap nvlink-bridge "
        "designs",
    ),
    "formats": Group("Number formats", "weights activations kv experts embedding head quantised quality"),
    "engine": Group(
        "Engine settings",
        "gpu-memory-utilization memory-fraction max-num-batched-tokens token-budget max-num-seqs max-model-len "
        "block-size chunk chunked-prefill prefix-caching contiguous queue routing prefill-schedule-interval "
        "prefill-decode-interval enable-prefill-delayer prefill-delayer-max-delay-passes backend poll-interval-steps "
        "batch-wait-steps batch-wait-fill balance-steps reserve",
    ),
    "pools": Group(
        "Separate pools for prompts and decodes",
        "prefill-replicas decode-replicas kv-link kv-sending prefill-gpu prefill-quant prefill-tp prefill-pp "
        "prefill-ep prefill-dp prefill-cp prefill-redundant-experts prefill-gpu-memory-utilization "
        "prefill-max-num-batched-tokens prefill-max-num-seqs prefill-two-batch-overlap prefill-chunked-prefill",
    ),
    "cache": Group(
        "Prefix cache and its tiers",
        "shared-prefix distinct-prefixes turns turn-gap cached-prefix prefix-hit-rate kv-offload offload-bandwidth "
        "cache-tier hit-curve no-kv-cache",
    ),
    "drafts": Group(
        "Speculative decoding",
        "draft-model draft-tokens draft-branches acceptance acceptance-length thinking draft-checkpoint",
    ),
    "lora": Group(
        "LoRA adapters",
        "lora-rank lora-modules lora-folder max-loras active-loras loras lora-skew lora-bandwidth",
    ),
    "host": Group(
        "Layers on the host",
        "gpu-layers cpu-moe-layers cpu-offload-gb host host-memory host-link host-step host-layer host-request",
    ),
    "answers": Group(
        "Thoughts, sampling, grammars, beams",
        "sampling thinking-tokens thinking-budget thinking-end structured-share mask-time mask-library host-cores "
        "mask-bandwidth mask-overlap grammar-compile beams all-logits",
    ),
    "media": Group("Images, video, sound", "images image-size image-tokens video-frames audio-seconds"),
    "agents": Group("Sessions of agents; classes of traffic", "sessions session-rate session-count classes"),
    "failures": Group(
        "Failures and starts",
        "fail fail-mode replicas-per-node restart cold-start storage-bandwidth loader engine-start startup-log spare "
        "survive domains surge mtbf preemptions notice",
    ),
    "scaling": Group(
        "Scaling",
        "policy min-replicas max-replicas target interval tolerance stabilisation minimum-bill",
    ),
    "money": Group(
        "Prices",
        "price prices term currency max-cost api-price kwh-price ratio user-requests own-price against max-rise",
    ),
    "power": Group(
        "Power and carbon", "power-cap power-budget provision power-share energy pue host-watts carbon grid"
    ),
    "model": Group("The model, changed", "prune block-tokens block-steps block-cache name trust-remote-code"),
    "basis": Group("Basis of the prediction", "calibration anchor ideal unfused-attention factors"),
    "measuring": Group(
        "Measuring",
        "budget fit-only check keep-disturbed new-hardware raw lengths single-requests rounds rate-requests "
        "max-requests max-minutes max-tokens timeout api served-model busy tokenizer api-key-env runs from from-facts "
        "from-seconds send-load anchor-out definition",
    ),
    "watching": Group("Watching", "plan every window for labels what-if record listen dashboard"),
    "launch": Group("Launch", "checkpoint image cache-claim gpus-per-node extra"),
    "catalogue": Group("Catalogue", "filter update"),
    "page": Group("The page, the tools", "port token no-token person public-url folder no-browser seconds"),
    "output": Group(
        "Output",
        "format o out report plot timeline rows show-rows verbose resume force jobs executor scheduler all help",
    ),
}
"""Every option of every command, each in one group. A group is shown in the order of the command."""

COMMON: dict[str, str] = {
    "estimate": "gpu quant tp engine memory batch prompt output in-flight draft-model images energy format o",
    "fit": "gpu have quant tp engine memory context in-flight people workload price format o",
    "explain": "gpu quant tp engine memory batch prompt output calibration ideal format o",
    "simulate": "gpu quant tp replicas workload prompt output rate people in-flight ttft tpot format o",
    "plan": "gpu quant workload prompt output rate people in-flight ttft tpot price max-cost report format o",
    "report": "gpu quant workload prompt output rate people in-flight ttft tpot price o",
    "fleet": "own rent quant workload prompt output rate people ttft tpot price format o",
    "day": "gpu quant tp workload profile peak people ttft tpot policy cold-start price format o",
    "cost": "gpu quant tp engine batch prompt output utilisation prices price api-price format o",
    "compare": "gpu vs quant tp engine batch prompt output format o",
    "sweep": "gpu quant tp engine batch prompt output simulate jobs resume format o",
    "recipe": "gpu with baseline quant tp engine prompt output in-flight plot format o",
    "plot": "gpu quant tp engine batch prompt output slo rate o",
    "calibrate": "device gpu model budget out new-hardware resume check",
    "measure": "gpu model quant tp engine lengths concurrency output max-minutes out",
    "learn": "model gpu quant tp engine out format o",
    "validate": "model gpu quant tp engine isl osl concurrency rows max-error format o",
    "anchor fit": "model gpu quant tp engine isl osl concurrency out",
    "anchor host": "model gpu quant tp engine isl osl concurrency format o",
    "anchor suggest": "gpu quant tp engine concurrency prompt output runs format o",
    "emit": "gpu quant tp engine context max-num-seqs checkpoint image",
}
"""Of commands with many options the dozen that most people need, and where the answer goes.

Other commands show all that they have.
"""

_WIDEST = 26
"""Characters of an option and its value that still have their text beside them."""
_GROUP_OF = {name: key for key, group in GROUPS.items() for name in group.options.split()}


def group_of(option: click.Option) -> str | None:
    """The key of the group that an option is in; ``--host`` is an address where a page listens, else a machine."""
    return "page" if option.name == "address" else _GROUP_OF.get(_plain(option))


def _plain(option: click.Option) -> str:
    """The name of an option without dashes: the long one, where it has one."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0]).lstrip("-")


def show_all(ctx: click.Context) -> None:
    """Have help of this context, and of those below it, show every option."""
    ctx.meta[_LAYER] = ALL


def _show_help(ctx: click.Context, _: click.Parameter, layer: str | None) -> None:
    """Callback of ``--help``: what was asked for, and the end."""
    if layer is None or ctx.resilient_parsing:
        return
    ctx.meta[_LAYER] = layer
    click.echo(ctx.get_help(), color=ctx.color)
    ctx.exit()


class Layered(click.Command):
    """A command with help in layers."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """``--help``, with the name of a group behind it or not."""
        names = self.get_help_option_names(ctx)
        layers = self._layered(ctx)
        more: dict[str, Any] = {"is_flag": True, "flag_value": _COMMON, "type": str, "default": None}
        if layers:
            more = {"is_flag": False, "flag_value": _COMMON, "metavar": "[GROUP]"}
        return click.Option(
            [*names, "asked_help"],
            is_eager=True,
            expose_value=False,
            callback=_show_help,
            help="Show this message, or all options of a group, and exit." if layers else "Show this message and exit.",
            **more,
        )

    def _options(self) -> list[click.Option]:
        return [one for one in self.params if isinstance(one, click.Option) and not one.hidden]

    def _layered(self, ctx: click.Context) -> str:
        """The names of the common options; empty where all are shown."""
        return COMMON.get(ctx.command_path.partition(" ")[2], "")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The text in front of the options; of a group its heading alone. The example stands in lines that a shell
        takes."""
        if ctx.meta.get(_LAYER, _COMMON) not in (_COMMON, ALL):
            return
        text, _, example = cleandoc(self.help or "").partition("Example:")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text.strip())
        if example:
            with formatter.section("Example"):
                formatter.write("".join(f"    {line}\n" for line in _in_lines(example.split(), formatter.width - 6)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of the layer that is asked for, by group, and how to see the others."""
        layer, common = ctx.meta.get(_LAYER, _COMMON), self._layered(ctx).split()
        options = self._options()
        there = {key: [one for one in options if group_of(one) == key] for key in GROUPS}
        there = {key: found for key, found in there.items() if found}
        if layer not in (_COMMON, ALL):
            self._require_group(ctx, layer, there)
            there = {layer: there[layer]}
        elif layer == _COMMON and common:
            there = {key: [one for one in found if _plain(one) in common] for key, found in there.items()}
        rows = {
            key: [row for one in found if (row := one.get_help_record(ctx))] for key, found in there.items() if found
        }
        if layer in (_COMMON, ALL) and (asked := self.get_help_option(ctx)) is not None:
            rows.setdefault("output", []).append(asked.get_help_record(ctx) or ("", ""))
        names = [len(name) for found in rows.values() for name, _ in found]
        column = max((length for length in names if length <= _WIDEST), default=0)
        for key, found in rows.items():
            with formatter.section(GROUPS[key].title):
                formatter.write_dl([(name.ljust(column), text) for name, text in found], col_max=column)
        if layer == _COMMON and common:
            self._write_more(ctx, formatter, options, len(options) - sum(map(len, there.values())))

    def _write_more(
        self, ctx: click.Context, formatter: click.HelpFormatter, options: list[click.Option], left: int
    ) -> None:
        """How to see the options that are left out."""
        groups = [key for key in GROUPS if any(group_of(one) == key for one in options)]
        formatter.write_paragraph()
        formatter.write_text(
            f"{left} more options: {ctx.command_path} --help GROUP, one of {', '.join(groups)}; or all."
        )

    def _require_group(self, ctx: click.Context, layer: str, there: dict[str, Any]) -> None:
        """Raise ``UsageError`` for a group that has no options here."""
        if layer not in there:
            raise UsageError(
                f"--help {layer}: no group of options of {ctx.command_path} has that name",
                hint=f"{ctx.command_path} --help {ALL}, or one of {', '.join(there)}",
            )


def _in_lines(words: list[str], width: int) -> list[str]:
    """A command as lines of a shell, each of at most ``width`` characters; a value stays beside its option."""
    lines: list[str] = []
    for part in re.findall(r"--?\S+(?: (?!-)\S+)*|\S+(?: (?!-)\S+)*", " ".join(words)):
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(part if not lines else f"  {part}")
    return [*(f"{line} \\" for line in lines[:-1]), *lines[-1:]]
