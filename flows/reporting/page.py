"""What keeps a run's page from being written costs the page, and not the run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipelines.core.redaction import redacted


@contextmanager
def costing_the_page_alone(note: Callable[[str], None]) -> Iterator[None]:
    """Give `note` a sentence where the page cannot be written: by then the work itself is done."""
    try:
        yield
    # Prefect, its HTTP client and what draws the pictures have no kind of error in common.
    except Exception as error:  # noqa: BLE001
        note(f"the report is missing on the run's page, which said: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of what was raised, without secrets."""
    lines = redacted(str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
