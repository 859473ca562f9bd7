"""What a serving engine of a version does by default: how it sizes its cache, its token budget, its pages."""

import re
from dataclasses import replace
from math import ceil
from typing import Annotated, Any, Literal, Self

from inferplan.devices.constants import memory_class
from inferplan.devices.hardware import HardwareSpec, Segment
from inferplan.devices.releases import release_number
from inferplan.errors import UnknownNameError, UsageError
from inferplan.fields import SHARE, Switch, Whole, need, option_fields
from inferplan.spec import Field, Spec, model_validator
from inferplan.units import Bytes, Num, Seconds
from inferplan.work.exchange import ExchangeRules
from inferplan.work.formats import Precision, find_format
from inferplan.work.ops import MULTI_HEAD
from inferplan.work.parallel import Parallelism

KvRule = Literal["of_total", "static_of_total", "of_free", "all"]
"""of_total: KV = fraction x memory - weights - activations - context (vLLM). static_of_total: the fraction holds
weights and KV, the rest is for everything else (SGLang). of_free: KV = fraction x what is free after weights and a
warm-up (TensorRT-LLM). all: everything that is left after a fixed margin (llama.cpp)."""


class MemoryTier(Spec):
    """Defaults for devices of at least so much memory; the first tier that fits applies."""

    memory_at_least: Bytes
    not_named: list[str] = []
    """Device names that this tier leaves out, whatever their memory."""
    token_budget: int = Field(ge=1)
    """Tokens a step may hold (``max_num_batched_tokens``, ``chunked_prefill_size``)."""
    max_sequences: int = Field(ge=1)


Policy = Literal["vllm", "sglang", "trtllm", "static"]
"""What answers call the way in which steps are filled. vllm: decode first, prompts fill the rest of the token budget.
sglang: waiting prompts first, alone in their step. trtllm: as vllm, admission by what a request may grow to. static: a
batch is finished before the next. What else an engine does is :class:`Batching`."""


class PromptCadence(Spec):
    """A flag that keeps prompts out of most steps while requests decode (:mod:`inferplan.devices.cadence`).

    since: the first release that has it. alone_since: the first that heeds it without attention ranks that share
    experts, where that is another.
    """

    source: str
    option: Literal["prefill_schedule_interval", "prefill_decode_interval"]
    since: str
    alone_since: str = ""
    delayed: bool = False
    """Attention ranks that share experts alone heed it, and behind :class:`PromptDelayer` alone (ATOM)."""


class FilledSteps(Spec):
    """Prompts of attention ranks are held back until they fill a step (ATOM).

    target: their tokens over the budgets of all ranks. stall: steps in which they grew no more, after which nobody
    waits any longer. partial: steps after which a prompt that is computed in part waits no longer. full: the share of
    a rank's cache in use from which none wait.
    """

    target: float = Field(gt=0.0, le=1.0)
    stall: int = Field(ge=1)
    partial: int = Field(ge=1)
    full: float = Field(gt=0.0, le=1.0)


class PromptDelayer(Spec):
    """Attention ranks that share experts hold prompts back for each other (:mod:`inferplan.serving.prompt_delay`).

    since: the first release whose rule is known. passes: the most steps for which they do. counts_first: the step of
    which it lets them go is one of those (SGLang). fills: beside the wait for each other they wait to fill a step;
    absent: for room to start them all (SGLang).
    """

    source: str
    since: str
    passes: int = Field(ge=1)
    counts_first: bool = False
    fills: FilledSteps | None = None


class Batching(Spec):
    """How an engine fills its steps."""

    source: str = ""
    mixed: bool = False
    """Decodes and prompts share a step."""
    lanes_share_slots: bool = False
    """Each of the batches in flight through a pipeline has an equal share of the slots; else the first that asks."""
    pieces_apart: bool = False
    """A piece of a prompt waits until the one before it has left the pipeline."""
    holds_prompts_for_ranks: bool = False
    """Attention ranks can be told to hold prompts back until each of them has one."""
    cadence: PromptCadence | None = None
    """Its flag that keeps prompts out of most steps."""
    delayer: PromptDelayer | None = None
    """Absent where attention ranks hold none back, or nobody has read how."""


class MaskTimes(Spec):
    """What a mask of a library takes, over many schemas: seconds of one thread. first: of the first mask of a schema,
    with its compilation, the median."""

    mean: Seconds
    p25: Seconds
    median: Seconds
    p75: Seconds
    p90: Seconds
    p95: Seconds
    p99: Seconds
    first: Seconds

    @property
    def usual(self) -> float:
        """The mean without the slowest hundredth of masks, by lines between the percentiles; at most the mean."""
        times = (0.0, self.p25, self.median, self.p75, self.p90, self.p95, self.p99)
        shares = (0.25, 0.25, 0.25, 0.15, 0.05, 0.04)
        below = sum(share * (low + high) / 2 for share, low, high in zip(shares, times, times[1:]))
        return min(below / sum(shares), self.mean)


class MaskFilling(Spec):
    """How an engine's host fills the masks of structured decoding."""

    source: str
    serial: int | None = Field(default=None, ge=0)
    """Up to so many masks are filled one after another; ``None``: all of them."""
    piece: int = Field(default=1, ge=1)
    """More are cut into pieces of so many masks, ..."""
    threads: int = Field(default=1, ge=1)
    """... which half the cores fill, with so many threads at most."""
    beside: list[Literal["drafts", "pipeline"]] = []
    """What else its way with masks was read of."""
    libraries: dict[str, str] = {}
    """The libraries that it fills them with, and its own names for them."""
    times: dict[str, MaskTimes] = {}
    """What their masks take (``configs/masks.yaml``), by the names there."""

    def seconds(self, masks: int, each: float, cores: int) -> float:
        """Seconds until so many masks are filled that take ``each``: pieces go to the thread that is free first."""
        if self.serial is None or masks <= self.serial:
            return masks * each
        threads, pieces = max(1, min(cores // 2, self.threads)), ceil(masks / self.piece)
        rounds, last = ceil(pieces / threads), masks - (pieces - 1) * self.piece
        alone = (pieces - 1) % threads == 0  # the last piece, which may be a smaller one, has a round of its own
        return each * ((rounds - 1) * self.piece + last if alone else rounds * self.piece)


class TokenFilters(Spec):
    """How an engine filters logits before it draws a token (:mod:`inferplan.work.filters`)."""

    source: str
    kernels: dict[str, str] = {}
    """By the maker of the device: the kernel for top-k and top-p, by its name in ``configs/filters.yaml``."""
    untimed: list[str] = []
    """Filters that it runs by another kernel, of which no time is on file."""
    penalty_bytes: float | None = Field(default=None, gt=0.0)
    """Bytes that its kernel for penalties reads and writes for each logit; ``None`` where that grows with the answer,
    or nobody has read it."""


class BeamSearching(Spec):
    """Where an engine searches with beams."""

    source: str
    way: Literal["inside", "outside"]
    """inside: a request has several sequences in the engine. outside: every beam is a request of one token, again for
    each token."""


Admission = Literal["prompt", "reserve", "ratio"]
"""What must find room in the cache before a request starts. prompt: its prompt (vLLM). reserve: prompt and output
(TensorRT-LLM, GUARANTEED_NO_EVICT). ratio: prompt, output, and a falling share of what others may still write
(SGLang)."""


RankChoice = Literal["router", "tokens"]
"""Who chooses among the attention ranks of a replica that make every step together. router: whoever sends requests, as
if each were an engine. tokens: the engine, the rank with the fewest prompt tokens of those that have not yet their even
share of the requests (TensorRT-LLM)."""


class SchedulerDefaults(Spec):
    """How a version composes its steps, beyond its policy."""

    source: str = ""
    chunked_prefill: bool = True
    """A prompt may be cut to fit what is left of the token budget."""
    prefix_caching: bool = False
    admission: Admission = "prompt"
    ranks: RankChoice = "router"
    growth_ratio: tuple[float, float, int] = (0.7, 0.098, 600)
    """For ``ratio``: first and last share of the remaining outputs that is held back, and the decode steps between."""
    longest_growth: int = 4096
    """For ``ratio``: output tokens of a new request that are counted at most."""

    def whole_prompts(self) -> "SchedulerDefaults":
        """The same where no prompt is cut, and none of it found: what an encoder reads in one pass (vLLM)."""
        return self.model_copy(update={"chunked_prefill": False, "prefix_caching": False})


class ServingConstants(Spec):
    """What a request and a step meet outside the kernels; all zero for no engine. See docs/serving.md."""

    source: str = ""
    latency: Seconds = 0.0
    """Client and server latency of each request, whatever its size."""
    front_request: Seconds = 0.0
    """Serial work of the front end for each request."""
    front_token: Seconds = 0.0
    """Serial work of the front end for each prompt token."""
    overlapped: bool = False
    """A step is composed while the one before it runs: arrivals join one step late."""
    seen_late: bool = False
    """Where steps are overlapped, clients see what a step has made when the next one is done; else with its own end."""
    eager_layer: Seconds = 0.0
    """Host time for each layer of a step that holds a prompt, which is launched kernel by kernel."""
    eager_adapted: Seconds | None = None
    """The same of a layer with LoRA adapters, whose kernels the host launches too; ``None``: no longer, as far as is
    known."""
    graph_tokens: int = Field(default=0, ge=0)
    """Steps of at most so many tokens replay captured graphs even where they hold a prompt: no eager floor."""
    graphs_hold_state: bool = True
    """Whether those graphs hold the mixers with a recurrent state, too; else the host launches those in every step."""
    eager_latent: float = Field(default=1.0, ge=1.0)
    """Factor on ``eager_layer`` for layers of latent attention, whose prompts take more kernels ..."""
    eager_latent_vendors: list[str] = []
    """... on the devices of these makers; on those of others the kernels are fused."""


class AttentionCalls(Spec):
    """How an engine calls attention in a step that holds decodes and prompts."""

    source: str = ""
    one_call: dict[str, list[str]] = {}
    """By format of the cache the devices, by the beginning of their names, on which one kernel takes both; elsewhere
    each has one of its own."""

    def joined(self, hardware: HardwareSpec, cache: str) -> bool:
        """Whether one kernel takes decodes and prompts with a cache of that format."""
        return any(hardware.name.startswith(name) for name in self.one_call.get(cache, []))


class HostCost(Spec):
    """What a step costs an engine's host where that was measured: seconds of every step, and of each sequence in it.

    ``None``: as for all engines (``configs/step.yaml``).
    """

    source: str
    host: Seconds | None = None
    sequence: Seconds | None = None


class WideExperts(Spec):
    """What a version can do with experts that are spread over ranks."""

    source: str = ""
    uneven: bool = False
    """Ranks may hold one expert more than others."""
    redundant: bool = False
    """Copies of popular experts in slots of their own, moved by a load balancer (EPLB)."""
    spread_dense: bool = False
    """Dense layers may be divided over all attention ranks."""
    two_batches: tuple[int, int] | None = None
    """Tokens of a rank from which a step that only decodes, and one that holds prompts, is cut into two half batches
    whose computation and exchange overlap; ``None`` where the engine has no such thing."""


CacheSending = Literal["after", "pieces", "layers"]
"""When the cache of a prompt leaves for the replica that decodes. after: when the whole prompt is computed. pieces:
each piece of a prompt that is cut when it is computed. layers: each layer of a piece when it is computed."""


FirstAnswer = Literal["prompts", "cache", "decodes"]
"""Where the client's first token comes from. prompts: the pool that made it, at once. cache: the pool that decodes, as
soon as the cache has its place there. decodes: that pool, with its first step."""


class PoolsApart(Spec):
    """What an engine does where prompts are computed apart from decoding. See docs/techniques/disaggregation.md."""

    source: str = ""
    sending: CacheSending = "after"
    first_token: FirstAnswer = "prompts"
    handoff: float = Field(default=0.0, ge=0.0)
    """Decode steps from the end of a transfer until the request may join the batch, beside the step that it waits for:
    servers shake hands, make room and look for what has come between two steps."""
    asked_twice: bool = False
    """A proxy asks the pool of prompts and, when that has answered, the pool that decodes: a request passes the front
    end of both."""
    one_checkpoint: str = ""
    """Where servers of both pools are seen to refuse each other's cache unless they started the same checkpoint; empty
    where nobody saw that."""
    reached: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of a link's rate at which the cache moves."""
    latency: Seconds = 0.0
    """Before the first byte of a transfer."""
    reached_source: str = ""
    reached_carried: bool = False
    """They were published of another engine's connector."""


WindowRule = Literal["window", "pool", "all"]
"""What layers that see a window or a chunk keep of a sequence. window: what they see. pool: the same, in a memory of
their own that has ``share`` of the tokens of the other layers' (SGLang). all: every token, as other layers do."""


class Windows(Spec):
    """How a version keeps the cache of layers that see a window or a chunk. See docs/formulas/memory.md."""

    source: str = ""
    keeps: WindowRule = "window"
    named: list[str] = []
    """Beginnings of the names of models that ``keeps`` holds for, where the engine goes by architecture: other models
    keep all. Empty: every model."""
    share: float = Field(default=1.0, gt=0.0, le=1.0)
    """For ``pool``: its tokens for each token of the other layers' memory."""
    steps: int = Field(default=0, ge=0)
    """Steps of a full token budget whose tokens are kept beside the window until they are settled: what a request must
    find free when it starts, and what the start-up check counts for the longest one."""
    staged: bool = False
    """Each pipeline stage adds such a step."""
    tokens: int = Field(default=0, ge=0)
    """Tokens that are kept beside the windows whatever the budget (llama.cpp's physical batch)."""
    spare_blocks: int = Field(default=0, ge=0)
    """Blocks of a window beyond its tokens, because it may start inside of one."""
    grouped: bool = False
    """Every block is one of equally many layers: kinds of layer are filled up to groups of one size."""
    logs_blocks: bool = False
    """The start-up line gives the blocks of one kind's share in tokens, instead of requests times their length."""

    def of(self, model: str) -> "Windows":
        """The rule for a model."""
        meant = not self.named or any(model.startswith(name) for name in self.named)
        return self if meant else self.model_copy(update={"keeps": "all"})

    @property
    def beside_entries(self) -> "Windows":
        """The rule for windows beside compressed entries, which engines keep in pools of their own (SGLang PR #23882,
        ``DSv4PoolConfigurator``): windows are let go, and how memory is shared out is not modelled."""
        return self.model_copy(update={"keeps": "window", "grouped": False})

    def flight(self, budget: Num, stages: int) -> Num:
        """Tokens of one pass through ``stages`` pipeline stages that are not settled, at a token budget."""
        return self.tokens + (self.steps + (stages if self.staged else 0)) * budget


class HostWeights(Spec):
    """When weights in the host's memory are copied to the device, which then multiplies by them."""

    source: str
    rows: int = Field(ge=1)
    """The fewest rows of a step for which they are; with fewer the host computes. Each physical batch
    (:attr:`Windows.tokens`) copies them anew."""


class EngineFormat(Spec):
    """A format that an engine is seen to read or to keep. flag: its own name."""

    flag: str = ""
    vendors: list[str] = []
    """Makers of devices on which it is; none: any."""
    devices: list[str] = []
    """Beginnings of their names; none: any."""
    needs: str = ""
    """The arithmetic that a device has to have, which tells one generation from the one before: bf16 came with Ampere,
    fp8 with Ada and Hopper, fp4 with Blackwell."""
    source: str = ""

    def runs_on(self, hardware: HardwareSpec) -> bool:
        """Whether it is seen to on a device."""
        return (
            (not self.vendors or hardware.vendor in self.vendors)
            and (not self.devices or hardware.name.startswith(tuple(self.devices)))
            and (not self.needs or self.needs in hardware.peak)
        )


class Caches(Spec):
    """The formats of an engine's KV cache beside that of its activations, which it needs not be told; the usual ones
    first."""

    source: str
    formats: dict[str, EngineFormat]


class EngineVersion(Spec):
    """The defaults of one version."""

    version: str
    source: str
    until: str = ""
    """The first version that these defaults no longer stand for, where the next ones on file stand for it."""
    serving: ServingConstants | None = None
    """What a request and a step meet outside the kernels, where it is not the engine's own."""
    step: HostCost | None = None
    """The same of its host."""
    batching: Batching | None = None
    """How it fills its steps, where that is not the engine's own."""
    checkpoints: dict[str, EngineFormat] | None = None
    """Formats of checkpoints that it loads, where these are not the engine's own."""
    caches: Caches | None = None
    """Formats of its cache, where these are not the engine's own."""
    makes: dict[str, str] = {}
    """Formats that it makes of a wide checkpoint as it loads, weights and inputs, and its own names for them."""
    commands: bool = True
    """Whether the options of its command line are known here."""
    kv_rule: KvRule = "of_total"
    memory_fraction: float | None = Field(default=None, gt=0.0, le=1.0)
    """``None``: computed from the device (SGLang)."""
    block_size: int = Field(default=16, ge=1)
    tiers: list[MemoryTier] = Field(min_length=1)
    sampler_bytes_per_logit: float = Field(default=4.0, ge=0.0)
    """Bytes of logits, probabilities and sort buffers for each (sequence, vocabulary entry) of the largest batch."""
    context: Bytes = 0.0
    """Driver context and libraries on each device."""
    communicator: Bytes = 0.0
    """Collective buffers, when there is more than one device."""
    graphs: Bytes = 0.0
    """Captured graphs that the cache size allows for; zero where this version does not."""
    scheduler: SchedulerDefaults = SchedulerDefaults.default()
    filters: TokenFilters | None = None
    """Absent where nobody has read how this version filters logits."""
    dense_short_prompts: bool = False
    """Prompts that sparse attention would choose whole run dense attention on expanded keys and are not scored."""
    norms_apart: bool = False
    """A norm over all heads is a kernel for queries and one for keys; where ranks add up its sums of squares, one more
    of each takes them. Else one kernel for both, behind the sums."""
    windows: Windows = Windows.default()
    host_weights: HostWeights | None = None
    """``None``: the host computes with what lies in its memory, whatever the rows."""
    wide: WideExperts = WideExperts.default()
    two_batch_overlap: bool = False
    """Steps are cut into two half batches that overlap."""
    prefill_schedule_interval: int | None = Field(default=None, ge=1)
    """While requests decode, prompts enter every so many steps (vLLM; :mod:`inferplan.devices.cadence`); ``None``: the
    flag is not given, and they enter each."""
    prefill_decode_interval: int | None = Field(default=None, ge=0)
    """So many steps that only decode follow each with prompts (SGLang, ATOM); ``None``: the flag is not given, and none
    do."""
    enable_prefill_delayer: bool = False
    """Attention ranks hold prompts back for each other (SGLang, ATOM)."""
    prefill_delayer_max_delay_passes: int | None = Field(default=None, ge=1)
    """The most steps for which they do; ``None``: those of :class:`PromptDelayer`."""
    block_inputs: str = ""
    """The format that inputs of quantised matmuls are multiplied in where the device has its arithmetic; elsewhere, and
    where it is empty, they keep theirs."""
    expert_multiple: dict[str, int] = {}
    """By expert format: the multiple that its kernels pad an expert's last dimension to."""
    notes: list[str] = []

    @model_validator(mode="after")
    def _ends_later(self) -> Self:
        if self.until and _key(self.until) <= _key(self.version):
            raise ValueError(f"until: {self.until!r} is no version after {self.version}")
        return self

    def tier(self, hardware: HardwareSpec) -> MemoryTier:
        """The defaults for a device."""
        for tier in self.tiers:
            if hardware.usable >= tier.memory_at_least and not hardware.name.startswith(tuple(tier.not_named)):
                return tier
        return self.tiers[-1]


CADENCE: dict[str, int | None] = {
    "prefill_schedule_interval": None,
    "prefill_decode_interval": None,
    "enable_prefill_delayer": False,
    "prefill_delayer_max_delay_passes": None,
}
"""Flags that keep prompts out of most steps, and what each is where it is not given."""


class EngineFlags(Spec):
    """The flags that a user sets instead of the defaults; ``None`` keeps the default."""

    memory_fraction: Annotated[
        float | None,
        need("--gpu-memory-utilization", SHARE, "Share of the device's memory that the engine may use."),
    ] = None
    token_budget: Annotated[int | None, need("--max-num-batched-tokens", Whole(), "Token budget per step.")] = None
    max_sequences: Annotated[int | None, need("--max-num-seqs", Whole(), "Most sequences per step.")] = None
    block_size: Annotated[int | None, need("--block-size", Whole(), "Tokens of a KV page.")] = None
    two_batch_overlap: Annotated[
        bool,
        need(
            "--two-batch-overlap",
            Switch(),
            "Cut each step into two half batches: one exchanges experts while the other computes.",
        ),
    ] = False
    prefill_schedule_interval: Annotated[
        int | None,
        need(
            "--prefill-schedule-interval",
            Whole(),
            "vLLM: while requests decode, prompts enter only every N-th step. [1]",
        ),
    ] = None
    prefill_decode_interval: Annotated[
        int | None,
        need(
            "--prefill-decode-interval",
            Whole(0),
            "SGLang, and ATOM behind its delayer: steps that only decode after each step with prompts. [0]",
        ),
    ] = None
    enable_prefill_delayer: Annotated[
        bool,
        need(
            "--enable-prefill-delayer",
            Switch(),
            "SGLang and ATOM with --dp of a model with experts: attention ranks hold prompts back for each other.",
        ),
    ] = False
    prefill_delayer_max_delay_passes: Annotated[
        int | None,
        need("--prefill-delayer-max-delay-passes", Whole(), "The most steps for which they do. [SGLang 30, ATOM 200]"),
    ] = None
    backends: tuple[tuple[str, str], ...] = ()
    """Kernels by role (:data:`inferplan.devices.releases.KERNEL_ROLES`) where they are not the engine's usual ones."""

    @model_validator(mode="before")
    @classmethod
    def _in_range(cls, given: Any) -> Any:
        """Raise ``UsageError`` for a number that no flag takes, by the name of its option."""
        values = given if isinstance(given, dict) else {}
        for name, option in option_fields(cls).items():
            if isinstance(values.get(name), (int, float)):
                option.kind.require(option.name, values[name])
        return given

    @property
    def of_ranks(self) -> bool:
        """Whether any is set that may change with the division of a model over devices."""
        return self.two_batch_overlap or self.keeps_prompts_out

    @property
    def keeps_prompts_out(self) -> bool:
        """Whether any is about the cadence of prompts."""
        return self.enable_prefill_delayer or any(
            getattr(self, name) is not None for name in CADENCE if name != "enable_prefill_delayer"
        )

    @property
    def of_one_device(self) -> "EngineFlags":
        """Those that hold on one device as on several: nothing is exchanged there, and nobody shares experts."""
        return self.model_copy(update={"two_batch_overlap": False, "backends": (), **CADENCE})

    def applied(self, version: EngineVersion) -> EngineVersion:
        """The version with these flags in place of its defaults."""
        own = {"token_budget": self.token_budget, "max_sequences": self.max_sequences}
        tier_update = {name: value for name, value in own.items() if value is not None}
        same = ("memory_fraction", "block_size", *CADENCE)
        rest = {name: getattr(self, name) for name in same}
        update: dict[str, object] = {name: value for name, value in rest.items() if value is not None}
        if tier_update:
            update["tiers"] = [tier.model_copy(update=tier_update) for tier in version.tiers]
        if self.two_batch_overlap:
            update["two_batch_overlap"] = True
        return version.model_copy(update=update)


class OwnKernels(Spec):
    """Constants of kernels that an engine runs whatever the device's library, for the devices that it names."""

    file: str
    """The name of a file in ``configs/calibration``."""
    vendors: list[str] = []
    """Makers; none: any."""
    memory: Literal["hbm", "other"] | None = None
    """The class of memory; absent: either."""
    segments: list[Segment] = []
    """What the devices are sold for; none: anything."""
    kind: str = ""
    """How the kind of memory begins (``DDR``: the memory of a processor's sockets); empty: any."""
    reads: float | None = Field(default=None, gt=0.0, le=1.0)
    """The most of the memory's bandwidth that kernels reach there, until somebody measures the device."""
    reads_experts: float | None = Field(default=None, gt=0.0, le=1.0)
    """The same of the kernels that multiply by experts; ``None``: as of all."""
    sockets: dict[int, float] = {}
    """What takes the place of ``reads_experts`` where so many sockets are read together; others are not known."""
    flop: dict[str, float] = {}
    """FLOP of a core in a cycle of its base clock that kernels of experts reach, by the format of the weights."""
    flop_needs: dict[str, float] = {}
    """By format the FLOP that the peak of a processor has for a core in a cycle, below which that is not known."""
    cores: dict[str, dict[str, float]] = {}
    """The same of the kernels of a whole model, by kernel and format of the weights; ``any``: of all others."""
    narrow: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share of ``cores`` of processors with less than 64 FLOP a core and cycle in 16 bits: AVX2."""
    waits: Seconds = 0.0
    """Seconds of each layer whose experts the host computes, beyond the kernels of both sides."""
    source: str = ""
    """Of ``reads``, ``flop``, ``cores`` and ``waits``."""

    def hold_for(self, hardware: HardwareSpec) -> bool:
        """Whether these are the constants of a device."""
        return (
            (not self.vendors or hardware.vendor in self.vendors)
            and self.memory in (None, memory_class(hardware))
            and (not self.segments or hardware.segment in self.segments)
            and hardware.memory.kind.startswith(self.kind)
            and hardware.sockets in (1, *self.sockets)
        )

    def experts_of(self, hardware: HardwareSpec) -> float | None:
        """The share of the memory's bandwidth of kernels of experts on a device; ``None``: as of all."""
        return self.sockets.get(hardware.sockets, self.reads_experts)


class LibraryRuns(Spec):
    """A kernel library that an engine calls, and what for. Empty lists: for all there are."""

    library: str
    kernels: list[str] = []
    """Beginnings of the names of kernels."""
    formats: list[str] = []
    """Formats, without the size of a head (``bf16``, ``bf16-kv-fp8``)."""
    devices: list[str] = []
    """Beginnings of the names of devices."""

    def covers(self, library: str, kernel: str, label: str, device: str) -> bool:
        """Whether it is this library for that kernel in that format on that device."""
        formats = {label, label.removesuffix(MULTI_HEAD).rsplit("-d", 1)[0]}
        return (
            library == self.library
            and (not self.kernels or kernel.startswith(tuple(self.kernels)))
            and (not self.formats or bool(formats & set(self.formats)))
            and (not self.devices or device.startswith(tuple(self.devices)))
        )


class Libraries(Spec):
    """The kernel libraries that an engine calls: constants measured of them are those of the engine's own kernels."""

    source: str = ""
    every: bool = False
    """Whatever was measured stands for itself: there is no engine."""
    runs: list[LibraryRuns] = []

    def hold(self, libraries: str, kernel: str, label: str, device: str) -> bool:
        """Whether the engine runs that kernel with these libraries (``+`` between several)."""
        return self.every or all(
            any(one.covers(name, kernel, label, device) for one in self.runs) for name in libraries.split("+")
        )


class LentKernels(Spec):
    """Another engine's kernels stand for an engine's own, which nobody has timed."""

    engine: str
    source: str
    """Why they are alike."""
    server: bool = False
    """Its server is the other's: every field that its file does not state is the other's, of each of its versions that
    of the other's newest, apart from ``checkpoints``."""


class RunsOn(Spec):
    """The makers of the devices that an engine runs on."""

    vendors: list[str]
    source: str


class UsualFor(Spec):
    """What an engine is taken for where none is named."""

    vendors: list[str] = []
    """Makers of devices."""
    processors: bool = False
    """Whether of processors, too."""
    suffixes: list[str] = []
    """How the names of its checkpoints end."""
    beside: list[Segment] = []
    """Segments of devices on which it is tried beside the usual one, where somebody asks what their GPUs hold."""


class Narrowing(Spec):
    """The 16 bits in which an engine runs a checkpoint of 32 where nobody names a format. encoders, others: by what the
    model does. brain: families that take no fp16, and run in bf16."""

    encoders: Literal["fp16", "bf16"]
    others: Literal["fp16", "bf16"]
    brain: list[str] = []
    source: str

    def wide(self, family: str, encodes: bool) -> str:
        """The format of a model of ``family``."""
        if family in self.brain:
            return "bf16"
        return self.encoders if encodes else self.others


class EngineSpec(Spec):
    """An engine and the versions whose defaults are on file, oldest first."""

    name: str
    source: str = ""
    policy: Policy = "static"
    """How it schedules prefill beside decode; see docs/serving.md."""
    serving: ServingConstants = ServingConstants.default()
    step: HostCost | None = None
    apart: PoolsApart = PoolsApart.default()
    exchange: ExchangeRules = ExchangeRules.default()
    attention: AttentionCalls = AttentionCalls.default()
    kernels: list[OwnKernels] = []
    """The first that holds for a device has the constants of its kernels; where none does, they are the device's."""
    libraries: Libraries = Libraries.default()
    lent: LentKernels | None = None
    """Absent where constants of its own kernels are on file, or of no engine that runs the same."""
    devices: RunsOn | None = None
    """Absent where it may run on any."""
    checkpoints: dict[str, EngineFormat] = {}
    """Formats of checkpoints that it loads beside those that it makes itself, by ``--quant``, ``gguf`` for all files of
    llama.cpp; what others it loads is not known."""
    caches: Caches | None = None
    """Absent where any format is priced (no engine)."""
    narrows: Narrowing | None = None
    """Absent where it runs a checkpoint of 32 bits as it is, or where nobody has read what it does."""
    batching: Batching = Batching.default()
    masks: MaskFilling | None = None
    """Absent where nobody has read how it fills them."""
    beams: BeamSearching | None = None
    """The same of its search with beams."""
    drafts_in_one_graph: str = ""
    """Where the passes of a draft are seen to be launched with the step, so that the host does nothing between them;
    empty where the host launches each."""
    computes_on_host: str = ""
    """Where the host is seen to compute layers that lie in its memory; empty where it computes none."""
    experts_alone: bool = False
    """It computes routed experts and no whole layers."""
    streams_weights: str = ""
    """Where kernels are seen to read weights from the host's memory; empty where they read none."""
    layers_alone: str = ""
    """Where it is seen to give each device whole layers, which is then the one division; empty where it has others."""
    logs_cache: str = ""
    """Where its start-up line is seen to give the tokens of its cache; empty where that is not known."""
    sized_for_batch: bool = False
    """Activations are those of the batch that runs and are paid from what its cache has; else of the largest step, and
    set aside at the start."""
    usual_for: UsualFor = UsualFor.default()
    versions: list[EngineVersion] = Field(min_length=1)

    def at(self, version: str | None) -> tuple[EngineVersion, str]:
        """The newest version on file that is not newer than ``version`` (``None``: of all), and a note about it.

        The note is empty where the version is of a release line on file. Raises ``UnknownNameError`` for a version
        older or newer than every one on file, and for a name without a number.
        """
        if version is None:
            return self.versions[-1], ""
        wanted, known = _key(version), f"known: {', '.join(entry.version for entry in self.versions)}"
        if not wanted:
            raise UnknownNameError(f"{version!r} is no version of {self.name}", hint=known)
        if self.follows(version) or self.predates(version):
            age = "newer" if self.follows(version) else "older"
            raise UnknownNameError(
                f"{self.name} {version} is {age} than every version on file",
                because="nothing is known of its defaults",
                hint=f"{known}; without a version it is the newest",
            )
        lasting = [entry for entry in self.versions if not entry.until or wanted < _key(entry.until)]
        older = [entry for entry in lasting if _key(entry.version) <= wanted]
        found = older[-1] if older else lasting[0]
        if wanted[: len(_key(found.version))] == _key(found.version):
            return found, ""
        which = "newest on file that is not newer" if older else "oldest on file that is not older"
        return found, f"{self.name} {version}: defaults of {found.version}, the {which} ({known})"

    def predates(self, version: str) -> bool:
        """Whether a version is older than every one on file; not a name without a number."""
        return () < _key(version) < _key(self.versions[0].version)

    def follows(self, version: str) -> bool:
        """Whether a version is newer than every release line on file."""
        newest = _key(self.versions[-1].version)
        return _key(version)[: len(newest)] > newest

    def running(self, defaults: EngineVersion, asked: str = "", note: str = "", release: str | None = None) -> "Engine":
        """The engine under ``defaults``, which stand for the version ``asked`` for where that is not on file.

        release: the version that runs, where one is said.
        """
        return Engine.model_construct(
            name=self.name,
            policy=self.policy,
            defaults=defaults,
            serving=defaults.serving or self.serving,
            step=defaults.step or self.step,
            apart=self.apart,
            exchange=self.exchange,
            attention=self.attention,
            devices=self.devices,
            checkpoints=self.checkpoints if defaults.checkpoints is None else defaults.checkpoints,
            caches=defaults.caches or self.caches,
            batching=defaults.batching or self.batching,
            masks=self.masks,
            beams=self.beams,
            drafts_in_one_graph=self.drafts_in_one_graph,
            computes_on_host=self.computes_on_host,
            experts_alone=self.experts_alone,
            streams_weights=self.streams_weights,
            layers_alone=self.layers_alone,
            logs_cache=self.logs_cache,
            narrows=self.narrows,
            sized_for_batch=self.sized_for_batch,
            asked=asked,
            note=note,
            release=release_number(release) or "",
        )


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


class Engine(Spec):
    """An engine at a version: what a deployment runs under."""

    name: str
    policy: Policy
    defaults: EngineVersion
    serving: ServingConstants = ServingConstants.default()
    step: HostCost | None = None
    apart: PoolsApart = PoolsApart.default()
    exchange: ExchangeRules = ExchangeRules.default()
    attention: AttentionCalls = AttentionCalls.default()
    devices: RunsOn | None = None
    checkpoints: dict[str, EngineFormat] = {}
    caches: Caches | None = None
    narrows: Narrowing | None = None
    batching: Batching = Batching.default()
    masks: MaskFilling | None = None
    beams: BeamSearching | None = None
    drafts_in_one_graph: str = ""
    computes_on_host: str = ""
    experts_alone: bool = False
    streams_weights: str = ""
    layers_alone: str = ""
    logs_cache: str = ""
    sized_for_batch: bool = False
    asked: str = ""
    """The version that was asked for, where it is not on file and another one's defaults stand for it."""
    note: str = ""
    """The same for people, with what is on file."""
    release: str = ""
    """The release that runs, without candidates and builds; empty where none is said."""

    def inputs(self, precision: Precision, hardware: HardwareSpec) -> Precision:
        """Formats as it multiplies them: inputs of quantised matmuls that nobody narrowed may be (``block_inputs``)."""
        name = self.defaults.block_inputs
        if not name or precision.activations != precision.base or find_format(name).math not in hardware.peak:
            return precision
        return replace(precision, activations=find_format(name))

    def loads(self, quant: str, hardware: HardwareSpec) -> bool:
        """Whether it is seen to load checkpoints of a format on such a device."""
        found = self.checkpoints.get(quant)
        return found is not None and found.runs_on(hardware)

    @property
    def files_alone(self) -> bool:
        """Whether it reads GGUF files and no others."""
        return [*self.checkpoints] == ["gguf"]

    def caches_on(self, hardware: HardwareSpec) -> list[str]:
        """The formats of :attr:`caches` that a device has; none where any is priced."""
        formats = {} if self.caches is None else self.caches.formats
        return [name for name, one in formats.items() if one.runs_on(hardware)]

    def narrow_cache(self, hardware: HardwareSpec) -> str:
        """The usual one of 8 bits per element; empty where there is none."""
        usual = ["fp8"] if self.caches is None else self.caches_on(hardware)
        return next((name for name in usual if find_format(name).bits == 8), "")

    def keeps(self, kv: str, hardware: HardwareSpec) -> bool:
        """Whether it keeps a KV cache in a format on such a device."""
        return self.caches is None or kv in self.caches_on(hardware)

    def require_cache(self, kv: str, hardware: HardwareSpec) -> None:
        """Raise ``UsageError`` for a cache in a format that it does not keep on such a device."""
        if self.caches is None or self.keeps(kv, hardware):
            return
        one, others = self.caches.formats.get(kv), self.caches_on(hardware)
        raise UsageError(
            f"{self.describe()} has no KV cache in {kv}" + ("" if one is None else f" on {hardware.name}"),
            because=f"it needs arithmetic in {one.needs}" if one is not None and one.needs else "",
            hint=f"--kv {', '.join(others)}" if others else "leave --kv out",
        )

    def runs_on(self, hardware: HardwareSpec) -> bool:
        """Whether a device is of a maker on whose devices it runs."""
        return self.devices is None or hardware.vendor in self.devices.vendors

    def require_device(self, hardware: HardwareSpec) -> None:
        """Raise ``UsageError`` for a device of a maker whose devices it does not run on."""
        if self.devices is not None and not self.runs_on(hardware):
            raise UsageError(
                f"{self.name} does not run on {hardware.name}, a device of {hardware.vendor}",
                because=f"it runs on devices of {' and '.join(self.devices.vendors)}",
                hint="another --engine, or another --gpu",
            )

    def over(self, count: int) -> Parallelism:
        """The division over so many devices where none is named."""
        return Parallelism(pp=count) if self.layers_alone else Parallelism(tp=count)

    def require_division(self, parallel: Parallelism, gpu: str = "NAME") -> None:
        """Raise ``UsageError`` for a layer on several devices where each has layers of its own."""
        if self.layers_alone and parallel.stage_ranks > 1:
            degrees = {"tp": parallel.tp, "dp": parallel.dp, "cp": parallel.cp}
            asked = " ".join(f"--{name} {degree}" for name, degree in degrees.items() if degree > 1)
            raise UsageError(
                f"{self.name} divides a model by layers: --pp {parallel.ranks}, not {asked}",
                because=f"each device has layers of its own, and they work in turn ({self.layers_alone})",
                hint=f"--pp {parallel.ranks} without {asked}, or --gpu {parallel.ranks}x-{gpu}",
            )

    def describe(self) -> str:
        stands = f" (for {self.asked})" if self.asked else ""
        return f"{self.name} {self.defaults.version}{stands}"

    def require_copies(self, prefix: str = "--") -> None:
        """Raise ``UsageError`` where the engine keeps no copies of experts; ``prefix`` of the option that asks."""
        if not self.defaults.wide.redundant:
            raise UsageError(
                f"{self.describe()} keeps no copies of experts that is known here",
                hint=f"leave {prefix}redundant-experts out, or --engine vllm or sglang",
            )

    def require_halves(self, prefix: str = "--") -> None:
        """Raise ``UsageError`` where the engine has no half batches that overlap; ``prefix`` as above."""
        if self.defaults.wide.two_batches is None:
            raise UsageError(
                f"{self.describe()} has no two half batches that overlap",
                hint=f"leave {prefix}two-batch-overlap out, or --engine vllm or sglang",
            )
