"""Paged against contiguous allocation, and copy-on-write for parallel samples: tokens of cache, not times.

A paged request leaves half a block empty on average; a contiguous one reserves the longest sequence it might become.
With ``n`` samples of one prompt, pages of the prompt are shared until written to (PagedAttention, 2309.06180, section
4.4), so they are held once instead of ``n`` times; only a partly filled last block is copied.

Nothing is priced with these: they are the published counts, for people (docs/techniques/paging.md) and for the tests
that hold the simulator's cache against them.
"""

from __future__ import annotations

import numpy as np

from inferplan.units import Num


def paged_tokens(tokens: Num, block: int) -> Num:
    """Tokens of cache in whole pages: ``ceil(tokens/block)*block``."""
    return np.ceil(np.asarray(tokens, dtype=np.float64) / block) * block


def waste(tokens: Num, reserved: Num) -> Num:
    """Share of an allocation that holds nothing: ``1 - tokens/reserved``."""
    return 1.0 - np.asarray(tokens, dtype=np.float64) / np.asarray(reserved, dtype=np.float64)


def requests_held(capacity: float, tokens: Num, block: int) -> Num:
    """Requests of ``tokens`` that a paged cache of ``capacity`` tokens holds."""
    return np.floor(capacity / paged_tokens(tokens, block))


def admitted_contiguous(capacity: float, longest: Num) -> Num:
    """Requests that a cache holds when each reserves ``longest`` tokens."""
    return np.floor(capacity / np.asarray(longest, dtype=np.float64))


def shared_samples(prompt: Num, output: Num, samples: Num, block: int) -> Num:
    """Tokens of cache of ``samples`` completions that share their prompt's full blocks: copy on write."""
    prompt, output = np.asarray(prompt, dtype=np.float64), np.asarray(output, dtype=np.float64)
    full = np.floor(prompt / block) * block
    return full + samples * paged_tokens(prompt - full + output, block)


def sharing_gain(prompt: Num, output: Num, samples: Num, block: int) -> Num:
    """How many times the cache it would take without sharing."""
    apart = samples * paged_tokens(np.asarray(prompt, dtype=np.float64) + output, block)
    return apart / shared_samples(prompt, output, samples, block)
