"""Stage: from documents and a vocabulary to training examples in even Arrow shards.

Corpus shards are encoded, examples are made of them, and these are cut into even shards; each task
of a step writes one file.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from bert_core.masking import MaskedTokens, mask_tokens
from bert_core.randomness import random_bits
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.cluster import map_tasks
from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages import EXAMPLES
from pipelines.stages.examples.objectives import (
    Examples,
    SpecialIds,
    full_sentences,
    sentence_pairs,
    token_windows,
)
from pipelines.stages.examples.settings import ExampleSet, ExampleSettings
from pipelines.stages.examples.shards import (
    VOCABULARY_FILES,
    example_schema,
    lists_in,
    read_example_batch,
    read_token_shard,
    write_examples,
    write_slices,
    write_token_shard,
)
from pipelines.stages.vocabulary.encoding import SentenceEncoder
from pipelines.store import Artifact, Built, Draft, Workspace
from pipelines.versions import versions_of

SPLITS = ("train", "heldout")
_MASKED_AT_ONCE: Final = 8192  # examples
_MOST_RANDOM: Final = 0.9  # of the pairs; half of them are to be
# Random segments come from at least so many documents, where that takes no more tokens than this.
_POOL_DOCUMENTS: Final = 16
_POOL_TOKENS: Final = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOfExamples:
    """Which examples to make: a pass over a corpus shard, and where random segments come from."""

    split: ExampleSet
    pass_number: int
    index: int
    pool: tuple[str, ...]  # corpus shards; the first is the one to make examples of

    @property
    def name(self) -> str:
        return f"examples-{self.split}-{self.pass_number:03d}-{self.index:06d}.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenShard:
    """A shard as training reads it: successive rows of working files."""

    name: str
    split: ExampleSet
    rows: tuple[tuple[str, int, int], ...]  # working file, first row, row after the last


def build_examples(
    settings: ExampleSettings, corpus: Artifact, vocabulary: Artifact, context: StageContext
) -> Artifact:
    """Make training examples of `corpus` in the tokens of `vocabulary`.

    Files `train-<pass>-*.arrow` and `heldout-<pass>-*.arrow` as the module `shards` says, and with
    `short_tokens` `short-<pass>-*.arrow`, the training text once more; the vocabulary's own
    `vocab.txt` and `tokenizer_config.json`. Held-out examples carry static masks, so that every
    evaluation sees the same.
    """
    return context.store.get_or_build(
        EXAMPLES.kind,
        version=EXAMPLES.version,
        settings=settings.named(),
        # Every draw is our own arithmetic, or one that Python's `random` guarantees.
        inputs={
            "corpus": corpus,
            "vocabulary": vocabulary,
            "libraries": versions_of("pyarrow", "tokenizers"),
        },
        build=partial(_build, settings, corpus, vocabulary, context),
    )


def _build(
    settings: ExampleSettings,
    corpus: Artifact,
    vocabulary: Artifact,
    context: StageContext,
    draft: Draft,
) -> Built:
    work = draft.workspace()
    for name in VOCABULARY_FILES:
        draft.write(name, vocabulary.local(name).read_bytes())
    corpus_shards = [name for split in SPLITS for name in corpus.names(f"{split}-")]
    encoding = partial(encode, corpus, vocabulary, work)
    figures = _run("encode", encoding, corpus_shards, context, 0)
    encoded = dict(zip(corpus_shards, figures, strict=True))
    to_make = [
        shard
        for split in settings.example_sets()
        for shard in _shards_of_examples(settings, split, encoded)
    ]
    making = partial(make_examples, settings, vocabulary, work)
    made = _run("make examples", making, to_make, context, len(encoded))
    _check_pairs(
        [figures for shard, figures in zip(to_make, made, strict=True) if shard.split == "train"]
    )
    even = _even_shards(settings, work, list(zip(to_make, made, strict=True)))
    cutting = partial(cut_shard, settings, vocabulary, work, draft)
    _run("cut shards", cutting, even, context, len(encoded) + len(made))
    statistics: dict[str, Any] = {
        "objective": settings.objective,
        "max_tokens": settings.max_tokens,
        "vocab_size": vocabulary.statistics["size"],
    }
    for split in settings.example_sets():
        statistics[split] = _describe(
            [encoded[name] for name in _corpus_shards(split, encoded)],
            [figures for shard, figures in zip(to_make, made, strict=True) if shard.split == split],
            num_shards=sum(shard.split == split for shard in even),
        )
    return Built([*VOCABULARY_FILES, *(shard.name for shard in even)], statistics)


def _check_pairs(made: list[dict[str, Any]]) -> None:
    """Raise UserError where documents of one sentence leave hardly a pair that is not random."""
    examples = sum(figures["examples"] for figures in made)
    random_next = sum(figures["random_next"] for figures in made)
    if random_next > _MOST_RANDOM * examples:
        raise UserError(
            f"{random_next / examples:.0%} of the sentence pairs would be random, as nearly every "
            "document is a single sentence; set a coarser layout of the text (--layout, or layout "
            "of the source), or choose examples.objective=mlm"
        )


def _describe(
    encoded: list[dict[str, Any]], made: list[dict[str, Any]], num_shards: int
) -> dict[str, Any]:
    """Statistics of a split, from what was counted when it was encoded and made."""

    def total(rows: list[dict[str, Any]], key: str) -> int:
        return sum(row.get(key, 0) for row in rows)

    examples, tokens = total(made, "examples"), total(made, "tokens")
    return {
        "examples": examples,
        "tokens": tokens,
        "mean_tokens": round(tokens / examples, 2),
        "shards": num_shards,
        "corpus_documents": total(encoded, "documents"),
        "corpus_sentences": total(encoded, "sentences"),
        "corpus_tokens": total(encoded, "tokens"),
        "masked_tokens": total(made, "masked_tokens"),
    }


def _run(
    step: str,
    task: Callable[[Any], dict[str, Any]],
    items: Sequence[Any],
    context: StageContext,
    num_done: int,
) -> list[dict[str, Any]]:
    """`task` of every item, in parallel; `num_done` tasks of other steps came before."""
    total = max(num_done + len(items), 3 * len(items))  # how many are to come is not known yet
    watch = context.watch(EXAMPLES.name, "tasks", total, done=num_done, step=step)
    return map_tasks(task, items, num_workers=context.runtime.num_workers, on_result=watch)


def _shards_of_examples(
    settings: ExampleSettings, split: ExampleSet, encoded: dict[str, dict[str, Any]]
) -> list[ShardOfExamples]:
    """The examples to make of `split`: every pass over every corpus shard that holds tokens."""
    names = [name for name in _corpus_shards(split, encoded) if encoded[name]["documents"]]
    if not names:
        raise UserError(
            f"the {split} part of the corpus has no text that the vocabulary can encode; check "
            "the corpus's report"
        )
    num_passes = 1 if split == "heldout" else settings.num_passes
    return [
        ShardOfExamples(
            split=split,
            pass_number=pass_number,
            index=index,
            pool=_pool(settings, names, index, encoded),
        )
        for pass_number in range(num_passes)
        for index in range(len(names))
    ]


def _corpus_shards(split: ExampleSet, names: Iterable[str]) -> list[str]:
    """Those of `names` that the examples of `split` are made of."""
    return [name for name in names if name.startswith("train-" if split != "heldout" else split)]


def _pool(
    settings: ExampleSettings, names: list[str], index: int, encoded: dict[str, dict[str, Any]]
) -> tuple[str, ...]:
    """The shard itself and, for pairs, as many that follow as give a choice of documents."""
    if settings.objective != "mlm_nsp":
        return (names[index],)
    pool: list[str] = []
    num_documents = num_tokens = 0
    groups: set[int] = set()
    for name in [*names[index:], *names[:index]]:
        figures = encoded[name]
        pool.append(name)
        num_documents += figures["documents"]
        num_tokens += figures["tokens"]
        groups.update(figures["groups"])
        if len(groups) > 1 and (num_documents >= _POOL_DOCUMENTS or num_tokens >= _POOL_TOKENS):
            break
    if len(groups) < 2:
        raise UserError(
            "sentence pairs need at least two documents in each part of the corpus; give more "
            "documents, a finer layout, or choose the objective mlm"
        )
    return tuple(pool)


def _even_shards(
    settings: ExampleSettings, work: Workspace, made: list[tuple[ShardOfExamples, dict[str, Any]]]
) -> list[EvenShard]:
    """Cut the examples of each pass, in their order, into shards with equally many tokens."""
    shards: list[EvenShard] = []
    passes = dict.fromkeys((shard.split, shard.pass_number) for shard, _ in made)
    for split, pass_number in passes:
        files = [
            (shard.name, figures["tokens"], figures["examples"])
            for shard, figures in made
            if (shard.split, shard.pass_number) == (split, pass_number) and figures["examples"]
        ]
        total = sum(tokens for _, tokens, _ in files)
        count = max(1, round(total / settings.shard_tokens))
        places = [_place(work, files, total * number // count) for number in range(count)]
        # An example longer than a shard takes the place of several.
        edges = dict.fromkeys([*places, (len(files), 0)])
        for number, (begin, end) in enumerate(pairwise(edges)):
            rows = tuple(
                (name, begin[1] if index == begin[0] else 0, end[1] if index == end[0] else size)
                for index, (name, _, size) in enumerate(files)
                if begin[0] <= index <= end[0] and (index != end[0] or end[1])
            )
            name = f"{split}-{pass_number:03d}-{number:05d}.arrow"
            shards.append(EvenShard(name=name, split=split, rows=rows))
    return shards


def _place(work: Workspace, files: list[tuple[str, int, int]], token: int) -> tuple[int, int]:
    """File and row of the first example that begins at `token` or after it."""
    index = 0
    while index < len(files) and token >= files[index][1]:
        token -= files[index][1]
        index += 1
    if index == len(files) or not token:
        return index, 0
    with work.local(files[index][0]) as path:
        (input_ids,) = lists_in(read_example_batch(path), "input_ids")
        row = int(np.searchsorted(input_ids.offsets, token))
    return (index, row) if row < files[index][2] else (index + 1, 0)


def encode(corpus: Artifact, vocabulary: Artifact, work: Workspace, name: str) -> dict[str, Any]:
    """Encode the corpus shard `name`; returns what was counted."""

    def write(path: Path) -> dict[str, Any]:
        return write_token_shard(corpus.local(name), path, _encoder_of(vocabulary))

    return work.once(f"tokens-{name}", write)


def make_examples(
    settings: ExampleSettings, vocabulary: Artifact, work: Workspace, shard: ShardOfExamples
) -> dict[str, Any]:
    """Write the examples of a corpus shard; returns what was counted."""

    def write(path: Path) -> dict[str, Any]:
        tokenizer = _encoder_of(vocabulary).tokenizer
        examples = _examples(settings, work, shard, tokenizer)
        masked, is_random = None, examples.is_random_next
        if settings.has_static_masks(shard.split):
            masked = _masked(settings, shard, examples, tokenizer)
        schema = example_schema(settings, shard.split, vocabulary)
        write_examples(path, examples, masked, schema, mask_id=tokenizer.mask_id)
        return {
            "examples": examples.lengths.size,
            "tokens": int(examples.lengths.sum()),
            "masked_tokens": 0 if masked is None else masked.positions.size,
            "random_next": 0 if is_random is None else int(is_random.sum()),
        }

    return work.once(shard.name, write)


def cut_shard(
    settings: ExampleSettings, vocabulary: Artifact, work: Workspace, draft: Draft, shard: EvenShard
) -> dict[str, Any]:
    """Put an even shard together; returns its number of examples and tokens."""

    def write(path: Path) -> dict[str, Any]:
        with ExitStack() as stack:
            files = [stack.enter_context(work.local(name)) for name, _, _ in shard.rows]
            slices = [
                read_example_batch(file).slice(first, after - first)
                for file, (_, first, after) in zip(files, shard.rows, strict=True)
            ]
            write_slices(path, slices, example_schema(settings, shard.split, vocabulary))
            lengths = (each.column("input_ids").value_lengths() for each in slices)
            return {
                "examples": sum(each.num_rows for each in slices),
                "tokens": sum(int(np.sum(each.to_numpy())) for each in lengths),
            }

    return draft.once(shard.name, write)


def _examples(
    settings: ExampleSettings,
    work: Workspace,
    shard: ShardOfExamples,
    tokenizer: WordPieceTokenizer,
) -> Examples:
    special = SpecialIds(cls=tokenizer.cls_id, sep=tokenizer.sep_id)
    max_tokens = settings.max_tokens_of(shard.split)
    with ExitStack() as stack:
        files = [stack.enter_context(work.local(f"tokens-{name}")) for name in shard.pool]
        pool = [read_token_shard(file) for file in files]
        if settings.objective == "mlm":
            return full_sentences(pool[0], special, max_tokens=max_tokens)
        if settings.objective == "clm":
            return token_windows(pool[0], special, max_tokens=max_tokens)
        purpose = f"pairs of {shard.split}"
        return sentence_pairs(
            pool,
            special,
            max_tokens=max_tokens,
            short_fraction=settings.short_fraction,
            seed=int(random_bits(settings.seed, purpose, shard.pass_number, shard.index)),
        )


def _masked(
    settings: ExampleSettings,
    shard: ShardOfExamples,
    examples: Examples,
    tokenizer: WordPieceTokenizer,
) -> MaskedTokens:
    """Masks that stay, drawn from (seed, split, pass, shard, index)."""
    purpose = f"static masks of {shard.split}"
    vocabulary = tokenizer.maskable()
    edges = np.concatenate([[0], np.cumsum(examples.lengths)])
    done: list[MaskedTokens] = []
    for first in range(0, examples.lengths.size, _MASKED_AT_ONCE):
        rows = np.arange(first, min(first + _MASKED_AT_ONCE, examples.lengths.size))
        begin, end = edges[rows[0]], edges[rows[-1] + 1]
        masked = mask_tokens(
            examples.input_ids[begin:end],
            examples.lengths[rows],
            random_bits(settings.seed, purpose, shard.pass_number, shard.index, rows),
            config=settings.masking_config(),
            vocabulary=vocabulary,
        )
        done.append(replace(masked, positions=masked.positions + begin))
    return MaskedTokens(
        input_ids=np.concatenate([each.input_ids for each in done]),
        positions=np.concatenate([each.positions for each in done]),
        labels=np.concatenate([each.labels for each in done]),
    )


def _encoder_of(vocabulary: Artifact) -> SentenceEncoder:
    return _encoder(vocabulary.local_folder().as_posix())


@lru_cache(maxsize=1)
def _encoder(vocabulary_folder: str) -> SentenceEncoder:
    """One encoder a process: the words it learned serve the next shard too."""
    return SentenceEncoder(WordPieceTokenizer.from_directory(vocabulary_folder))
