"""Command lines with words that nobody means: options of every command with values of the wrong kind, drawn by a seed.

``python -m tests.hostile_options 2000 [SEED]`` (``make hostile``) asks each in a process of its own, in a folder of the
files that they name, and prints those that end with a bug (exit code 1, a traceback, a signal) or that cost more than
:data:`CPU` or :data:`MEMORY`.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

import tests.conftest  # noqa: F401  (the environment that tests run in)
from inferplan.cli import cli
from tests.silent_options.files import place
from tests.silent_options.scan import _values, ask, command_of, lines, options_of

CPU, MEMORY = 10.0, 1e9
"""Seconds and bytes that a command line may cost, at most."""
WALL = 180
CODES = frozenset({0, 2, 3, 4, 5, 6})
OTHERS = (
    "learn records.jsonl --model llama-3.1-8b --gpu h100-sxm --engine vllm --out learned.yaml",
    "measure http://127.0.0.1:9 --model llama-3.1-8b --gpu h100-sxm --engine vllm --quant bf16 --out rows.csv",
    "calibrate --fit-only --raw records.jsonl --out fitted.yaml --gpu h100-sxm",
    "watch http://127.0.0.1:9 --plan missing.json",
    "web --no-browser",
    "compile",
    "completion bash",
)
"""Lines of commands that the scan for silent options does not ask."""
REFUSED_AT_LAST = {"web": ["--port", "x"], "compile": ["--format", "x"]}
"""Words behind all others: a server does not start, and nothing is compiled."""
HEAVY = {"import --trace"}
"""Options that import torch and transformers: more seconds and bytes than any value costs."""
WORDS = (
    *("", " ", "-", "--", "-1", "0", "00", "1", "-0", "+1", "1.5", "1e3", "1e30", "1e400", "-1e-320", "4e-324"),
    *("nan", "NaN", "inf", "-inf", "Infinity", "0x10", "1_000", "1,000", "9" * 400, "None", "null", "true", "[]", "{}"),
    *("1GB", "-1GB", "1e300GB", "nanGB", "0B", "5 parsecs", "1s", "-1s", "1e300s", "1/0", "1/1", "50%", "-5%", "1e9%"),
    *("é", "１２", "٣", "\u202e8", "\u200b", "🦙", "a" * 5000, "ß" * 300, "llama-3.1-8b", "h100-sxm", "fp8", "fp9"),
    *("1-", "-", "1-8*0", "1-8*-1", "8-1", "1-1e9", "1-1000000000", "1,,2", ",", ";", ":", "=", "=x", "x=", "a=b=c"),
    *("uniform:1:2", "lognormal:nan:1", "normal:1e300:1", "gamma:100:1e-9", "gamma:1000:1e9", "uniform:1000:-1"),
    *("lognormal:1000:1e9", "normal:1000:1e300", "host:1GB", "host::", "host:1e300GB:1e300GB/s", "none", "free", "mtp"),
    *("folder", "folder/", "/dev/null", "/dev/zero", "/proc/self/mem", ".", "..", "/", "missing.json", "no/such/dir/x"),
    *("bomb.yaml", "cycle.yaml", "tag.yaml", "twice.yaml", "deep.yaml", "deep.json", "bytes.bin", "empty.yaml"),
    *(
        "empty.csv",
        "half.json",
        "nulls.csv",
        "wide.csv",
        "config.json",
        "trace.csv",
        "bench.csv",
        "own.yaml",
        "day.csv",
    ),
    *(
        "$HOME",
        "~",
        "`id`",
        "%s%n",
        "../../etc/passwd",
        "file:///etc/passwd",
        "\\\\host\\x",
        "a\tb",
        "'; --",
        "http://x",
    ),
)
"""Values of no particular option."""
_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij")
)
FILES: dict[str, bytes] = {
    "bomb.yaml": _BOMB.encode(),
    "cycle.yaml": b"a: &a [*a]\nname: &b {x: *b}\n",
    "tag.yaml": b"!!python/object/apply:os.system ['true']\n",
    "twice.yaml": b"name: a\nname: b\n",
    "deep.yaml": b"[" * 20_000,
    "deep.json": b"[" * 100_000,
    "bytes.bin": bytes(range(256)) * 64,
    "empty.yaml": b"",
    "empty.csv": b"",
    "half.json": b'{"a": [1, 2',
    "nulls.csv": b"model,gpu\n\0,\0\n",
    "wide.csv": b"x," * 20_000 + b"\n" + b"1," * 20_000,
    "records.jsonl": b'{"step": 1}\n',
}


@dataclass(frozen=True)
class Ended:
    """How a command line ended. code: as the process said it, or minus a signal; CPU [s] and memory [bytes]."""

    code: int
    seconds: float
    memory: float
    said: str

    @property
    def wrong(self) -> str:
        """What must not be, in words; empty for a good end."""
        if self.code not in CODES or "Traceback" in self.said:
            return f"exit {self.code}"
        return (
            f"{self.seconds:.1f} CPU s"
            if self.seconds > CPU
            else (f"{self.memory / 1e6:.0f} MB" if self.memory > MEMORY else "")
        )


def commands() -> dict[str, list[str]]:
    """The lines of each command to begin from."""
    found: dict[str, list[str]] = {}
    for line in [*lines(), *OTHERS]:
        found.setdefault(command_of(line.split())[0], []).append(line)
    return found


def _twisted(draw: random.Random, value: str) -> str:
    """A value that was meant, spoilt."""
    place = draw.randrange(len(value) + 1)
    parts = (value[:place], value[place:], f"{value[:place]}\u00e9{value[place:]}", value.upper())
    return draw.choice(
        (*parts, f"-{value}", f"{value}e30", f"{value * 2}", f"{value},{value}", f" {value}", f"{value}=1")
    )


def _value(draw: random.Random, name: str, option: click.Option) -> str:
    meant = _values().get(f"{name} {option.opts[0]}") or _values().get(option.opts[0]) or []
    return _twisted(draw, draw.choice(meant).rstrip("!~")) if meant and draw.random() < 0.4 else draw.choice(WORDS)


def drawn(count: int, seed: int) -> Iterator[list[str]]:
    """The words of so many command lines: each command is as likely, and has one to three options more, or another
    argument."""
    draw, known = random.Random(seed), commands()
    for _ in range(count):
        name = draw.choice(sorted(known))
        words = draw.choice(known[name]).split()
        command = command_of(words)[1]
        options = [one for one in options_of(command) if f"{name} {one.opts[0]}" not in HEAVY]
        for option in draw.sample(options, min(len(options), draw.choice((1, 1, 2, 3)))):
            at = [place for place, word in enumerate(words) if word in option.opts]
            flag = option.is_flag and draw.random() < 0.8
            value = [] if flag else [_value(draw, name, option)]
            if at and not option.is_flag:
                words[at[0] + 1 : at[0] + 2] = value
            else:
                words += [draw.choice([*option.opts, *option.secondary_opts]), *value]
        if draw.random() < 0.15:
            words[draw.randrange(1, len(words))] = draw.choice(WORDS)
        yield words + REFUSED_AT_LAST.get(name, [])


def ended(words: list[str], folder: Path) -> Ended:
    """The end of a command line that runs in a fork of this process, in a folder."""
    answer = folder / "said.txt"
    process = os.fork()
    if not process:
        try:
            os.chdir(folder)
            resource.setrlimit(resource.RLIMIT_CPU, (int(3 * CPU), int(3 * CPU) + 1))
            signal.alarm(WALL)
            found = ask(words)
            answer.write_text(f"{found.code}\n{found.said}", encoding="utf-8", errors="replace")
        except BaseException as error:  # what main() does not turn into an exit code is a bug
            answer.write_text(f"1\nTraceback: {error!r}")
        finally:
            os._exit(0)
    status, used = os.wait4(process, 0)[1:]
    code, _, said = answer.read_text(encoding="utf-8").partition("\n") if answer.exists() else ("", "", "")
    answer.unlink(missing_ok=True)
    ends = int(code) if code else -os.WTERMSIG(status)
    return Ended(ends, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024.0, said)


def main(count: int, seed: int) -> int:
    codes, worst, wrong = Counter[int](), Ended(0, 0.0, 0.0, ""), 0
    with tempfile.TemporaryDirectory() as name:
        folder, here = Path(name), os.getcwd()
        os.chdir(folder)
        place(folder)
        (folder / "folder").mkdir()
        for file, held in FILES.items():
            (folder / file).write_bytes(held)
        ask(["estimate", "llama-3.1-8b", "--gpu", "h100-sxm"])  # what each would import
        for number, words in enumerate(drawn(count, seed), 1):
            found = ended(words, folder)
            codes[found.code] += 1
            worst = max(worst, found, key=lambda one: one.seconds)
            if found.wrong:
                wrong += 1
                shown = " ".join(
                    repr(word[:60]) if not word.isascii() or " " in word or not word else word[:60] for word in words
                )
                print(f"{number} {found.wrong}: {shown}\n    {' '.join(found.said.split())[:300]}", flush=True)
        os.chdir(here)
    ends = ", ".join(f"{number:,} exit {code}" for code, number in sorted(codes.items()))
    print(f"{count:,} command lines, seed {seed}: {ends}; the dearest {worst.seconds:.1f} CPU s; {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    assert cli.name
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 36))
