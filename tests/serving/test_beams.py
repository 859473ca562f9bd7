"""Beam search: pages against tables of blocks that are replayed, rounds against single steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import prompt_drain
from inferplan.estimate.run import estimate
from inferplan.reports.beams import beams_figures
from inferplan.serving.techniques.beams import BeamSearch
from tests.cases import for_each
from tests.command import exit_code

Parents = list[list[int]]
"""For each round the beam that each beam continues."""


def search(width: int = 4, engine: str = "vllm", **load: float) -> BeamSearch:
    asked = {"batch": 1.0, "prompt": 1024.0, "output": 256.0, **load}
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine=engine, ideal=True))
    return BeamSearch(deployment=deployment, load=StaticLoad(**asked), width=width)


def tables(prompt: int, output: int, width: int, parents: Parents, block: int) -> tuple[int, list[list[int]]]:
    """vLLM's blocks, replayed: tokens in pages that the requests of the last round refer to, and what every request of
    every round computes.

    A whole block is known by all tokens up to its end. A request takes those of its history that are cached, but for
    the one with its last token, and has the rest for itself until they are whole.
    """
    known: set[tuple[Any, ...]] = set()
    beams: list[tuple[Any, ...]] = [tuple(("p", place) for place in range(prompt))]
    computed: list[list[int]] = []
    references: Counter[tuple[Any, ...]] = Counter()
    for step in range(output):
        references.clear()
        new = []
        for index, tokens in enumerate(beams):
            found = 0
            while (found + 1) * block < len(tokens) and tokens[: (found + 1) * block] in known:
                found += 1
            new.append(len(tokens) - found * block)
            for page in range(-(-len(tokens) // block)):
                end = (page + 1) * block
                references[tokens[:end] if page < found else (index, page)] += 1
        for tokens in beams:
            known.update(tokens[: (page + 1) * block] for page in range(len(tokens) // block))
        computed.append(new)
        if step + 1 < output:
            beams = [(*beams[parent], (step, beam)) for beam, parent in enumerate(parents[step])]
    return len(references) * block, computed


def apart(width: int, output: int) -> Parents:
    """Beams that part with the first token."""
    return [[0] * width] + [list(range(width))] * (output - 1)


def together(width: int, output: int) -> Parents:
    """Beams that all continue the same one, every time."""
    return [[0] * width] * output


@for_each(("prompt", "output", "width"), [(40, 30, 4), (48, 17, 2), (33, 16, 3), (31, 2, 4), (5, 60, 2)])
def test_pages_are_those_of_a_replay(prompt: int, output: int, width: int) -> None:
    found = search(width, prompt=float(prompt), output=float(output))
    least, most = found.bounds
    assert tables(prompt, output, width, apart(width, output), 16)[0] == most
    assert tables(prompt, output, width, together(width, output), 16)[0] == least
    rng = np.random.default_rng(prompt)
    for _ in range(5):
        parents = [[0] * width, *(rng.integers(0, width, width).tolist() for _ in range(output))]
        held, computed = tables(prompt, output, width, parents, 16)
        assert least <= held <= most
        assert [set(new) for new in computed] == [{int(new)} for new in found.recomputed]


def test_the_bounds_by_hand() -> None:
    """1279 tokens: 79 pages shared and one each, or 64 shared and 16 each; inside 256 tokens each, in pages of 32."""
    assert search().bounds == (1264 + 4 * 16, 1024 + 4 * 256)
    inside = search(engine="trtllm")
    whole = 1024 // inside.block * inside.block
    assert inside.bounds == (whole + 4 * 256, whole + 4 * 256)
    assert (
        search(prompt=1030.0, engine="trtllm").bounds[1]
        == 1024 + 4 * np.ceil((1286 - 1024) / inside.block) * inside.block
    )


def test_rounds_from_outside_are_steps_of_short_prompts() -> None:
    """Two requests of three beams: a prompt of 50 each, then six requests whose pages of 16 are cached but the last."""
    found = search(3, batch=2.0, prompt=50.0, output=5.0)
    by_hand = [(2, 50, 0), (6, 3, 48), (6, 4, 48), (6, 5, 48), (6, 6, 48)]
    seconds = [
        float(prompt_drain(found.deployment, float(b), float(new), float(past)).time) for b, new, past in by_hand
    ]
    assert found.rounds == pytest.approx(seconds, rel=1e-12)
    assert found.seconds == pytest.approx(sum(seconds), rel=1e-12)
    record = {figure.key: figure.value for figure in beams_figures(found)}
    assert record["recomputed_tokens_mean"] == 4.5
    assert record["requests_per_s"] == pytest.approx(2 / sum(seconds), rel=1e-12)
    assert record["kv_bytes_per_token"] == 131_072


def test_beams_inside_are_samples_of_a_prompt() -> None:
    found = search(4, engine="trtllm", prompt=512.0, output=64.0)
    load = StaticLoad(batch=1.0, prompt=512.0, output=64.0, samples=4.0)
    same = estimate(found.deployment, load)
    assert found.seconds == pytest.approx(float(same.e2el), rel=1e-12)
    assert found.bounds[1] * 131_072 == same.footprint.state_allocated


@for_each(
    ("words", "said"),
    [
        (("--beams", "1"), "1 must be 2 or more"),
        (("--beams", "4", "--engine", "sglang"), "beam search in sglang is not modelled"),
        (("--beams", "4", "--samples", "2"), "beam search (--beams) and several answers"),
        (("--beams", "4", "--thinking-tokens", "20"), "beam search (--beams) and thoughts"),
        (("--beams", "4", "--energy"), "beam search (--beams) and energy"),
        (("--beams", "4", "--no-kv-cache"), "beam search (--beams) and steps without a KV cache"),
        (("--beams", "4", "--grammar-compile", "2ms"), "--grammar-compile needs structured decoding"),
    ],
)
def test_what_is_refused(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, "estimate", "llama-3.1-8b", "--gpu", "h100-sxm", *words) == 2
    assert said in capsys.readouterr().err


def test_windows_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(monkeypatch, "estimate", "gemma-2-9b", "--gpu", "h100-sxm", "--beams", "4") == 2
    assert "layers see a window or a chunk" in capsys.readouterr().err


def test_a_width_of_one_is_no_search() -> None:
    with pytest.raises(UsageError, match="--beams must be 2 or more"):
        search(1)
