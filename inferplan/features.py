"""Which features go together: one table of pairs, read by every question and printed as docs/combinations.md.

A feature is something beyond a plain request on a plain replica: what a load has (classes, adapters, thoughts), or what
serves it (pipeline stages, drafts, pools). The objects of a question name their own: ``Traffic.features``,
``Deployment.features``, ``Fleet.features``, ``Options.features``. The question joins them and asks
:func:`require_together`. All pairs go together but for those of :data:`REFUSALS`, each with its reason. To refuse a
pair is to write its row; to make it work is to delete the row.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from inferplan.errors import UsageError


class Feature(NamedTuple):
    """words: in messages. option: by which a user asks for it. page: of docs/."""

    words: str
    option: str
    page: str

    @property
    def asked(self) -> str:
        """``LoRA adapters (--lora-rank)``."""
        return f"{self.words} ({self.option})" if self.option else self.words


FEATURES: dict[str, Feature] = {
    # what a load has
    "classes": Feature("classes of traffic", "--classes", "classes.md"),
    "queue": Feature("an order of the queue by class", "--queue", "classes.md"),
    "fair-queue": Feature("a fair order of the queue", "--queue fair", "classes.md"),
    "adapters": Feature("LoRA adapters", "--lora-rank", "lora.md"),
    "thoughts": Feature("thoughts before answers", "--thinking-tokens", "reasoning.md"),
    "turns": Feature("conversations", "--turns", "serving.md"),
    "shared-text": Feature("text that prompts begin with", "--shared-prefix", "serving.md"),
    "samples": Feature("several answers of a prompt", "--samples", "sampling.md"),
    "sessions": Feature("sessions of agents", "--sessions", "agents.md"),
    "patience": Feature("users who give up on sessions", "cancel: of a kind of session", "agents.md"),
    "structured": Feature("structured decoding", "--structured-share", "structured.md"),
    "media": Feature("images, video or sound", "--images", "media.md"),
    "budgets": Feature("several budgets of thought", "--thinking-budget", "reasoning.md"),
    "think-time": Feature("think times", "--think-time", "serving.md"),
    "trace": Feature("a trace", "--trace", "planning.md"),
    "job": Feature("an offline job", "--deadline", "planning.md"),
    "recompute": Feature("steps without a KV cache", "--no-kv-cache", "concepts/no-kv-cache.md"),
    "all-logits": Feature("logits of prompt tokens", "--all-logits", "formulas/memory.md"),
    "users": Feature("a closed loop", "--in-flight, --people", "serving.md"),
    # what a replica is
    "encoder": Feature("a model with an encoder", "", "encoder-decoders.md"),
    "encodes": Feature("a model that generates nothing", "", "encoders.md"),
    "diffusion": Feature("a diffusion model", "", "diffusion.md"),
    "state": Feature("layers that keep a state of constant size", "", "formulas/memory.md"),
    "encoder-decoder": Feature("an encoder-decoder", "", "encoder-decoders.md"),
    "cadence": Feature(
        "a cadence of prompts",
        "--prefill-schedule-interval, --prefill-decode-interval, --enable-prefill-delayer",
        "serving.md",
    ),
    "drafts": Feature("drafts", "--draft", "techniques/speculation.md"),
    "hit-rate": Feature("a given hit rate", "--prefix-hit-rate, --cached-prefix", "techniques/prefix_caching.md"),
    "chunk": Feature("prompts in chunks", "--chunk", "techniques/chunked_prefill.md"),
    "beams": Feature("beam search", "--beams", "beams.md"),
    "kv-offload": Feature("KV offload", "--kv-offload", "techniques/offload.md"),
    "tiers": Feature("cache tiers", "--cache-tier", "tiers.md"),
    "shared-tiers": Feature("a cache tier that replicas share", "--cache-tier NAME:SIZE:BANDWIDTH:shared", "tiers.md"),
    "pipelines": Feature("pipeline stages", "--pp", "formulas/parallel.md"),
    "attention-dp": Feature("attention data parallelism", "--dp", "formulas/parallel.md"),
    "coupled-ranks": Feature("attention ranks that share experts", "--dp", "formulas/parallel.md"),
    "static-batches": Feature("an engine of static batches", "--engine none", "serving.md"),
    "context-parallel": Feature("context parallelism", "--cp", "formulas/parallel.md"),
    "spread-dense": Feature("dense layers spread over attention ranks", "--spread-dense", "formulas/parallel.md"),
    "several-devices": Feature("a replica of several devices", "--tp", "formulas/parallel.md"),
    "mig": Feature("MIG instances", "--gpu NAME:PROFILE", "mig.md"),
    "host-layers": Feature("layers on the host", "--gpu-layers", "offload.md"),
    "host-experts": Feature("experts on the host", "--cpu-moe-layers", "offload.md"),
    "streamed": Feature("weights read from the host", "--cpu-offload-gb", "offload.md"),
    "two-batches": Feature("half batches that overlap", "--two-batch-overlap", "formulas/step.md"),
    "power-cap": Feature("a cap on power", "--power-cap", "power.md"),
    "filters": Feature("top-k, top-p or penalties", "--sampling", "sampling.md"),
    "anchor": Feature("an anchor", "--anchor", "anchors.md"),
    # what replicas there are, and how requests find one
    "replicas": Feature("a number of replicas", "--replicas", "serving.md"),
    "pools": Feature("pools of their own for prompts and decodes", "--prefill-replicas; no --aggregated", "serving.md"),
    "prompt-pool": Feature("a description of the pool for prompts", "--prefill-...", "planning.md"),
    "failures": Feature("replicas that fail", "--fail, --survive", "failures.md"),
    "spare": Feature("spare replicas", "--spare", "planning.md"),
    "power-budget": Feature("a power budget", "--power-budget", "power.md"),
    "mean-power": Feature("a budget of the mean power", "--provision mean", "power.md"),
    "routing": Feature("a choice of routing", "--routing", "planning.md"),
    "elastic": Feature("replicas that come and go", "inferplan day", "day.md"),
    "unlike": Feature("replicas that are not alike", "inferplan fleet", "fleet.md"),
    "prefix-aware": Feature("routing by what a replica's cache has", "--routing prefix-aware", "serving.md"),
    "cache-aware": Feature("routing by caches and loads", "--routing cache-aware", "serving.md"),
    "sticky": Feature("sticky routing", "--routing sticky", "serving.md"),
    # how an answer is read
    "ideal": Feature("ideal devices", "--ideal", "calibration.md"),
    "confidence": Feature("a confidence beyond the prediction itself", "--confidence", "planning.md"),
    "miss-cost": Feature("a cost of a miss", "--miss-cost", "planning.md"),
    "page": Feature("a page", "--report", "planning.md"),
    "energy": Feature("energy", "--energy", "cost.md"),
    "hit-curve": Feature("what caches of any size would find", "--hit-curve", "tiers.md"),
    "warmup": Feature("requests sent ahead", "--warmup", "serving.md"),
    "trim": Feature("figures without the filling of the system", "trim=True", "serving.md"),
    "jobs": Feature("a run in several processes", "--jobs", "serving.md"),
}
"""By name, in the order of the page."""
OBJECTS = ("load", "deployment")
"""Pairs that no load or no deployment can have, whatever is asked of it."""
QUESTIONS = (*OBJECTS, "estimate", "simulate", "plan", "fleet", "day")
"""Where a pair is refused: in an object, or in a question named as its command."""


class Refusal(NamedTuple):
    """Two features that do not go together in these questions, and why."""

    one: str
    other: str
    questions: tuple[str, ...]
    because: str
    hint: str

    def error(self, question: str) -> UsageError:
        one, other = FEATURES[self.one].asked, FEATURES[self.other].asked
        where = "" if question in OBJECTS else f" in {question}"
        return UsageError(f"{one} and {other} do not go together{where}", because=self.because, hint=self.hint)


_LEAVE = "leave one of them out"
_DRAW = "their draw is not known"
_DECODER = "leave it out, or a model without an encoder"
_ALIKE = "the replicas of one pool, all alike: --replicas 4"
_AS_TIER = "--cache-tier host:100GB:50GB/s in its place"
_BATCH = "a larger --batch: answers that share nothing"
_NO_CANCEL = "leave cancel: out of the kinds of session"
_NO_MISS = "leave --miss-cost out"
_OPEN = "--rate, or requests with times of their own"
_LENGTHS = "--prompt and --output, or another --workload"
_ONE_SET = "one pool of replicas; in plan --aggregated"
_ROUTED = "--routing round-robin or least-loaded"
_SHARING = "requests that share text: --trace with hashes, --turns, --shared-prefix"

_AHEAD = "arrivals must be known in advance"
_ANCHOR_STAYS = "the measured runs had replicas that ran all the time"
_CLASS_PROMPTS = "the file of the classes gives the lengths of their prompts, which are text"
_FROM_HOST = "the part of them read from host memory is not known"
_GIVEN_RATE = "a given rate (a --workload may bring one) does not say where the hits lie"
_FILTERED = "verifications filter by kernels of their own, whose times are not known"
_HOST = "what the host computes is known for one device and a decoder of text"
_KEPT = "the measured runs had devices that keep every layer"
_IN_ORDER = "the wait for a slot is known of requests in the order in which they came"
_MASKED_HOST = "masks are priced in the steps of a device that keeps all weights"
_ONE_REPLICA = "all calls of a session go to one replica, which keeps what it finds on the device"
_TEXT_ALONE = "text that prompts share next to media is not planned"
_MID_STEP = "a place of such a batch stays taken until all of it is done"
_MIG = "instances have no NVLink between them, and other links between instances are not published"
_MASKED_RANKS = "masks of one batch are filled while another runs, which only a simulation shows"
_MEAN_POWER = "the power of devices comes from the simulation, and a job is not simulated"
_PASSED_OVER = "no engine states how it treats a class whose requests are passed over for want of a slot"
_OWN_PAGES = "kinds of replicas that divide or store a cache in ways of their own do not read each other's entries"
_PLAIN_BATCH = "it is known of a plain batch"
_STEADY = "replicas of one pool are lost under a steady load, and as many bought as that takes"
_ONE_PASS = "an encoder reads the whole prompt in one pass"
_LATE_ONES = "a replica that is ordered has an empty cache, and gets no request while others find more"
_ONE_POOL = "it is known of one pool, for requests that share nothing"
_STAGES = "every layer of its decoder reads the output of its encoder"
_WHICH_KIND = "which of the kinds is lost, ordered or stands by is not stated"
_WHICH_POOL = "no engine documents caches in transit from or to a pool that loses a replica"
_WHOLE_BLOCKS = "each pass computes its whole block and the logits of every token of it"
_WHOLE_RUN = "failures are at times of the whole run"

_TABLE: list[tuple[str, str, str, str, str]] = [
    # what no load can have
    ("classes", "media", "load", _CLASS_PROMPTS, _LEAVE),
    # what no deployment can have
    ("mig", "several-devices", "deployment", _MIG, "--tp 1, a larger profile, or the whole GPU"),
    ("encoder-decoder", "pipelines attention-dp context-parallel", "deployment", _STAGES, "--tp, or --replicas"),
    ("streamed", "adapters", "deployment plan", _FROM_HOST, _LEAVE),
    ("streamed", "encoder-decoder", "deployment", _FROM_HOST, _LEAVE),
    ("spread-dense", "adapters", "deployment", "the division of adapters on such layers is not known", _LEAVE),
    ("host-layers", "several-devices encoder media adapters", "deployment", _HOST, "leave --gpu-layers out"),
    ("host-experts", "several-devices media adapters", "deployment", _HOST, "leave --cpu-moe-layers out"),
    ("anchor", "host-layers host-experts", "deployment plan", _KEPT, _LEAVE),
    ("power-cap", "anchor", "deployment plan", "the measured runs had devices without this cap", _LEAVE),
    ("power-cap", "two-batches", "deployment", "kernels of both halves run at once, and draw together", _LEAVE),
    # structured decoding
    ("structured", "pools", "plan", "masks are planned in the steps of one pool of engines", _ONE_SET),
    ("structured", "drafts hit-rate chunk kv-offload recompute", "estimate", _PLAIN_BATCH, _LEAVE),
    ("structured", "users energy thoughts samples diffusion", "estimate", "masks are priced in a plain batch", _LEAVE),
    ("structured", "pipelines attention-dp", "estimate", _MASKED_RANKS, "inferplan simulate, or --tp"),
    # top-k, top-p and penalties
    ("filters", "drafts", "estimate simulate plan", _FILTERED, _LEAVE),
    ("filters", "beams all-logits", "estimate", "no token is drawn from these logits", "leave --sampling out"),
    ("filters", "encodes diffusion", "deployment", "it draws no token after token", "leave --sampling out"),
    ("filters", "anchor", "deployment plan", "the measured runs sampled as they did", _LEAVE),
    # static batches
    ("samples", "diffusion recompute", "estimate", "without a KV cache of tokens samples share nothing", _BATCH),
    ("samples", "state", "estimate", "such a state lies in no page and changes with every token", _BATCH),
    ("samples", "anchor", "estimate", "the measured runs had one answer per prompt", _LEAVE),
    ("samples", "drafts hit-rate chunk kv-offload users", "estimate", _PLAIN_BATCH, "inferplan simulate"),
    ("thoughts", "diffusion", "estimate", "it denoises blocks: no token of a thought comes before another", _LEAVE),
    ("thoughts", "recompute", "estimate", "it is priced with a KV cache", "leave --no-kv-cache out"),
    ("thoughts", "anchor", "estimate", "the measured runs had whole outputs", _LEAVE),
    ("thoughts", "drafts hit-rate chunk kv-offload users", "estimate", _PLAIN_BATCH, "inferplan simulate"),
    ("diffusion", "drafts hit-rate chunk kv-offload users", "estimate", "it denoises blocks", _LEAVE),
    ("diffusion", "recompute all-logits", "estimate", _WHOLE_BLOCKS, "leave --no-kv-cache and --all-logits out"),
    ("diffusion", "pipelines", "estimate", "a block is not cut into stages here", "--tp"),
    ("recompute", "drafts hit-rate chunk kv-offload", "estimate", "these need a KV cache", "leave --no-kv-cache out"),
    ("beams", "drafts hit-rate chunk kv-offload users thoughts samples", "estimate", _PLAIN_BATCH, "leave --beams out"),
    ("beams", "energy structured adapters recompute all-logits", "estimate", _PLAIN_BATCH, "leave --beams out"),
    ("beams", "diffusion state", "estimate", "the part that beams share is not known", "leave --beams out"),
    ("energy", "drafts hit-rate chunk kv-offload", "estimate", _PLAIN_BATCH, "leave --energy out"),
    ("energy", "diffusion recompute host-layers host-experts media", "estimate", _DRAW, "leave --energy out"),
    # adapters
    ("adapters", "fair-queue", "simulate", _PASSED_OVER, "--queue fcfs or priority"),
    ("adapters", "queue", "plan", _IN_ORDER, "--queue fcfs"),
    ("adapters", "jobs", "simulate", "the slots of adapters are followed in one process", "leave --jobs out"),
    # models that read a prompt in one pass
    ("encoder", "thoughts structured drafts kv-offload tiers pools", "simulate", _ONE_PASS, _DECODER),
    ("encoder", "hit-rate", "simulate", _ONE_PASS, "leave --prefix-hit-rate out, or another --workload"),
    ("encoder", "samples thoughts recompute all-logits structured beams", "estimate", _ONE_PASS, _DECODER),
    ("encoder", "drafts hit-rate chunk kv-offload", "estimate", _ONE_PASS, _DECODER),
    ("encodes", "users", "estimate", "a steady state needs requests that decode", "inferplan simulate"),
    ("encoder", "thoughts structured drafts hit-rate", "plan", _ONE_PASS, _DECODER),
    ("encodes", "adapters", "plan", "adapters are planned for models that generate", _LEAVE),
    # sessions of agents
    ("sessions", "routing", "plan", _ONE_REPLICA, "inferplan simulate --sessions"),
    ("media", "sessions shared-text turns samples", "plan", _TEXT_ALONE, _LENGTHS),
    ("sessions", "media", "simulate", "the calls of a session are text", _LEAVE),
    ("sessions", "warmup", "simulate", "a warm-up counts requests, and sessions are not cut", "leave --warmup out"),
    ("sessions", "classes", "simulate", "each says of every request who sends it, how long it is and when", _LEAVE),
    ("sessions", "samples", "simulate", "the answer that an agent continues from is not stated", _LEAVE),
    ("sessions", "budgets", "plan", "calls of sessions are drawn with their thoughts", "one --thinking-budget"),
    ("patience", "static-batches", "simulate", _MID_STEP, _NO_CANCEL),
    # what keeps a cache
    ("tiers", "kv-offload", "simulate", "KV offload is a cache tier too", _AS_TIER),
    ("tiers", "hit-rate", "simulate", _GIVEN_RATE, _SHARING),
    ("shared-tiers", "jobs", "simulate", "a shared tier connects the replicas", "leave --jobs out"),
    ("tiers", "budgets", "plan", "a plan with tiers takes one budget of thought", "one --thinking-budget"),
    ("tiers", "job", "plan", "a job is not simulated, so the hits of tiers are not known", "--rate"),
    ("tiers", "pools", "plan", "tiers are planned for replicas that compute prompts and decode", "--aggregated"),
    # power
    ("mean-power", "job", "plan", _MEAN_POWER, "--provision tdp"),
    # anchors and hosts
    ("anchor", "drafts", "estimate simulate plan", "the measured runs had steps without drafts", _LEAVE),
    ("anchor", "streamed", "plan", _KEPT, _LEAVE),
    ("drafts", "host-layers host-experts streamed", "plan", "drafts with weights on the host are not planned", _LEAVE),
    ("structured", "host-layers host-experts streamed", "plan", _MASKED_HOST, _LEAVE),
    # what a plan is held to
    ("failures", "job trace", "plan", _STEADY, "--rate or --people"),
    ("failures", "pools", "plan", _STEADY, "--aggregated"),
    ("failures", "spare", "plan", _STEADY, "leave --spare out"),
    ("failures", "routing", "plan", "replicas that fail have a router of their own", "leave --routing out"),
    ("routing", "job", "plan", "a job is not simulated, so routing changes nothing of it", "leave --routing out"),
    ("routing", "pools", "plan", "routing is planned for replicas that compute prompts and decode", "--aggregated"),
    ("prompt-pool", "job users", "plan", "pools apart are planned for a rate of requests", "--rate, or leave them out"),
    ("classes", "think-time", "plan", "users of classes are planned without", "leave --think-time out"),
    ("job", "think-time", "plan", "no user waits for the answers of a job", "leave --think-time out"),
    ("confidence", "ideal", "plan", "ideal devices have no known error", "leave --confidence out"),
    ("miss-cost", "job", "plan", "no user waits for the answers of a job, which misses no limit", _NO_MISS),
    ("miss-cost", "ideal", "plan", "ideal devices have no known error, and so no chance of a miss", _NO_MISS),
    ("page", "tiers classes sessions", "plan", "such a page is not drawn yet", "inferplan plan without --report"),
    ("page", "budgets", "plan", "a page takes one budget of thought", "one --thinking-budget, or no --report"),
    # replicas
    ("unlike", "shared-tiers", "simulate fleet", _OWN_PAGES, "a tier of each replica's own: no :shared"),
    ("unlike", "users trace job", "fleet", "a mix is bought for a rate of requests", "--rate or --people"),
    ("unlike", "failures spare", "fleet", _WHICH_KIND, "inferplan plan"),
    ("unlike", "confidence miss-cost", "fleet", "capacities are those that are predicted", "inferplan plan"),
    ("unlike", "budgets", "fleet", "a mix is found for one budget of thought", "one --thinking-budget"),
    ("unlike", "routing", "fleet", "each kind gets its share of the requests by its weight", "leave --routing out"),
    ("elastic", "replicas", "day", "the policies say how many there are", "--min-replicas and --max-replicas"),
    ("cadence", "pipelines", "estimate simulate plan", "its count of batches in flight is not known", _LEAVE),
    ("cadence", "pools", "simulate plan", "no server of such pools both computes prompts and decodes", _LEAVE),
    ("pools", "failures", "simulate", _WHICH_POOL, _ALIKE),
    ("pools", "replicas", "simulate", "pools have numbers of their own", "leave --replicas out"),
    ("pools", "elastic", "simulate", "how many of each pool are ordered is not stated", _ALIKE),
    ("pools", "unlike", "simulate", "no router deals requests out to pairs of pools and to whole replicas", _ALIKE),
    ("pools", "anchor", "simulate", "the measured runs had engines that compute prompts and decode", _LEAVE),
    ("unlike", "failures elastic", "simulate", _WHICH_KIND, _ALIKE),
    ("elastic", "prefix-aware", "simulate", _LATE_ONES, "--routing cache-aware"),
    ("elastic", "users", "simulate", "a day needs a rate of requests, which a closed loop has not", _OPEN),
    ("elastic", "anchor", "simulate", _ANCHOR_STAYS, _LEAVE),
    ("failures", "anchor", "simulate plan", _ANCHOR_STAYS, _LEAVE),
    ("energy", "encoder-decoder host-layers host-experts", "simulate day", _DRAW, "leave --energy out"),
    ("hit-curve", "failures", "simulate", "a lost cache has no stack distances", _LEAVE),
    ("failures", "warmup", "simulate", _WHOLE_RUN, "leave --warmup out"),
    ("failures", "trim", "simulate", _WHOLE_RUN, "trim=False"),
]
"""A feature, those that it does not go with, the questions in which it does not, why, and what would work."""
REFUSALS = tuple(
    Refusal(one, other, tuple(questions.split()), because, hint)
    for one, others, questions, because, hint in _TABLE
    for other in others.split()
)
"""Every pair that does not go together, once."""
_ROWS = {question: [row for row in REFUSALS if question in row.questions] for question in QUESTIONS}
_NAMES = {name.replace("-", "_"): name for name in FEATURES}


def goes_together(question: str, present: Collection[str]) -> bool:
    """Whether all features that are present go together in a question."""
    return not any(row.one in present and row.other in present for row in _ROWS[question])


def require_together(question: str, present: Collection[str]) -> None:
    """Raise ``UsageError`` for two features that do not go together in a question, such as ``"simulate"``."""
    for row in _ROWS[question]:
        if row.one in present and row.other in present:
            raise row.error(question)


def those(**found: bool) -> set[str]:
    """The names of features that are there: ``those(pipelines=pp > 1)``; ``_`` stands for ``-``."""
    return {_NAMES[name] for name, there in found.items() if there}
