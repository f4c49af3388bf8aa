"""The batch of given numbers that needs the most memory."""


def worst_lengths(
    num_tokens: int, longest: int, num_sequences: int | None = None
) -> tuple[int, ...]:
    """The lengths that need the most memory among those that fit the numbers.

    As many sequences as can be are as long as the longest; None: so are all, up to the last one.
    Raises ValueError where no sequences fit the numbers.
    """
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be at least 1, got {num_tokens}")
    if not 1 <= longest <= num_tokens:
        raise ValueError(f"longest must lie in [1, {num_tokens}], got {longest}")
    fewest, most = -(-num_tokens // longest), num_tokens - longest + 1
    count = fewest if num_sequences is None else num_sequences
    if not fewest <= count <= most:
        raise ValueError(f"num_sequences must lie in [{fewest}, {most}], got {count}")
    if longest == 1:
        return (1,) * num_tokens
    num_full, rest = divmod(num_tokens - count, longest - 1)  # every sequence has one token anyway
    lengths = (longest,) * num_full + (1 + rest,) * (rest > 0)
    return lengths + (1,) * (count - len(lengths))
