"""``inferplan web``."""

from __future__ import annotations

import webbrowser

import click

from inferplan.cli.layers import Layered
from inferplan.cli.numbers import WholeNumber
from inferplan.extras import require


@click.command("web", cls=Layered)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on, on this machine only.")
@click.option("--port", type=WholeNumber(0, 65535), default=8765, show_default=True, help="Port; 0 takes a free one.")
@click.option("--folder", metavar="DIR", help="Folder from which requests may read files [none].")
@click.option("--no-browser", is_flag=True, help="Do not open the page.")
def web_command(host: str, port: int, folder: str | None, no_browser: bool) -> None:
    """A page in the browser: a deployment, its memory, its roofline and its curves, updated as you change options. Its
    JSON API takes the options of the commands and gives their answers (docs/web.md). It needs the extra web, makes no
    network connections, and ends with Ctrl-C.

    Example: inferplan web
    """
    require("web", "the page")
    from inferplan.cli.programs import CommandLine
    from inferplan.web.serve import Place, serve

    def ready(address: str) -> None:
        click.echo(f"listening on {address} (Ctrl-C ends it)", err=True)
        if not no_browser:
            webbrowser.open(address)

    serve(Place(host=host, port=port, folder=folder), CommandLine(), ready)
