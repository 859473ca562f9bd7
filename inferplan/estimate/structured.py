"""Structured decoding: masks of the tokens that a grammar allows, filled by the host beside every step.

A mask is a bit for each token of the vocabulary in words of 32: ``4 ceil(V/32)`` bytes a sequence and step. vLLM
launches the forward pass, fills the masks meanwhile and samples when both are done (``v1/engine/core.py``, ``step``:
``execute_model(non_block=True)``, ``get_grammar_bitmask``, ``sample_tokens``), as XGrammar proposes (2411.15100):

    step = host + max(forward, masks) + copy + apply          masks behind the forward pass
    step = host + forward + masks + copy + apply              masks before it

A sequence has a mask for each token that a step may write: with ``k`` drafted tokens ``1 + k``, all filled one after
another, for the grammar steps through the drafts (``v1/structured_output/__init__.py``, ``grammar_bitmask``: threads
are for ``max_num_spec_tokens == 0``). A sequence that thinks has a mask that lets everything pass, which nobody fills,
but which is copied and applied as the others are (``should_fill_bitmask``, unless ``enable_in_reasoning``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.devices.engine import Engine, MaskFilling, MaskTimes
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import host_seconds
from inferplan.estimate.resting import PARTS, Resting
from inferplan.estimate.roofline import price
from inferplan.features import require_together
from inferplan.fields import SHARE, Quantity, Switch, Text, Topic, Whole, ask, need, question_record, require_limits
from inferplan.terms import Naming, plain
from inferplan.units import Array, Num, format_time
from inferplan.work.ops import Elementwise

_WORD = 32
"""Tokens of a word of a mask, which is an int32."""
_MOST_KNOWN = 4096
"""Kinds of steps whose masks are kept."""


@dataclass(frozen=True, kw_only=True)
class Structured:
    """Structured decoding as it is asked for. mask_time: of one mask; or library: of its masks the published mean
    without the slowest hundredth. overlapped: masks are filled while the device computes. bandwidth: from the host to
    the device; ``None`` for its host link on file.

    Raises ``UsageError`` for a share outside (0, 1], for a mask that takes no time, and unless one of time and library
    is given.
    """

    topic: ClassVar = Topic(
        "structured decoding",
        "no request is structured",
        "--structured-share 0.3 --mask-time 40us --host-cores 32 (docs/structured.md says where such numbers are "
        "published), or --mask-library xgrammar in the place of --mask-time",
        "the time of a mask depends on your grammar, its engine and your CPU",
        either=("--mask-time", "--mask-library"),
    )
    share: float = field(
        metadata=need(
            "--structured-share",
            SHARE,
            "Share of requests whose answers follow a grammar or JSON schema (docs/structured.md).",
            record="share",
        )
    )
    mask_time: float | None = ask(
        "--mask-time",
        Quantity("seconds", above=True),
        "CPU time per mask (one per sequence and step), such as 40us [as --mask-library says].",
        None,
    )
    library: str | None = ask(
        "--mask-library",
        Text(),
        "Library that fills masks: xgrammar, llguidance or outlines, at the published mean over 11,306 schemas without "
        "the slowest hundredth (docs/structured.md).",
        None,
        metavar="NAME",
    )
    cores: int = field(metadata=need("--host-cores", Whole(), "CPU cores of the host that fill masks."))
    bandwidth: float | None = ask(
        "--mask-bandwidth",
        Quantity("bytes/s"),
        "Bandwidth from the host to the device, for masks that are copied [on file].",
        None,
    )
    overlapped: bool = ask("--mask-overlap", Switch(both=True), "Fill masks while the device computes [yes].", True)

    def __post_init__(self) -> None:
        require_limits(self)
        if (self.mask_time is None) == (self.library is None):
            neither = "structured decoding needs --mask-time or --mask-library"
            both = "--mask-time and --mask-library both state the time per mask"
            raise UsageError(
                neither if self.mask_time is None else both,
                because=self.topic.because,
                hint="--mask-time 40us, or --mask-library llguidance",
            )

    def to_dict(self) -> dict[str, Any]:
        """As it is asked for; units are in the keys."""
        return question_record(self)

    def each(self, filling: MaskFilling) -> float:
        """Seconds of one mask. Raises ``UsageError`` for a library that the engine does not fill masks with, or of
        which no time is on file."""
        if self.mask_time is not None:
            return self.mask_time
        assert self.library is not None
        return self.published(filling).usual

    def published(self, filling: MaskFilling) -> MaskTimes:
        """What is published of the library's masks."""
        found = filling.times.get(self.library or "")
        if found is None:
            raise UsageError(
                f"no time of a mask of {self.library!r} is on file for this engine",
                because=f"it is known to fill masks with {', '.join(filling.libraries) or 'none'}",
                hint=f"--mask-library {next(iter(filling.times), 'xgrammar')}, or --mask-time 40us as you measured it",
            )
        return found

    def fill(self, masks: int, filling: MaskFilling, serial: bool = False) -> float:
        """Seconds until an engine has filled so many masks. serial: one after another however many there are."""
        each = self.each(filling)
        return masks * each if serial else filling.seconds(masks, each, self.cores)

    @property
    def part(self) -> Resting:
        """What the price of masks rests on, as one part of a price."""
        return PARTS["structured"].on("formula" if self.library is None else "published")

    def rests_on(self, filling: MaskFilling) -> str:
        """What the time of a mask rests on, for people."""
        if self.library is None:
            return "masks: --mask-time as given; when they are filled is read from the engine's source"
        found = self.published(filling)
        spread = f"median {format_time(found.median)}, p99 {format_time(found.p99)}, mean {format_time(found.mean)}"
        return (
            f"masks of {self.library} take {format_time(found.usual)} each, the published mean of 11,306 schemas "
            f"without the slowest hundredth ({spread}; MaskBench, 2025): give --mask-time for yours"
        )


def mask_filling(engine: Engine) -> MaskFilling:
    """How an engine fills masks. Raises ``UsageError`` for one of which nobody here has read it."""
    if engine.masks is None:
        raise UsageError(
            f"the cost of masks under {engine.name} is not known",
            because="when they are filled, and by how many threads, is known only for vLLM and SGLang",
            hint="--engine vllm, or leave --structured-share out",
        )
    return engine.masks


def masks_record(structured: Structured, engine: Engine) -> dict[str, Any]:
    """What is asked of masks as JSON has it, with the seconds of one and what they rest on."""
    filling = mask_filling(engine)
    return structured.to_dict() | {"mask_s": structured.each(filling), "rests_on": structured.rests_on(filling)}


class MaskRows(NamedTuple):
    """The sequences of a step that get a token. decodes: with a mask for each token that they may write. prompts: with
    one, for their first. thinking, first_thoughts: the same of those whose mask lets everything pass, so that nobody
    fills it.
    """

    decodes: int
    prompts: int = 0
    thinking: int = 0
    first_thoughts: int = 0


class _OfBatch(NamedTuple):
    """What the masks of a batch take. fill: seconds to fill each number of them that there may be, rising. chance,
    seconds: of each entry and all behind it, the chance, and the sum of chance times seconds; one more entry of 0 ends
    both. after: mean seconds behind the forward pass.
    """

    fill: Array
    chance: Array
    seconds: Array
    after: float


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedSteps:
    """What masks add to the steps of a deployment, of one attention rank. width: tokens that a step may write for each
    sequence, drafts and one. together: answers of each prompt, which share its grammar and decode side by side.

    Of a batch of B sequences a binomial number is structured, for the two kinds of requests are alike but for their
    masks: what is added is its mean over them; of answers of the same prompt all are or none. Raises ``UsageError``
    where the engine's way is not known.
    """

    deployment: Deployment
    structured: Structured
    width: int = 1
    together: int = 1

    def __post_init__(self) -> None:
        filling = mask_filling(self.deployment.engine)
        self.structured.each(filling)
        for name, asked in (("drafts", self.width > 1), ("pipeline", self.deployment.parallel.pp > 1)):
            if asked and name not in filling.beside:
                raise UsageError(
                    f"masks with {name} are not known of {self.deployment.engine.name}",
                    because="the order of filling is known only for vLLM",
                    hint="--engine vllm, or leave --structured-share out",
                )
        if self.deployment.parallel.pp > 1 and not self.structured.overlapped:
            raise UsageError(
                "masks before the forward pass of a pipeline are not known for any engine",
                because="the engine that is known launches the pass first, and fills masks while it runs",
                hint="leave --no-mask-overlap out",
            )

    @property
    def mask_bytes(self) -> float:
        """Bytes of a mask."""
        return 4.0 * ceil(self.deployment.model.vocab / _WORD)

    def copied(self, masks: Num) -> Num:
        """Seconds in which so many masks come from the host. Raises ``MissingFactError`` where no link is known."""
        given, hardware = self.structured.bandwidth, self.deployment.hardware
        if given is None and hardware.host_link is None:
            raise MissingFactError(
                f"the bandwidth from the host to {hardware.name} is not on file",
                because="host_link of its hardware YAML is absent",
                hint="--mask-bandwidth 63GB/s (PCIe 5.0 x16, one direction)",
            )
        return masks * self.mask_bytes / (hardware.to_host.bandwidth if given is None else given)

    def operator(self, masks: Num) -> Elementwise:
        """What the device does with so many masks: it reads their bits and the logits, and writes these."""
        base, vocab = self.deployment.precision.base, self.deployment.model.vocab
        return Elementwise(name="mask", ranks=1, tokens=masks, width=vocab, base=base, reads=1 + 1 / (8 * base.width))

    def applied(self, masks: Num) -> Num:
        """Seconds in which the device reads and writes the logits of so many sequences."""
        op = self.operator(masks)
        return price(op, *self.deployment.runs_on(op)).total

    @cached_property
    def _known(self) -> dict[MaskRows, _OfBatch]:
        return {}

    @cached_property
    def _behind(self) -> dict[int, Array]:
        return {}

    def _after(self, size: int) -> Array:
        """Seconds behind the forward pass of 0 to ``size`` masks."""
        if size not in self._behind:
            masks = np.arange(1.0, size + 1)
            self._behind[size] = np.concatenate([[0.0], np.asarray(self.copied(masks) + self.applied(masks))])
        return self._behind[size]

    @cached_property
    def _filled_in(self) -> dict[int, Array]:
        return {}

    def _fills(self, most: int) -> Array:
        """Seconds to fill 0 to ``most`` masks."""
        if most not in self._filled_in:
            filling, serial = mask_filling(self.deployment.engine), self.width > 1
            times = [self.structured.fill(count, filling, serial) for count in range(most + 1)]
            self._filled_in[most] = np.array(times)
        return self._filled_in[most]

    def _of(self, rows: MaskRows) -> _OfBatch:
        if rows not in self._known:
            chance, everybody = (
                self._chances(rows.decodes, rows.prompts),
                self._chances(rows.decodes + rows.thinking, rows.prompts + rows.first_thoughts),
            )
            most, size = len(chance), 1 << (len(everybody) - 1).bit_length()
            fill = self._fills(size)[:most]
            order = np.argsort(fill, kind="stable")  # more masks may take less time: beyond some, threads share them
            chances = chance[order].astype(np.float64)
            after = float(np.sum(everybody * self._after(size)[: len(everybody)]))
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            self._known[rows] = _OfBatch(fill[order], _and_later(chances), _and_later(chances * fill[order]), after)
        return self._known[rows]

    def _chances(self, decodes: int, prompts: int) -> npt.NDArray[np.float64]:
        """The chance of 0, 1, ... masks of so many sequences."""
        share, most = self.structured.share, self.width * decodes + prompts
        if share == 1:
            return np.equal(np.arange(most + 1), most).astype(np.float64)
        if self.width == self.together == 1:
            return binomial(most, share)
        return np.convolve(self._grouped(decodes, self.width), self._grouped(prompts, 1))

    def _grouped(self, sequences: int, each: int) -> npt.NDArray[np.float64]:
        """The same of sequences with ``each`` masks, of which those of a prompt go together."""
        share, (groups, rest) = self.structured.share, divmod(sequences, self.together)
        chances = np.zeros(groups * self.together * each + 1)
        chances[:: self.together * each] = binomial(groups, share)
        if not rest:
            return chances
        last = np.zeros(rest * each + 1)
        last[0], last[-1] = 1.0 - share, share
        return np.convolve(chances, last)

    def filled(self, rows: MaskRows) -> float:
        """Mean seconds in which the masks of a step are filled."""
        return float(self._of(rows).seconds[0])

    def beyond(self, batch: int | MaskRows, forward: Num) -> Num:
        """Mean seconds that masks add to a step of ``batch`` rows whose kernels take ``forward`` seconds."""
        rows = batch if isinstance(batch, MaskRows) else MaskRows(batch)
        if not any(rows):
            return 0.0
        of = self._of(rows)
        if not self.structured.overlapped:
            before: Num = forward * 0.0 + (float(of.seconds[0]) + of.after)
            return before
        longer = np.searchsorted(of.fill, forward, side="right")
        found = np.maximum(of.seconds[longer] - forward * of.chance[longer], 0.0) + of.after
        return float(found) if np.ndim(found) == 0 else np.asarray(found)


def _and_later(values: Array) -> Array:
    """The sum of each value and those behind it, and the 0 behind the last."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def binomial(count: int, share: float) -> npt.NDArray[np.float64]:
    """The chance of 0 to ``count`` of so many, each with a chance of ``share`` in (0, 1)."""
    steps = np.arange(1.0, count + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((count + 1 - steps) / steps))])
    numbers = np.arange(count + 1.0)
    found: npt.NDArray[np.float64] = np.exp(logs + numbers * np.log(share) + (count - numbers) * np.log1p(-share))
    return found


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StructuredEstimate(Estimate):
    """A static batch of which a share of the requests follows a grammar; its mean figures."""

    structured: Structured

    def __post_init__(self) -> None:
        require_together("estimate", self.features)

    @property
    def features(self) -> set[str]:
        return super().features | {"structured"}

    @property
    def rests_on(self) -> dict[str, Resting]:
        return super().rests_on | {"structured": self.structured.part}

    @cached_property
    def steps(self) -> MaskedSteps:
        """What masks add to its steps."""
        return MaskedSteps(deployment=self.deployment, structured=self.structured)

    def _forward(self, seconds: Num) -> Num:
        return seconds - host_seconds(self.deployment, self.load.batch)

    def _added(self, seconds: Num) -> Num:
        return self.steps.beyond(int(self.load.batch), self._forward(seconds))

    def _token_seconds(self, past: Num) -> Num:
        seconds = super()._token_seconds(past)
        return seconds + self._added(seconds)

    def _first(self, name: Naming = plain) -> Num:
        first = super()._first(name)
        return first + self._added(self.prefill.time)

    @property
    def plain_tpot(self) -> Num:
        """Time per output token without masks."""
        return Estimate(deployment=self.deployment, load=self.load).tpot
