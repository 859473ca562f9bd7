"""Prefix caching with a given hit rate: prompts start with tokens whose keys and values are there already.

Only the rest of the prompt is computed, and it attends to all of it: a step of ``new = (1 - h)*prompt`` tokens with
``past = h*prompt``. The steady state and the simulator take a hit rate too; the simulator can also find hits itself,
from the block hashes of a trace, shared prefixes and conversations (:mod:`inferplan.serving.prefix_cache`).
"""

from __future__ import annotations

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import prompt_drain
from inferplan.units import Num


def cached_tokens(prompt: Num, hit_rate: Num) -> Num:
    """Tokens of prompts that need not be computed, where a share of each is cached; at least one is computed.

    Raises ``UsageError`` for a rate outside [0, 1).
    """
    rate = np.asarray(hit_rate, dtype=np.float64)
    if np.any(rate < 0) or np.any(rate >= 1):
        raise UsageError("a prefix-cache hit rate is in [0, 1)")
    return np.minimum(np.floor(np.asarray(prompt) * rate), np.asarray(prompt) - 1.0)


def cached_prefill(deployment: Deployment, batch: Num, prompt: Num, hit_rate: Num) -> Num:
    """Seconds of the prefill of ``batch`` prompts of which a share is cached.

    Raises ``UsageError`` for a rate outside [0, 1).
    """
    past = cached_tokens(prompt, hit_rate)
    return prompt_drain(deployment, batch, prompt - past, past).time


def prefix_gain(deployment: Deployment, batch: Num, prompt: Num, hit_rate: Num) -> Num:
    """How many times faster the prefill is than with an empty cache."""
    return cached_prefill(deployment, batch, prompt, 0.0) / cached_prefill(deployment, batch, prompt, hit_rate)
