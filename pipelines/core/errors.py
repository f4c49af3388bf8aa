"""Errors that a person can act on."""


class UserError(ValueError):
    """Something the person running Bertsmith can put right; its text is one clear sentence.

    Say what must hold, what was found, and what to do. The command line prints the text alone
    and exits with code 2; a flow run fails with it as its message.
    """
