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
    "users": Feature("a closed loop", "--concurrency", "serving.md"),
    # what a replica is
    "encoder": Feature("a model with an encoder", "", "encoder-decoders.md"),
    "encoder-decoder": Feature("an encoder-decoder", "", "encoder-decoders.md"),
    "drafts": Feature("drafts", "--draft", "techniques/speculation.md"),
    "hit-rate": Feature("a given hit rate", "--prefix-hit-rate", "techniques/prefix_caching.md"),
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
    "streamed": Feature("weights read from the host", "--cpu-offload-gb", "offload.md"),
    "two-batches": Feature("half batches that overlap", "--two-batch-overlap", "formulas/step.md"),
    "power-cap": Feature("a cap on power", "--power-cap", "power.md"),
    "anchor": Feature("an anchor", "--anchor", "anchors.md"),
    # what replicas there are, and how requests find one
    "replicas": Feature("a number of replicas", "--replicas", "serving.md"),
    "pools": Feature("pools of their own for prompts and decodes", "--prefill-replicas", "serving.md"),
    "failures": Feature("replicas that fail", "--fail", "failures.md"),
    "elastic": Feature("replicas that come and go", "inferplan day", "day.md"),
    "unlike": Feature("replicas that are not alike", "inferplan fleet", "fleet.md"),
    "prefix-aware": Feature("routing by what a replica's cache has", "--routing prefix-aware", "serving.md"),
    "sticky": Feature("sticky routing", "--routing sticky", "serving.md"),
    # how a run is read
    "energy": Feature("the energy of a run", "--energy", "cost.md"),
    "hit-curve": Feature("what caches of any size would find", "--hit-curve", "tiers.md"),
    "warmup": Feature("requests sent ahead", "--warmup", "serving.md"),
    "trim": Feature("figures without the filling of the system", "trim=True", "serving.md"),
    "jobs": Feature("a run in several processes", "--jobs", "serving.md"),
}
"""By name, in the order of the page."""
OBJECTS = ("load", "deployment")
"""Pairs that no load or no deployment can have, whatever is asked of it."""
QUESTIONS = (*OBJECTS, "simulate", "day")
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
_DECODER = "leave it out, or a model without an encoder"
_LEAVE_OFFLOAD = "leave --gpu-layers and --cpu-moe-layers out"
_ALIKE = "the replicas of one pool, all alike: --replicas 4"
_NO_CANCEL = "leave cancel: out of the kinds of session"
_OPEN = "--rate, or requests with times of their own"
_ROUTED = "--routing round-robin or least-loaded"
_SHARING = "requests that share text: --trace with hashes, --turns, --shared-prefix"

_AHEAD = "arrivals have to be known ahead"
_ANCHOR_STAYS = "the measured runs are of replicas that are there all the time"
_CLASS_PROMPTS = "the file of the classes gives the lengths of their prompts, which are text"
_FROM_HOST = "what of them is read from the host's memory is not known"
_GIVEN_RATE = "a given rate (a --workload may bring one) does not say where the hits lie"
_HOST = "what the host computes is known for one device and a decoder of text"
_MID_STEP = "a place of such a batch stays taken until all of it is done"
_MIG = "instances have no NVLink between them, and nobody has published what they exchange otherwise"
_PASSED_OVER = "what a class is due whose requests are passed over for want of a slot, nobody says"
_ONE_PASS = "an encoder reads the whole prompt in one pass"
_ONE_POOL = "it is known of one pool, for requests that share nothing"
_STAGES = "every layer of its decoder reads the output of its encoder"
_WHICH_POOL = "nobody publishes what engines do with caches on their way from a pool that loses a replica, or to it"
_WHOLE_RUN = "failures are at times of the whole run"

_TABLE: list[tuple[str, str, str, str, str]] = [
    # what no load can have
    ("classes", "media", "load", _CLASS_PROMPTS, _LEAVE),
    # what no deployment can have
    ("mig", "several-devices", "deployment", _MIG, "--tp 1, a larger profile, or the whole GPU"),
    ("encoder-decoder", "pipelines attention-dp context-parallel", "deployment", _STAGES, "--tp, or --replicas"),
    ("streamed", "adapters encoder-decoder", "deployment", _FROM_HOST, _LEAVE),
    ("spread-dense", "adapters", "deployment", "how adapters of such layers are divided is not known", _LEAVE),
    ("host-layers", "several-devices encoder media adapters", "deployment", _HOST, _LEAVE_OFFLOAD),
    ("host-layers", "anchor", "deployment", "the measured runs are of devices that keep every layer", _LEAVE),
    ("power-cap", "anchor", "deployment", "the measured runs are of devices without this cap", _LEAVE),
    ("power-cap", "two-batches", "deployment", "kernels of both halves run at once, and draw together", _LEAVE),
    # adapters
    ("adapters", "fair-queue", "simulate", _PASSED_OVER, "--queue fcfs or priority"),
    ("adapters", "jobs", "simulate", "the slots of adapters are followed in one process", "leave --jobs out"),
    # models that read a prompt in one pass
    ("encoder", "thoughts structured drafts kv-offload tiers pools", "simulate", _ONE_PASS, _DECODER),
    ("encoder", "hit-rate", "simulate", _ONE_PASS, "leave --prefix-hit-rate out, or another --workload"),
    # sessions of agents
    ("sessions", "media", "simulate", "the calls of a session are text", _LEAVE),
    ("sessions", "warmup", "simulate", "a warm-up counts requests, and sessions are not cut", "leave --warmup out"),
    ("sessions", "classes", "simulate", "each says of every request who sends it, how long it is and when", _LEAVE),
    ("sessions", "samples", "simulate", "which of several answers an agent goes on with is not said", _LEAVE),
    ("sessions", "elastic unlike", "simulate", _AHEAD, "inferplan simulate or plan, of replicas that stay, all alike"),
    ("patience", "static-batches", "simulate", _MID_STEP, _NO_CANCEL),
    # what keeps a cache
    (
        "tiers",
        "kv-offload",
        "simulate",
        "KV offload is a cache tier too",
        "--cache-tier host:100GB:50GB/s in its place",
    ),
    ("tiers", "hit-rate", "simulate", _GIVEN_RATE, _SHARING),
    ("shared-tiers", "jobs", "simulate", "a shared tier connects the replicas", "leave --jobs out"),
    # replicas
    ("pools", "replicas", "simulate", "pools have numbers of their own", "leave --replicas out"),
    ("pools", "failures", "simulate", _WHICH_POOL, _ALIKE),
    ("pools", "elastic unlike", "simulate", _ONE_POOL, _ALIKE),
    ("pools", "anchor", "simulate", "the measured runs are of engines that compute prompts and decode", _LEAVE),
    ("unlike", "failures elastic", "simulate", _ONE_POOL, _ALIKE),
    ("unlike", "sticky prefix-aware", "simulate", _ONE_POOL, _ROUTED),
    ("unlike", "users turns", "simulate", _AHEAD, _OPEN),
    ("elastic", "sticky prefix-aware", "simulate", _ONE_POOL, _ROUTED),
    ("elastic", "users turns", "simulate", _AHEAD, _OPEN),
    ("elastic", "anchor", "simulate", _ANCHOR_STAYS, _LEAVE),
    ("failures", "anchor", "simulate", _ANCHOR_STAYS, _LEAVE),
    ("energy", "encoder-decoder host-layers", "simulate day", "what they draw is not known", "leave --energy out"),
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
    return {name.replace("_", "-") for name, there in found.items() if there}
