"""MLflow's searches answer page by page: all that they find, one after another."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def pages(ask: Callable[[str | None], Any]) -> Iterator[Any]:
    """Everything on all pages; `ask(token)` fetches the page that `token` names, None the first."""
    token: str | None = None
    while True:
        page: Iterable[Any] = ask(token)
        yield from page
        token = getattr(page, "token", None)
        if not token:
            return
