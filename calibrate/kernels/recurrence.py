"""Recurrences in plain torch: gated linear attention of given sizes, step by step or in chunks; causal convolutions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

CHUNK = 64
"""Tokens that the chunked form takes at once."""


@dataclass(frozen=True, kw_only=True)
class GatedScan:
    """``S <- a S + v k^T``, ``y = S q`` with a decay for each head (gated linear attention, 2312.06635 eq. 3).

    A ``Scan`` operator states sizes, not the algebra of one model, and this is the recurrence of those sizes: ``heads``
    of ``value`` channels and keys of ``key``; queries, keys, values and decays are slices of ``x [batch, new, inputs]``
    (which wrap around when a token has fewer inputs), the state is ``[batch, heads, value, key]``.
    """

    heads: int
    value: int
    key: int

    def parts(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries and keys ``[b, t, k]``, values ``[b, t, h, v]``, log decays ``[b, t, h]``."""
        q, k = _take(x, 0, self.key), _take(x, self.key, self.key)
        v = _take(x, 2 * self.key, self.heads * self.value).unflatten(2, (self.heads, self.value))
        return q, k, v, -F.softplus(_take(x, 2 * self.key + self.heads * self.value, self.heads))

    def steps(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """One token after another: the definition, and what a decode step runs."""
        q, k, v, decay = (part.to(state.dtype) for part in self.parts(x))
        outputs = []
        for t in range(x.shape[1]):
            state.mul_(decay[:, t, :, None, None].exp()).add_(v[:, t, :, :, None] * k[:, t, None, None, :])
            outputs.append((state @ q[:, t, None, :, None]).squeeze(-1))
        return torch.stack(outputs, dim=1).flatten(2).to(x.dtype)

    def chunks(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """``CHUNK`` tokens at a time as matmuls: within the chunk, from the state before it, and the state after it."""
        q, k, v, decay = (part.to(state.dtype) for part in self.parts(x))
        outputs = []
        for start in range(0, x.shape[1], CHUNK):
            part = slice(start, start + CHUNK)
            total = decay[:, part].cumsum(1).transpose(1, 2)  # [b, h, t]
            gates = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
            scores = gates * (q[:, part] @ k[:, part].transpose(1, 2))[:, None]
            values = v[:, part].transpose(1, 2)  # [b, h, t, v]
            carried = (q[:, part][:, None] @ state.transpose(2, 3)) * total.exp()[..., None]
            outputs.append((scores @ values + carried).transpose(1, 2))
            weighted = values * (total[..., -1:] - total).exp()[..., None]
            state.mul_(total[..., -1, None, None].exp()).add_(weighted.transpose(2, 3) @ k[:, part][:, None])
        return torch.cat(outputs, dim=1).flatten(2).to(x.dtype)


def _take(x: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """``size`` inputs from ``start`` on; from the first again after the last."""
    inputs = x.shape[2]
    start %= inputs
    if start + size <= inputs:
        return x[..., start : start + size]
    repeats = -(-(start + size) // inputs)
    return x.repeat(1, 1, repeats)[..., start : start + size]


def causal_convolution(x: torch.Tensor, state: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Depthwise over ``x [b, c, t]`` with the last inputs in ``state [b, c, taps - 1]``, which is updated."""
    past = torch.cat([state, x], dim=2)
    state.copy_(past[:, :, x.shape[2] :])
    if x.shape[2] == 1:
        return (past * taps).sum(dim=2, keepdim=True)
    return F.conv1d(past, taps[:, None, :], groups=taps.shape[0])


def exact_convolution(x: torch.Tensor, state: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """The sum itself, in float64."""
    past, width = torch.cat([state, x], dim=2).double(), taps.shape[1]
    return torch.stack([(past[:, :, t : t + width] * taps.double()).sum(2) for t in range(x.shape[2])], dim=2)


def long_convolution(u: torch.Tensor, filters: torch.Tensor, new: int) -> torch.Tensor:
    """The last ``new`` outputs of ``u [b, c, length]`` convolved with causal filters as long, ``[c, length]``."""
    length = u.shape[2]
    if new == 1:
        return (u * filters.flip(1)).sum(dim=2, keepdim=True)
    size = 2 * length
    spectrum = torch.fft.rfft(u.float(), n=size) * torch.fft.rfft(filters.float(), n=size)
    return torch.fft.irfft(spectrum, n=size)[..., length - new : length].to(u.dtype)


def exact_long_convolution(u: torch.Tensor, filters: torch.Tensor, new: int) -> torch.Tensor:
    """The sum itself, in float64."""
    length, backwards = u.shape[2], filters.double().flip(1)
    columns = [(u[:, :, : t + 1].double() * backwards[:, length - 1 - t :]).sum(2) for t in range(length - new, length)]
    return torch.stack(columns, dim=2)
