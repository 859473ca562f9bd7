"""Questions drawn at random, with what the command line prints: for the tests of the browser's build."""

from __future__ import annotations

import random
import shlex
from dataclasses import dataclass

from click.testing import CliRunner

from inferplan.catalog.files import names
from inferplan.cli import cli, refusal
from tests.web.browser import APART

FORMATS = (None, None, None, "bf16", "fp8", "w4a16", "int8", "nvfp4", "q4_k_m")


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What a command line prints, and its exit code."""

    stdout: str
    stderr: str
    code: int


def drawn(random: random.Random) -> str:
    """A command line over the whole catalogue."""
    models, gpus = names("models"), names("hardware")
    model, gpu, tp = random.choice(models), random.choice(gpus), random.choice((1, 1, 2, 4, 8))
    quant = random.choice(FORMATS)
    where = [model, "--gpu", gpu, *(("--tp", tp) if tp > 1 else ()), *(("--quant", quant) if quant else ())]
    batch, prompt = random.choice((1, 2, 8, 32, 128)), random.choice((100, 1024, 4096, 16000))
    output = random.choice((1, 64, 256, 1000))
    load = ["--prompt", prompt, "--output", output]
    kind = random.random()
    if kind < 0.7:
        words = ["estimate", *where, "--batch", batch, *load]
    elif kind < 0.8:
        words = ["fit", model, "--gpu", gpu, "--context", prompt + output, "--in-flight", batch]
    elif kind < 0.9:
        words = ["compare", *where, "--vs", f"gpu={random.choice(gpus)}", "--batch", batch, *load]
    else:
        few = ["--prompt", min(prompt, 1024), "--output", min(output, 64), "--requests", 40]
        words = ["simulate", *where, *(("--in-flight", 4) if kind < 0.95 else ("--rate", 2)), *few]
    return shlex.join(["inferplan", *map(str, words)])


def printed(line: str) -> Printed:
    """What the command line prints."""
    result = CliRunner(**APART).invoke(cli, shlex.split(line)[1:], standalone_mode=False, obj={})
    error = result.exception
    if error is None:
        return Printed(stdout=result.stdout, stderr=result.stderr, code=0)
    if isinstance(error, SystemExit):
        return Printed(stdout=result.stdout, stderr=result.stderr, code=int(error.code or 0))
    said = refusal(error)
    return Printed(stdout=result.stdout, stderr=f"{result.stderr}{said.render()}\n", code=said.exit_code)


def points(seed: int, answered: int, refused: int) -> dict[str, Printed]:
    """So many questions that are answered, and so many that are refused, with what is printed."""
    source, found, left = random.Random(seed), {}, {True: answered, False: refused}
    while any(left.values()):
        line = drawn(source)
        said = printed(line)
        assert said.code != 1, f"{line}\n{said.stderr}"
        if line not in found and left[said.code == 0]:
            found[line] = said
            left[said.code == 0] -= 1
    return found


def differing(asked: dict[str, Printed], said: list[dict[str, object]]) -> list[str]:
    """Questions of which the browser prints something else, with the first line that differs."""
    wrong = []
    for (line, expected), got in zip(asked.items(), said, strict=True):
        mine = [*expected.stdout.splitlines(), *expected.stderr.splitlines(), str(expected.code)]
        theirs = [*str(got["stdout"]).splitlines(), *str(got["stderr"]).splitlines(), str(got["code"])]
        if mine != theirs:
            first = next(((a, b) for a, b in zip(mine, theirs) if a != b), ("lines", f"{len(mine)} and {len(theirs)}"))
            wrong.append(f"{line}\n  {first[0]}\n  {first[1]}")
    return wrong
