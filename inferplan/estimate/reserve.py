"""What a serving engine keeps of a device's memory for itself, by the rule of its version (docs/formulas/memory.md)."""

from __future__ import annotations

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.terms import Naming, floor, plain
from inferplan.units import Num

_MIB = 2.0**20
_LARGE_MIB = 60 * 1024
"""SGLang keeps at least 10 GiB back on devices with more memory than this."""


def reserve(
    deployment: Deployment, weights: Num, activations: Num, name: Naming = plain, budget: Num | None = None
) -> Num:
    """Bytes that the engine keeps on a device with so many bytes of weights and activations.

    budget: tokens of a step, where they are not those of the engine.

    Driver context, communicator and captured graphs; and what the engine's fraction leaves unused:

    - ``of_total`` (vLLM): ``(1 - fraction)*usable``.
    - ``static_of_total`` (SGLang): the fraction is for weights and cache, so activations come out of the rest, and only
      what they leave of it is counted here.
    - ``of_free`` (TensorRT-LLM, ``free_gpu_memory_fraction``): ``1 - fraction`` of what is free once weights and the
      activations of a warm-up are there.
    - ``all`` (llama.cpp, none): nothing.
    """
    engine = deployment.engine.defaults
    fixed: Num = name(engine.context, "context", "B", ("engine", "context"))
    fixed = fixed + name(engine.graphs, "graphs", "B", ("engine", "graphs"))
    if deployment.parallel.ranks > 1:
        fixed = fixed + name(engine.communicator, "communicator", "B", ("engine", "communicator"))
    if engine.kv_rule == "all":
        return fixed
    usable: Num = name(deployment.hardware.usable, "usable", "B", ("hardware", "memory", "usable"))
    unused = 1.0 - memory_fraction(deployment, name, budget)
    if engine.kv_rule == "static_of_total":
        held_back: Num = np.maximum(fixed, usable * unused - activations)
        return held_back
    if engine.kv_rule == "of_free":
        free: Num = np.maximum(usable - weights - activations - fixed, 0.0)
        return fixed + unused * free
    return fixed + unused * usable


def memory_fraction(deployment: Deployment, name: Naming = plain, budget: Num | None = None) -> Num:
    """The share of memory that the engine works with: its default or flag, or SGLang's rule.

    SGLang (memory_hook.py): 1 - (512 + 1.5 max(chunk, 2048) + 128 tp pp + 2 graph batch + graphs MiB)/memory, of
    which at least 10 GiB above 60 GB; rounded to three digits. The graph batch is 256, 512 from four ranks on;
    graphs are 8 MiB for each of 58 sizes, 1536 for latent attention.
    """
    engine, parallel, hardware = deployment.engine.defaults, deployment.parallel, deployment.hardware
    if engine.memory_fraction is not None:
        return name(engine.memory_fraction, "fraction", "", ("engine", "memory_fraction"))
    latent = any(part.kind == "mla" for layer, _ in deployment.model.distinct for part in layer.parts)
    memory = name(hardware.usable, "usable", "B", ("hardware", "memory", "usable")) / _MIB
    own = engine.tier(hardware).token_budget if budget is None else budget
    chunk = name(own, "chunk", "", ("engine", "tiers", "token_budget"))
    kept = 512 + 1.5 * np.maximum(chunk, 2048)
    kept = kept + name(1536 if latent else 8 * 58, "graphs of prompts")
    kept = kept + 128 * name(parallel.tp, "tp", "", ("parallel", "tp")) * name(
        parallel.pp, "pp", "", ("parallel", "pp")
    )
    kept = kept + 2 * name(512 if parallel.tp >= 4 else 256, "graph batch")
    if hardware.usable > _LARGE_MIB * _MIB:
        kept = np.maximum(kept, 10240)
    return name(_three_digits((memory - kept) / memory), "fraction")


def _three_digits(share: Num) -> Num:
    """Rounded as SGLang rounds it."""
    return floor(share * 1000 + 0.5) / 1000
