"""How items become sequences of tokens."""
