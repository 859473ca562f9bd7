"""Writes docs/cli.md from the commands' own help: ``python docs/generate_cli.py``. A test says when it is stale."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from inferplan.cli import COMMANDS, cli
from inferplan.cli.layers import show_all

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 110
HELP = ["-h", "--help"]
HEAD = """# The command line

Written by `python docs/generate_cli.py` from the help of each command; do not edit.

Results go to stdout, messages and errors to stderr. `--format table|json|jsonl|csv|markdown`, or `-o FILE` with a
suffix that says so. Counts may be written `8k` (8000) or `8Ki` (8192); sizes need a unit (`64GB` is 64e9 bytes, `64GiB`
2^36). An empty text (`--quant ""`) is no value of any option; one
that changes nothing is refused, or the answer says so ([how that is tested](architecture.md#no-option-in-vain)).
[json.md](json.md) has the keys of the JSON.

| exit code | meaning |
|---:|---|
| 0 | answered |
| 1 | a bug |
| 2 | usage, a bad spec, an unknown name, a missing extra or device |
| 3 | infeasible: it does not fit, no plan meets the limits, the load never becomes stable, requests are rejected, a \
run with limits is saturated ([which ending exits how](serving.md#exit-codes-of-a-run)) |
| 4 | an input file is missing or cannot be read, an output file or stdout cannot be written |
| 5 | network or hub |
| 6 | outside the tolerance asked for |
| 130 | interrupted (Ctrl-C); what sweep, calibrate and measure had written is kept |

`inferplan COMMAND --help` shows the dozen options that most people need, `--help GROUP` those of one group,
`--help all` every option, as below. Flags of vLLM, SGLang, TensorRT-LLM, llama.cpp and of benchmark tools that mean
the same as an option here are taken for it, with a note on stderr: `--input-len 512` is `--prompt 512`,
`--tensor-parallel-size 2` is `--tp 2`. One that means nearly the same is answered with the right name. GPUs are read
as people write them: `2xA6000`, `"RTX 4090 x8"`, `"2x RTX 3090"`, `"H100 80GB"`, `"Mac Studio M3 Ultra"`.

A file is written beside its place and renamed when it is whole, so what was there stays where a disk is full or a run
is interrupted; where it goes is checked before the work. Control characters in arguments are refused, and those of
files (escape codes) are shown as `\\x1b`. A reader who leaves early (`| head`) is no error.

An error is one message: what happened, the numbers behind it, what would work. With `--format json` it is
[one line of JSON](json.md#errors).

    error: llama-3.1-70b in bf16 on 1 x h100-sxm does not fit
    because: weights 141.1 GB + state 419.4 MB + ... > 85.02 GB usable on each device
    hint: --tp 2, or --weights fp8
"""


def sections(command: click.Command, path: str, parent: click.Context | None = None) -> list[str]:
    """The help of a command and of those below it."""
    name = path.rsplit(maxsplit=1)[-1]
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH, help_option_names=HELP)
    text = [f"## {path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"]
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            below = command.get_command(context, inner)
            if below is not None:
                text += sections(below, f"{path} {inner}", context)
    return text


def page() -> str:
    """The whole reference."""
    root = click.Context(cli, info_name="inferplan", terminal_width=WIDTH, help_option_names=HELP)
    show_all(root)
    text = [HEAD]
    for name in COMMANDS:
        command = cli.get_command(root, name)
        if command is not None:
            text += sections(command, f"inferplan {name}", root)
    return "\n".join(text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"wrote {PAGE}\n")
