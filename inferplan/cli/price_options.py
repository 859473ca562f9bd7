"""The options that say what devices cost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from inferplan.catalog.price_lists import CONTRACTS, DEFAULT_LISTS

Command = Callable[..., Any]


def price_options(command: Command) -> Command:
    """Adds prices; the command gets one ``prices`` (:class:`inferplan.catalog.price_lists.PriceBook`)."""

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        from inferplan.catalog.price_lists import price_book

        lists, stated = values.pop("price_lists"), values.pop("stated")
        book = price_book(lists, stated, values.pop("term"), values.pop("currency"))
        return command(prices=book, **values)

    decorated: Command = wrapper
    for option in reversed(
        [
            click.option(
                "--prices",
                "price_lists",
                multiple=True,
                metavar="LIST",
                help="Price list: a name (inferplan prices) or a YAML; again for a second choice "
                f"[{DEFAULT_LISTS['on-demand']}, then every other].",
            ),
            click.option(
                "--price",
                "stated",
                multiple=True,
                metavar="GPU=PRICE",
                help="Your own price for an hour: of a GPU (h100=2.49) or of an instance of 8 (b200=113.93/8).",
            ),
            click.option(
                "--term",
                type=click.Choice(CONTRACTS),
                default="on-demand",
                show_default=True,
                help="Terms: a spot instance may be taken away, a reserved one is paid for busy or idle, owned is an "
                "estimate.",
            ),
            click.option("--currency", help="Currency of --price and of the lists that are searched [USD]."),
        ]
    ):
        decorated = option(decorated)
    return decorated
