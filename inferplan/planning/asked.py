"""A plan as options ask for it, beside its load: where to look, and how replicas are counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, prod
from typing import Any, get_args

from inferplan.catalog.assemble import Request, precision_of
from inferplan.catalog.counted import Counted, counted_device
from inferplan.catalog.files import load_hardware, load_model
from inferplan.catalog.price_lists import PriceBook
from inferplan.catalog.quality import QUALITY
from inferplan.errors import UsageError
from inferplan.estimate.formats import NATIVE
from inferplan.fields import Quantity, Real, Switch, Text, Whole, Words, ask
from inferplan.lists import parse_copies, parse_counts, parse_values
from inferplan.money import Money, read_cost
from inferplan.planning.confidence import MIDDLE, USUAL
from inferplan.planning.option import OwnedGpus, Sizing
from inferplan.planning.power import PowerBudget
from inferplan.planning.redundancy import Survive
from inferplan.serving.cold_start import ColdStart, restart_missing
from inferplan.serving.routing import Routing
from inferplan.work.parallel import MOST_DEGREE

_MOST_TRIED = 256
"""Values of a degree or a budget that a search tries: each goes with each of the others."""
Counts = tuple[int, ...] | None
"""The values that are named; ``None`` where none are."""


def _tried(option: str) -> Text:
    return Text(lambda text: tuple(parse_counts(text, option, _MOST_TRIED)))


def _copies(text: str) -> tuple[int, ...]:
    """None and the numbers of copies that are named."""
    return tuple(dict.fromkeys((0, *parse_copies(text))))


def _caps(text: str) -> tuple[float, ...]:
    found = tuple(Quantity("watts", above=True).read("--power-cap", one) for one in parse_values(text))
    if not found:
        raise UsageError(f"--power-cap {text!r} names no watts", hint="--power-cap 700W,500W")
    return found


def _most_cost(text: str) -> Money:
    """What may be spent. Raises ``UsageError`` for nothing."""
    found = read_cost("--max-cost", text)
    if not found.amount:
        raise UsageError("--max-cost must be more than 0")
    return found


def _spent(cost: Money | float | None, prices: PriceBook, offline: bool) -> float | None:
    """What may be spent per hour; of an offline job in all. Raises ``UsageError`` for a job with a span."""
    if offline and isinstance(cost, Money) and cost.hours is not None:
        raise UsageError(
            "--max-cost of an offline job is a sum, not one per span of time",
            because="a job is paid for once",
            hint=f"--max-cost {cost.amount:g}",
        )
    return prices.per_hour("--max-cost", cost)


@dataclass(frozen=True, kw_only=True)
class SpaceAsked:
    """Where to look; the fields are those of :class:`inferplan.planning.space.Space`.

    Raises ``UsageError`` for degrees that need more devices than ``most``.
    """

    gpus: tuple[Counted, ...] = ask(
        "--gpu",
        Text(lambda text: tuple(map(counted_device, parse_values(text)))),
        "Accelerators; 8x-h100: at most eight [data-centre GPUs on providers' price lists].",
        (),
        metavar="LIST",
    )
    quants: tuple[str | None, ...] | None = ask(
        "--quant",
        Text(lambda text: tuple(None if one == NATIVE else one for one in parse_values(text)) or None),
        "Formats; native is the checkpoint's own [those of native, fp8, int8, w4a16, nvfp4, mxfp4 that the device "
        "runs].",
        None,
        metavar="LIST",
    )
    quality: float | None = field(default=None, metadata=QUALITY)
    kv: str | None = ask(
        "--kv",
        Text(),
        "Format of the KV cache [as --quant; it is 16 bits wide for most formats, nvfp4 included].",
        None,
        metavar="FORMAT",
    )
    most: int | None = ask(
        "--most",
        Whole(most=MOST_DEGREE),
        "Most GPUs per replica [8, or the product of the degrees].",
        None,
    )
    tp: Counts = ask("--tp", _tried("--tp"), "Tensor parallelism [1,2,4,...].", None, metavar="COUNTS")
    pp: Counts = ask("--pp", _tried("--pp"), "Pipeline stages [1,2,4,...].", None, metavar="COUNTS")
    ep: Counts = ask("--ep", _tried("--ep"), "Expert groups [1 and all ranks].", None, metavar="COUNTS")
    dp: Counts = ask(
        "--dp", _tried("--dp"), "Attention data parallelism [1,2,4,... for experts].", None, metavar="COUNTS"
    )
    redundant: tuple[int, ...] = ask(
        "--redundant-experts",
        Text(_copies),
        "Copies of popular experts (EPLB) to compare with none, where experts are spread.",
        (0,),
        metavar="COUNTS",
    )
    two_batches: bool = ask(
        "--two-batch-overlap",
        Switch(),
        "Also try two half batches that overlap, where attention ranks exchange experts' rows.",
        False,
    )
    prefill_redundant: Counts = ask(
        "--prefill-redundant-experts",
        Text(_copies),
        "Copies to try in a separate pool for prompts. [as the others]",
        None,
        metavar="COUNTS",
    )
    prefill_two_batches: bool | None = ask(
        "--prefill-two-batch-overlap",
        Switch(both=True),
        "Try two half batches in a separate pool for prompts. [as the others]",
        None,
    )
    budgets: Counts = ask(
        "--token-budget", _tried("--token-budget"), "Tokens per step [512 to 16384].", None, metavar="COUNTS"
    )
    slots: tuple[int, ...] = ask(
        "--max-loras",
        _tried("--max-loras"),
        "Adapters in device memory at once, each number tried [1, 8, and all of --loras up to 64].",
        (),
        metavar="COUNTS",
    )
    aggregated: bool = ask("--aggregated", Switch(), "Do not consider separate prefill and decode pools.", False)
    caps: tuple[float, ...] = ask(
        "--power-cap",
        Text(_caps),
        "Watts per device to try, instead of its TDP: 700W,500W,400W.",
        (),
        metavar="LIST",
    )
    routing: Routing | None = ask(
        "--routing",
        Words(get_args(Routing)),
        "How requests are routed, simulated with all replicas together and without separate pools [round robin; "
        "later turns of a conversation go where the first went].",
        None,
    )
    calibration: str | None = ask(
        "--calibration", Text(), "Fitted constants [per GPU, if on file].", None, metavar="FILE"
    )
    anchor: str | None = ask(
        "--anchor",
        Text(),
        "Measured runs of one of the candidates, to correct it (inferplan anchor fit); no separate pools then.",
        None,
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        asked, given = self.most, self._given
        over = [f"--{name} {max(counts)}" for name, counts in given.items() if asked and max(counts) > asked]
        if asked and not over and self._least > asked:
            over = [" ".join(f"--{name} {min(counts)}" for name, counts in given.items() if name != "ep")]
        if over:
            raise UsageError(
                f"{over[0]} needs more devices than --most {asked}",
                because="--most is the largest number of GPUs in one replica",
                hint=f"--most {max(self._least, *(max(counts) for counts in given.values()))}, or smaller degrees",
            )

    @property
    def of_space(self) -> dict[str, Any]:
        """Formats, the least share of published scores that they keep, and degrees, by the names of a space."""
        return {"quants": self.quants, "quality": self.quality, **self.degrees}

    @property
    def degrees(self) -> dict[str, Counts]:
        """Degrees of parallelism by name."""
        return {"tp": self.tp, "pp": self.pp, "ep": self.ep, "dp": self.dp}

    @property
    def _given(self) -> dict[str, tuple[int, ...]]:
        return {name: counts for name, counts in self.degrees.items() if counts}

    @property
    def _least(self) -> int:
        """Devices that the smallest degrees need; experts live on the same ones."""
        return prod(min(counts) for name, counts in self._given.items() if name != "ep")

    @property
    def largest(self) -> int:
        """Devices of the largest replica: as many as the degrees make where that is not asked for."""
        return self.most or max(8, self._least, *(max(counts) for counts in self._given.values()))

    @property
    def roles(self) -> tuple[tuple[str, str], ...]:
        """Formats of tensor roles, as a request has them."""
        return (("kv", self.kv),) if self.kv else ()

    def require_formats(self, model: str, gpus: Sequence[str]) -> None:
        """Raise ``UsageError`` for a format that the model cannot have."""
        for quant in self.quants or ((None,) if self.roles else ()) if gpus else ():
            request = Request(model=model, gpu=gpus[0], quant=quant, roles=self.roles, engine="none")
            precision_of(request, load_model(model), load_hardware(gpus[0]))


@dataclass(frozen=True, kw_only=True)
class SizingAsked:
    """How replicas are counted, as :class:`inferplan.planning.option.Sizing`. survive: so many replicas, or ``node``.
    mtbf: seconds between failures of one GPU."""

    utilisation: float | None = ask(
        "--utilisation", Real(), "Load per replica, as a share of its capacity [0.8; offline 0.95].", None
    )
    confidence: float | None = ask(
        "--confidence",
        Real(),
        "Chance that each limit is kept: 0.5 is the prediction, 0.9 the slow end of its error. If no plan has it, "
        f"the question is refused [{USUAL:g} if an option with a known error keeps it, else {MIDDLE:g}].",
        None,
    )
    miss_cost: Money | float | None = ask(
        "--miss-cost",
        Text(partial(read_cost, "--miss-cost")),
        "Cost per hour in which a limit is missed [the cost of the replicas that would keep it].",
        None,
        metavar="MONEY",
    )
    max_cost: Money | float | str | None = ask(
        "--max-cost",
        Text(_most_cost),
        "Most to spend per hour, or 3000/month; for an offline job in all. With --people most: how many that serves.",
        None,
        metavar="MONEY",
    )
    spare: int = ask(
        "--spare",
        Whole(0, MOST_DEGREE),
        "Replicas beyond those needed (N+1); spares are not checked against the limits [0].",
        0,
    )
    survive: str | None = ask(
        "--survive",
        Text(),
        "Keep the limits, simulated, while this many replicas, or all of a node, are lost at a time: 1, node. No "
        "separate pools then.",
        None,
        metavar="WHAT",
    )
    restart: float | None = ask(
        "--restart",
        Quantity("seconds"),
        "With --survive: time until lost replicas take requests again [they are lost for good].",
        None,
    )
    mtbf: float | None = ask(
        "--mtbf",
        Quantity("seconds"),
        "Mean time between failures per GPU, of any cause, such as 2000d.",
        None,
    )

    def sizing(
        self,
        prices: PriceBook,
        power: PowerBudget | None,
        start: ColdStart | None,
        gpus: Sequence[Counted],
        offline: bool,
        ideal: bool,
    ) -> Sizing:
        """As a plan takes it. start: until what is lost is back. Raises ``UsageError`` as :meth:`_survived` and
        :func:`_spent`, and for money in a currency that the prices do not have."""
        most = _most_cost(self.max_cost) if isinstance(self.max_cost, str) else self.max_cost
        usual = MIDDLE if offline or ideal else USUAL
        owned = {one.gpu: one.number for one in gpus if one.number is not None}
        return Sizing(
            owned=OwnedGpus(owned) if owned else None,
            utilisation=self.utilisation if self.utilisation is not None else 0.95 if offline else 0.8,
            spare=self.spare,
            confidence=usual if self.confidence is None else self.confidence,
            insists=self.confidence is not None,
            miss_cost=prices.per_hour("--miss-cost", self.miss_cost),
            max_cost=_spent(most, prices, offline),
            power=power,
            survive=self._survived(start, [one.gpu for one in gpus]),
        )

    def _survived(self, start: ColdStart | None, gpus: Iterable[str]) -> Survive | None:
        """What shall be survived. Raises ``UsageError`` for options that say nothing without it, and for nodes of GPUs
        of which nobody says how many stand in one.
        """
        what = self.survive
        if what is None:
            if start is not None or self.mtbf is not None:
                raise UsageError("a time to restart or between failures needs --survive", hint="--survive 1")
            return None
        if what != "node" and not (what.isdecimal() and 1 <= int(what) <= MOST_DEGREE):
            raise UsageError(f"--survive {what} is neither a number of replicas nor a node", hint="--survive 1")
        unknown = [gpu for gpu in gpus if load_hardware(gpu).node is None]
        if what == "node" and unknown:
            raise UsageError(
                f"the number of {' or '.join(unknown)} per node is not known",
                because="sites differ, and their hardware files do not state it",
                hint="--survive K for K replicas, or other devices (--gpu h100-sxm)",
            )
        if start is None and self.mtbf is not None:
            raise restart_missing("is lost")
        start = start or ColdStart(rest=inf)
        return Survive(start=start, replicas=None if what == "node" else int(what), mtbf=self.mtbf)
