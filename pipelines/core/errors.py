"""Errors that a person can act on."""

from pipelines.core.redaction import redacted


class UserError(ValueError):
    """Something the person running Bertsmith can put right; its text is one clear sentence.

    Say what must hold, what was found, and what to do. The command line prints the text alone
    and exits with code 2; a flow run fails with it as its message. Secrets inside URIs are cut.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(redacted(sentence))
