"""Options by the names that other tools give them: understood where they mean the same, else answered with ours.

Spellings of vLLM, SGLang, TensorRT-LLM, llama.cpp, GuideLLM, AIPerf, genai-perf and AIConfigurator.
"""

from __future__ import annotations

from collections.abc import Collection

import click

_LET = ("reserved", "reservation", "commitment", "committed", "spot", "on-demand")
_APART = ("disaggregated", "disaggregate", "disagg", "separate-pools", "pd")
SAME: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpu-type", "gpu-name", "accelerator", "hardware", "system"), ("gpu",)),
    **dict.fromkeys(
        ("isl", "input-len", "input-length", "random-input-len", "random-input", "input-tokens", "prompt-tokens"),
        ("prompt", "isl"),
    ),
    **dict.fromkeys(("prompt-len", "synthetic-input-tokens-mean", "n-prompt"), ("prompt", "isl")),
    **dict.fromkeys(
        ("osl", "output-len", "output-length", "random-output-len", "random-output", "output-tokens"),
        ("output", "osl"),
    ),
    **dict.fromkeys(("output-tokens-mean", "n-gen"), ("output", "osl")),
    **dict.fromkeys(("request-rate", "rps", "qps", "requests-per-second"), ("rate",)),
    **dict.fromkeys(("max-concurrency", "concurrent-requests", "streams"), ("in-flight", "concurrency")),
    **dict.fromkeys(("num-prompts", "num-prompt", "num-requests", "request-count"), ("requests",)),
    **dict.fromkeys(("tensor-parallel-size", "tp-size", "tensor-parallel", "-tp"), ("tp",)),
    **dict.fromkeys(("pipeline-parallel-size", "pp-size", "pipeline-parallel", "-pp"), ("pp",)),
    **dict.fromkeys(("expert-parallel-size", "ep-size", "moe-ep-size"), ("ep",)),
    **dict.fromkeys(("quantization", "quantize", "quantisation", "precision"), ("quant",)),
    **dict.fromkeys(("kv-cache-dtype", "kv-dtype"), ("kv",)),
    **dict.fromkeys(("max-model-len", "context-length", "max-seq-len"), ("max-model-len", "context")),
    **dict.fromkeys(("max-num-batched-tokens", "max-num-tokens"), ("max-num-batched-tokens", "token-budget")),
    **dict.fromkeys(("max-running-requests", "max-batch-size"), ("max-num-seqs",)),
    "gpu-memory-utilization": ("gpu-memory-utilization", "memory-fraction"),
    "batch-size": ("batch",),
    **dict.fromkeys(("speculative-model", "model-draft", "speculative-draft-model-path"), ("draft-model",)),
    **dict.fromkeys(("num-speculative-tokens", "speculative-num-steps", "draft-max"), ("draft-tokens",)),
    "speculative-eagle-topk": ("draft-branches",),
    "enable-prefix-caching": ("prefix-caching",),
    **dict.fromkeys(("no-enable-prefix-caching", "disable-radix-cache"), ("no-prefix-caching",)),
    "enable-chunked-prefill": ("chunked-prefill",),
    **dict.fromkeys(("n-gpu-layers", "-ngl"), ("gpu-layers",)),
    **dict.fromkeys(("n-cpu-moe", "-ncmoe"), ("cpu-moe-layers",)),
    **dict.fromkeys(("page-size", "tokens-per-block"), ("block-size",)),
    "random-seed": ("seed",),
    **dict.fromkeys(("e2e-latency", "request-latency", "e2el"), ("e2e",)),
    **dict.fromkeys(("ram", "cpu-ram", "system-ram", "host-ram", "cpu-memory"), ("host-memory",)),
    **dict.fromkeys(("budget", "max-price", "max-spend", "cost-limit"), ("max-cost",)),
}
"""A name to those of our options that mean the same, the first that a command has: it is understood there."""
SYNONYMS: dict[str, tuple[str, ...]] = {
    **{name.lstrip("-"): ours for name, ours in SAME.items() if (name.lstrip("-"),) != ours},
    **dict.fromkeys(("gpus", "num-gpus", "n-gpus", "gpu-count"), ("gpu",)),
    **dict.fromkeys(("max-tokens", "max-new-tokens", "n-predict"), ("output", "osl")),
    **dict.fromkeys(
        ("in-flight", "concurrency", "users", "num-users", "concurrent-users"),
        ("in-flight", "concurrency"),
    ),
    **dict.fromkeys(("headcount", "employees", "developers", "seats"), ("people",)),
    "max-requests": ("requests",),
    "random-range-ratio": ("length-ratio-min",),
    **dict.fromkeys(("data-parallel-size", "dp-size"), ("dp",)),
    **dict.fromkeys(("gemm-quant-mode", "format-weights"), ("quant",)),
    "kvcache-quant-mode": ("kv",),
    **dict.fromkeys(("ctx-size", "n-ctx"), ("max-model-len", "context")),
    "chunked-prefill-size": ("max-num-batched-tokens", "token-budget"),
    "mem-fraction-static": ("gpu-memory-utilization", "memory-fraction"),
    **dict.fromkeys(("parallel", "n-parallel"), ("max-num-seqs",)),
    "num-sequences": ("batch",),
    "cpu-moe": ("cpu-moe-layers",),
    "draft": ("draft-model",),
    "prefix-cache": ("prefix-caching",),
    **dict.fromkeys(("model-path", "model-name"), ("model",)),
    "think": ("think-time",),
    **dict.fromkeys((*_APART, "disaggregation", "disaggregation-mode"), ("prefill-replicas",)),
    **dict.fromkeys(("speculative", "speculative-config", "speculative-algorithm", "spec"), ("draft-model",)),
    **dict.fromkeys(_LET, ("term",)),
    **dict.fromkeys(("ttft-slo", "max-ttft"), ("ttft",)),
    **dict.fromkeys(("tpot-slo", "max-tpot"), ("tpot",)),
}
"""A name to those of our options that it may have meant, the first that a command has: the answer names that one."""
_TRIED_APART = "separate pools for prompts and for decodes are tried for a --rate anyway, and what they cost is said"
TRIED = {
    **{(name, "cold-start"): "the answer says what a start reads" for name in ("estimate", "fit")},
    **{(name, word): _TRIED_APART for name in ("plan", "report") for word in _APART},
}
"""A flag of a command that asks for what is done without it, and the words that say so."""
_ONE_POOL = (
    *("--aggregated", "--anchor", "--routing", "--survive", "--cache-tier", "--structured-share"),
    *("--sessions", "--deadline", "--loras", "--lora-rank", "--lora-folder"),
    *("--prefill-schedule-interval", "--prefill-decode-interval", "--enable-prefill-delayer"),
)
"""Options beside which a plan tries no separate pools."""
_NEARLY = {("fit", "context")}
"""Options that are not quite the same: vLLM's --max-model-len is the most that a request may have."""
_OTHERWISE = {("plan", "requests"), ("report", "requests")}
"""Options that mean something else in a command: there --requests are those of an offline job."""
_ELSEWHERE = {
    ("recipe", "draft-model"): "drafts are an ingredient: --with speculative:draft=NAME:length=4:acceptance=0.7",
    **{
        (name, "carbon"): "carbon is that of a run: inferplan simulate MODEL --gpu GPU --workload chat --rate 10 "
        "--carbon DEU, with the GPU of the plan and its --replicas"
        for name in ("plan", "report")
    },
    ("plan", "prefill-replicas"): "with --rate, plan also tries separate pools for prompts and for decodes, and takes "
    "what costs less; --aggregated leaves them out; inferplan simulate --prefill-replicas 1 --decode-replicas 2 runs "
    "pools of your own",
    ("report", "prefill-replicas"): "as plan: separate pools are tried with --rate, and taken where they cost less",
    ("cost", "workload"): "the bill here covers a static batch: --prompt 1155 --output 211 --batch 32; under a load "
    "with limits: inferplan plan MODEL --gpu GPU --workload chat --rate 10, which prices a million tokens too",
    **{(name, "own"): "GPUs of your own are --gpu 4x-h100 here" for name in ("plan", "simulate", "report")},
    ("fit", "own"): "GPUs of your own are --have 4x-h100 here",
    (
        "compare",
        "term",
    ): "compare has no prices; what to buy on these terms: inferplan plan MODEL --workload chat --rate "
    "10 --term reserved-3y",
    ("fit", "prompt"): "--context counts prompt and output together",
    ("fit", "output"): "--context counts prompt and output together",
}
"""What a command has instead of an option."""
_PEOPLE = "; people who read and type between answers are --people"
_BESIDE = {
    **dict.fromkeys(("gpus", "num-gpus", "n-gpus", "gpu-count"), "; the number goes before the name: --gpu 2x-h100"),
    **dict.fromkeys(("data-parallel-size", "dp-size"), " for attention; copies of the whole model are --replicas"),
    "mem-fraction-static": ", with --engine sglang",
    **dict.fromkeys(("ctx-size", "n-ctx"), ", of one request; llama.cpp's is shared by all slots"),
    **dict.fromkeys(("users", "num-users", "concurrent-users"), _PEOPLE),
    **dict.fromkeys((*_APART, "disaggregation"), " and --decode-replicas"),
}
"""What else a name may have meant."""
_NO_OPTION = {
    **dict.fromkeys(
        ("kv-cache-free-gpu-memory-fraction", "free-gpu-memory-fraction", "kv-cache-free-gpu-mem-fraction"),
        "a share of the memory left by the weights has no option here; --gpu-memory-utilization is a share of all "
        "memory",
    ),
    **dict.fromkeys(("dtype", "torch-dtype"), "the format of a model is --quant, such as bf16; left out, its own"),
}
"""Names that no option of ours stands for."""
_FILTERS = {
    **dict.fromkeys(("top-k", "top_k"), "top-k"),
    **dict.fromkeys(("top-p", "top_p"), "top-p"),
    **dict.fromkeys(
        ("repetition-penalty", "repeat-penalty", "presence-penalty", "frequency-penalty", "penalty"), "penalties"
    ),
}
"""Names of what requests sample with, and the parts of --sampling that say so: its values change no time."""
_GRAMMARS = (
    "json-schema",
    "json",
    "grammar",
    "guided-json",
    "guided-decoding",
    "structured-outputs",
    "response-format",
)
_STRUCTURED = "--structured-share 1 --host-cores 32 --mask-library xgrammar"
_SHOWN = 4
"""Commands that are named."""


def understood(command: click.Command, args: list[str]) -> tuple[list[str], list[str]]:
    """The words of a command with our names for those that mean the same, and the notes that say so."""
    words, notes = _on_terms(command, args)
    args = list(words)
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        typed, equals, value = word.partition("=")
        tried = TRIED.get((command.name or "", typed.removeprefix("--")))
        if tried is not None and not equals and not _has(command, typed):
            words[place] = ""
            alone = next((one for one in words[:end] if one.partition("=")[0] in _ONE_POOL), "")
            tried = f"no separate pools are tried with {alone.partition('=')[0]}" if alone else tried
            notes.append(f"note: {typed}: {tried}")
            continue
        ours = SAME.get(typed.removeprefix("--")) if typed.startswith("-") else None
        if ours is None or _has(command, typed):
            continue
        known = next(
            (one for one in ours if (command.name, one) not in {*_NEARLY, *_OTHERWISE} and _has(command, f"--{one}")),
            None,
        )
        if known is not None:
            words[place] = f"--{known}{equals}{value}"
            notes.append(f"note: {typed} is --{known} here")
    notes += _formats(words[:end])
    return _all_experts(command, [word for word, was in zip(words, args, strict=True) if word or not was], notes)


def _all_experts(command: click.Command, words: list[str], notes: list[str]) -> tuple[list[str], list[str]]:
    """The words with the model's number of layers for llama.cpp's ``--cpu-moe`` and for ``--cpu-moe-layers all``."""
    end = words.index("--") if "--" in words else len(words)
    after = [*words[1:end], ""]
    for place, word in enumerate(words[:end]):
        takes = (word, after[place]) == ("--cpu-moe-layers", "all")
        if takes or word in ("--cpu-moe", "-cmoe", "--cpu-moe-layers=all"):
            break
    else:
        return words, notes
    if not _has(command, "--cpu-moe-layers") or not (name := _model_typed(command, words[:end])):
        return words, notes
    from inferplan.catalog.files import load_model

    layers = len(load_model(name).sequence)
    typed = f"{word} all" if takes else word
    notes.append(f"note: {typed} is --cpu-moe-layers {layers} here: all layers of {name}")
    return [*words[:place], "--cpu-moe-layers", f"{layers}", *words[place + 1 + takes :]], notes


def _model_typed(command: click.Command, words: list[str]) -> str:
    """The MODEL among the words of a command; empty where none is, or a list."""
    arguments = [one.name for one in command.params if isinstance(one, click.Argument)]
    flags = {typed for one in command.params if isinstance(one, click.Option) and one.is_flag for typed in one.opts}
    values = {*flags, "--cpu-moe", "-cmoe"}
    before = ["", *words]
    alone = [
        word
        for last, word in zip(before, words)
        if word[:1] != "-" and (last[:1] != "-" or "=" in last or last in values)
    ]
    place = arguments.index("model") if "model" in arguments else len(alone)
    found = alone[place] if place < len(alone) else ""
    return "" if "," in found else found


def _on_terms(command: click.Command, args: list[str]) -> tuple[list[str], list[str]]:
    """The words with terms as ``--term`` takes them, of ``--reserved 3y``, ``--term 3-year``, ``--spot``; and notes."""
    words, notes, rest = list[str](), list[str](), list(args) if _has(command, "--term") else []
    while rest and rest[0] != "--":
        word, after = rest.pop(0), rest[:1]
        typed, equals, value = word.partition("=")
        of = [value] if equals else after
        term, takes = _term(typed, *of) if typed[:2] == "--" and not _has(command, typed, "--term") else ("", False)
        if not term or (equals and not takes):
            words.append(word)
            continue
        rest = rest[1:] if takes and not equals else rest
        if [typed, *of] != ["--term", term] and not term[0].isdigit():  # a length that no list has is refused
            notes.append(f"note: {' '.join([typed, *of[:takes]])} is --term {term} here")
        words += ["--term", term]
    return [*words, *rest] if _has(command, "--term") else args, notes


def _term(typed: str, text: str = "") -> tuple[str, bool]:
    """The term that an option asks for, empty where it is none, and whether the text behind it is a part of that."""
    name = typed.removeprefix("--")
    if name not in ("term", *_LET):
        return "", False
    from inferplan.catalog.price_lists import term_in_words

    if name in _LET[-2:]:
        return name, False
    if (term := term_in_words(text)) is not None:
        return term, True
    if name == "term":
        return "", False
    return (text, True) if text[:1].isdigit() else ("reserved", False)


def _formats(words: list[str]) -> list[str]:
    """Notes that say what short names of formats stand for."""
    given = [(*word.partition("=")[::2], after) for word, after in zip(words, [*words[1:], ""]) if word[:2] == "--"]
    roles = ("--quant", "--weights", "--experts")
    asked = [(name[2:], value or after) for name, value, after in given if name in roles]
    if not asked:
        return []
    from inferplan.catalog.assemble import short_format

    found = [(one, short_format(one, option)) for option, text in asked for one in text.split(",")]
    return [f"note: {one.strip()} is {said}" for one, said in dict.fromkeys(found) if said]


def _has(command: click.Command, typed: str, but: str = "") -> bool:
    """Whether an option of a command, ``but`` for one, is typed like that."""
    if typed == but:
        return False
    options = (one for one in command.params if isinstance(one, click.Option) and not one.hidden)
    return any(typed in (*one.opts, *one.secondary_opts) for one in options)


def meant(name: str, command: click.Command, others: dict[str, click.Command], words: Collection[str] = ()) -> str:
    """What an option that ``command`` does not have is called there, else which of ``others`` has it; empty where none
    has. words: what was typed, with other options that it does not have.
    """
    name = name.lstrip("-")
    if said := _sampled([name, *(one.partition("=")[0].lstrip("-") for one in words if one[:2] == "--")], command):
        return said
    if name in _NO_OPTION:
        return _NO_OPTION[name]
    ours = SYNONYMS.get(name, (name,))
    for one in ours:
        option = None if (command.name, one) in _OTHERWISE else _option(command, one)
        if option is not None:
            return f"{option.opts[0]} here{_BESIDE.get(name, '')}"
        if (argument := _argument(command, one)) is not None:
            return f"{argument} is an argument: write it without --{name}"
    for one in dict.fromkeys((*ours, name)):
        if (command.name, one) in _ELSEWHERE:
            model = next((word for word in [*words][1:2] if word[:1] != "-"), "MODEL")
            return _ELSEWHERE[command.name or "", one].replace("MODEL", model)
        having = [key for key, other in others.items() if _option(other, one) and (key, one) not in _OTHERWISE]
        if having:
            which = ", ".join(having[:_SHOWN]) + (" and others" if len(having) > _SHOWN else "")
            have = "has" if len(having) == 1 else "have"
            return f"inferplan {command.name} does not take it; {which} {have} --{one}"
    return ""


def _sampled(names: list[str], command: click.Command) -> str:
    """All options for how requests sample, where ``names`` begins with one that other tools have for it."""
    if names[0] not in (*_FILTERS, *_GRAMMARS):
        return ""
    unknown = [one for one in names if not _has(command, f"--{one}")]
    filters = dict.fromkeys(_FILTERS[one] for one in unknown if one in _FILTERS)
    asked = {f"--sampling {','.join(filters)}": filters, _STRUCTURED: [one for one in unknown if one in _GRAMMARS]}
    ours = [said for said, of in asked.items() if of and _has(command, said.partition(" ")[0])]
    return f"{' '.join(ours)} here" if ours else ""


def _option(command: click.Command, name: str) -> click.Option | None:
    """The option of that name, if the help of the command shows one."""
    options = (one for one in command.params if isinstance(one, click.Option) and not one.hidden)
    return next((one for one in options if f"--{name}" in one.opts), None)


def _argument(command: click.Command, name: str) -> str | None:
    """The argument of that name, as the usage line writes it."""
    for one in command.params:
        if isinstance(one, click.Argument) and one.name in (name, f"{name}s"):
            return (one.name or "").upper()
    return None
