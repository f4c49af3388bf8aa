"""Errors that a person can act on."""

from pipelines.config.redaction import redacted


def first_line(error: BaseException) -> str:
    """The first line of what was raised, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class UserError(ValueError):
    """Something the person running Bertsmith can put right; its text is one clear sentence.

    Say what must hold, what was found, and what to do. The command line prints the text alone
    and exits with code 2; a flow run fails with it as its message. Secrets inside URIs are cut.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(redacted(sentence))
