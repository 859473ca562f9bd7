"""``inferplan mcp``."""

from __future__ import annotations

import click

from inferplan.cli.layers import Layered
from inferplan.cli.numbers import WholeNumber
from inferplan.extras import require
from inferplan.web.limits import MOST_SECONDS


@click.command("mcp", cls=Layered)
@click.option("--folder", metavar="DIR", help="Files that questions may name are read from here [none are].")
@click.option(
    "--seconds",
    type=WholeNumber(1, MOST_SECONDS),
    default=120,
    show_default=True,
    help="An answer that takes longer is ended.",
)
def mcp_command(folder: str | None, seconds: int) -> None:
    """The questions as tools of an assistant: the Model Context Protocol on stdin and stdout.

    A client starts this and ends it; docs/mcp.md has the lines for its configuration. It needs the extra mcp, reaches
    no network, writes no file, and reads none but those of --folder.

    Example: inferplan mcp --folder .
    """
    require("mcp", "the tools of an assistant")
    from inferplan.cli.programs import CommandLine
    from inferplan.web.protocol import Served, serve_tools

    serve_tools(
        Served(folder=folder, seconds=seconds),
        CommandLine(),
        lambda said: click.echo(f"inferplan mcp: {said}", err=True),
    )
