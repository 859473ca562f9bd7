"""What several answers of one prompt keep in the cache: the pages of the prompt once, and of each what follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.devices.engine import Windows
from inferplan.estimate.windows import in_pages, is_bounded
from inferplan.terms import Naming, plain
from inferplan.units import Num
from inferplan.work.ops import Mask


@dataclass(frozen=True, kw_only=True, eq=False)
class Sharing:
    """``samples`` answers of each request, which share the pages of its ``prompt`` tokens.

    Copy on write (PagedAttention, 2309.06180, section 4.4): whole pages of the prompt are held once; every answer
    writes to a last page that is partly filled, so each has one of its own.
    """

    samples: float = 1.0
    prompt: Num = 0.0

    def tokens(self, windows: Windows, mask: Mask, tokens: Num, block: int, name: Naming = plain) -> Num:
        """Tokens of cache that a layer keeps of a request whose answers end at ``tokens``, in pages of ``block``.

        ``pages(n) + (samples - 1)*own``: one whole answer, and of each other one what no other has.
        """
        one = in_pages(windows, mask, mask.cached(tokens), block)
        if self.samples == 1:
            return name(one, "cached tokens")
        shared = np.minimum(name(self.prompt, "prompt", "", ("load", "prompt")), tokens)
        shared = shared if block == 1 else np.floor(shared / block) * block
        if is_bounded(mask):  # of a window that reaches back into the prompt what it sees there is shared
            own = np.minimum(one, in_pages(windows, Mask(), tokens - shared, block))
        else:
            own = in_pages(windows, mask, mask.cached(tokens) - mask.cached(shared), block)
        others: Num = name(self.samples - 1.0, "further samples", "", ("load", "further samples"))
        kept: Num = name(one, "cached tokens of one sample")
        return kept + others * name(own, "cached tokens that each adds")


ALONE = Sharing()
"""One answer of each request."""
