"""``python -m tools.fitting COMMAND``: files of ``configs`` from kernel tables, published figures and serving rows."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from inferplan.errors import InferplanError

COMMANDS = {
    "tables": ("tables.command", "fit_tables", "Constants of every device in a folder of kernel tables."),
    "mechanisms": ("tables.command", "fit_mechanisms", "Mechanisms that the tables timed in whole modules."),
    "releases": ("tables.command", "fit_releases", "What engine releases took otherwise than the constants on file."),
    "relatives": ("tables.relatives", "fit_relatives", "Errors of constants carried from another device."),
    "libraries": ("tables.libraries", "fit_libraries", "Errors of constants carried from one library to another."),
    "llama": ("published.command", "fit_llama", "llama.cpp's constants, from rows of llama-bench."),
    "served": ("published.command", "fit_served", "Constants of MI300X and MI355X, from serving rows."),
    "serving": ("serving", "command", "Constants of a step that kernels do not tell, from closed-loop serving rows."),
    "serving-host": ("serving_host", "command", "What a sequence costs vLLM's host in a step, from serving rows."),
    "bands": ("bands", "command", "How far served latencies of an unseen system are off, from serving rows."),
    "tails": ("tails", "command", "How far texts differ in the drafts they accept, from serving rows."),
    "late": ("late", "command", "How late first tokens are in the tail, from serving rows."),
    "forms": ("forms", "command", "How far predicted ratios of two forms of serving are off, from serving rows."),
    "filters": ("filters", "command", "Kernels that keep the tokens of top-k and top-p, from published times."),
    "host-experts": ("host_experts", "command", "What kernels of experts reach on a host, from published speeds."),
    "processors": ("processors", "command", "What llama.cpp reaches on processors, from published speeds."),
    "host": ("published.host", "command", "The same of vLLM and TensorRT-LLM, from published batches and peaks."),
}
"""The module of each command under ``tools.fitting``, its function there, and what it makes."""


class Fitting(click.Group):
    """Commands that are imported when one of them runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        found = getattr(import_module(f"tools.fitting.{module}"), name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (*_, what) in COMMANDS.items()])


@click.command(cls=Fitting, help="Fit the constants in configs to published data.")
def fitting() -> None:
    """The group of :data:`COMMANDS`."""


def main() -> None:
    """Run the command that the arguments name; an error is said in its own words, with its exit code."""
    try:
        fitting(prog_name="python -m tools.fitting")
    except InferplanError as error:
        click.echo(error, err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
