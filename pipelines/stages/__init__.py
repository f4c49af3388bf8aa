"""The stages of the chain, in its order, and which one makes which kind of artifact.

Nothing heavy is imported here: who asks for a stage's name does not load torch or Ray.
"""

from pipelines.stage import Stage, Statistics

_MUCH_UNKNOWN = 0.005


def _score(statistics: Statistics) -> str:
    """The family's main score, and of how many seeds it is the best."""
    name = statistics["score"]
    score = f"{name.removeprefix('eval/').replace('_', ' ')} {statistics[name]:.1%}"
    if f"deviation/{name}" not in statistics:
        return score
    return (
        f"{score}, of {statistics['num_seeds']} seeds {statistics[f'mean/{name}']:.1%} "
        f"± {statistics[f'deviation/{name}']:.1%}"
    )


def _tokens(statistics: Statistics) -> str:
    """The size, how much of a text is lost, and by how much different words become fewer."""
    size, heldout = f"{statistics['size']:,} tokens", statistics.get("heldout", {})
    unknown = heldout.get("unknown_character_share", 0)
    if unknown >= _MUCH_UNKNOWN:
        size += f", [UNK] stands for {unknown:.1%} of the characters of held-out text"
        if heldout["long_word_character_share"] > unknown / 2:
            size += ", mostly in words of more than 100 characters: separate words by blanks"
        elif statistics.get("characters_left_out"):
            size += ": raise max_characters"
    merged = heldout.get("merged_share")
    if merged:
        return f"{size}; strip_accents merges {merged:.1%} of the different words"
    is_taken_over = merged is None and statistics.get("strips_accents")
    return f"{size}; texts lose accents and other marks" if is_taken_over else size


def _items(statistics: Statistics) -> str:
    """How many there are, and how many of the held-out ones are trained on as well."""
    items = f"{sum(statistics['items'].values()):,} items"
    trained_on = statistics.get("heldout_also_in_train", 0)
    return f"{items}; {trained_on:,} held-out ones are trained on as well" if trained_on else items


CORPUS = Stage(
    name="corpus",
    title="corpus",
    kind="corpus",
    version=6,
    headline=lambda statistics: f"{statistics['train']['documents']:,} training documents",
)
VOCABULARY = Stage(
    name="vocabulary", title="vocabulary", kind="vocabulary", version=1, headline=_tokens
)
EXAMPLES = Stage(
    name="examples",
    title="examples",
    kind="examples",
    version=2,
    headline=lambda statistics: f"{statistics['train']['examples']:,} training examples",
)
PRETRAINING = Stage(
    name="pretraining",
    title="pretraining",
    kind="encoder",
    version=5,
    headline=lambda statistics: f"{statistics['num_parameters']:,} parameters",
)
DATASET = Stage(name="dataset", title="dataset", kind="dataset", version=11, headline=_items)
FINETUNING = Stage(
    name="finetuning", title="fine-tuning", kind="finetuned", version=9, headline=_score
)
EVALUATION = Stage(
    name="evaluation", title="evaluation", kind="evaluation", version=10, headline=_score
)

CHAIN = (CORPUS, VOCABULARY, EXAMPLES, PRETRAINING, DATASET, FINETUNING, EVALUATION)
STAGES = {stage.kind: stage for stage in CHAIN}
