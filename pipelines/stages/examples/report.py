"""What a split's examples hold, in numbers: the statistics of the manifest."""

from typing import Any


def describe(
    encoded: list[dict[str, Any]],
    made: list[dict[str, Any]],
    cut: list[dict[str, Any]],
) -> dict[str, Any]:
    """Statistics of a split, from what its tasks counted: encoding, making examples, cutting."""

    def total(rows: list[dict[str, Any]], key: str) -> int:
        return sum(row.get(key, 0) for row in rows)

    examples, tokens = total(made, "examples"), total(made, "tokens")
    statistics = {
        "examples": examples,
        "tokens": tokens,
        "mean_tokens": round(tokens / examples, 2),
        "shards": len(cut),
        "shard_tokens_min": min(row["tokens"] for row in cut),
        "shard_tokens_max": max(row["tokens"] for row in cut),
        "corpus_documents": total(encoded, "documents"),
        "corpus_sentences": total(encoded, "sentences"),
        "corpus_tokens": total(encoded, "tokens"),
        "sentences_without_pieces": total(encoded, "empty_sentences"),
    }
    if any("random_next" in row for row in made):
        statistics["random_next_share"] = round(total(made, "random_next") / examples, 4)
        statistics["examples_without_choice"] = total(made, "examples_without_choice")
        statistics["truncated_tokens"] = total(made, "truncated_tokens")
    if total(made, "masked_tokens"):
        statistics["masked_tokens"] = total(made, "masked_tokens")
    return statistics
