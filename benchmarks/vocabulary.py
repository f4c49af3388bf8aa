"""Learning a vocabulary, compared with the library's trainer as commonly called.

    python benchmarks/vocabulary.py [--files 25] [--size 30522] [--rounds 3]

Ours: the vocabulary stage on an existing corpus, with words counted by two Ray workers. Theirs:
`WordPieceTrainer` on the same files, with BERT's normalizer and pre-tokenizer, on all cores. Both
vocabularies then tokenize unseen novels. The number of tokens that differ between two runs of the
same side shows whether it is reproducible.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, Side, alternate, report, serve
from bert_core.vocabulary import WordPieceTokenizer

NOVELS = ROOT.parent / "shared" / "data" / "corpus" / "english_novels"
SIDES = ("ours", "theirs")
HELDOUT_NOVELS = 5


def our_step(folder: Path, files: list[str], size: int) -> Callable[[], None]:
    from pipelines.artifacts import ArtifactStore
    from pipelines.stage import StageContext
    from pipelines.stages.corpus.settings import CorpusSettings, PlainText
    from pipelines.stages.corpus.stage import build_corpus
    from pipelines.stages.vocabulary.settings import VocabularySettings
    from pipelines.stages.vocabulary.stage import build_vocabulary

    # All files are for training, as on the other side, except the one that must be held out.
    settings = CorpusSettings(sources=(PlainText(paths=tuple(files)),), heldout_fraction=0.01)
    context = StageContext(store=ArtifactStore(folder / "corpus"), num_workers=2)
    corpus = build_corpus(settings, context)
    number = 0

    def step() -> None:
        nonlocal number
        store = ArtifactStore(folder / f"vocabulary-{number}")
        context = StageContext(store=store, num_workers=2)
        vocabulary = build_vocabulary(VocabularySettings(size=size), corpus, context)
        text = vocabulary.local("vocab.txt").read_text(encoding="utf-8")
        (folder / f"ours-{number}.txt").write_text(text, encoding="utf-8")
        number += 1

    return step


def their_step(folder: Path, files: list[str], size: int) -> Callable[[], None]:
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    number = 0

    def step() -> None:
        nonlocal number
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=special, show_progress=False
        )
        tokenizer.train(files, trainer)
        ids = tokenizer.get_vocab()
        text = "\n".join(sorted(ids, key=ids.__getitem__)) + "\n"
        (folder / f"theirs-{number}.txt").write_text(text, encoding="utf-8")
        number += 1

    return step


def tokens_per_word(tokens: list[str], texts: list[str]) -> float:
    """The mean number of tokens per word of texts."""
    tokenizer = WordPieceTokenizer(tokens)
    num_words = sum(len(text.split()) for text in texts)
    return sum(len(ids) for ids in tokenizer.encode_batch(texts)) / num_words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=25)
    parser.add_argument("--size", type=int, default=30_522)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    paths = sorted(NOVELS.glob("*_*.txt"))
    files = [str(path) for path in paths[: arguments.files]]
    if arguments.side:
        build = our_step if arguments.side == "ours" else their_step
        serve(build(arguments.folder, files, arguments.size), {})
        return
    with tempfile.TemporaryDirectory() as name:
        options = ["--files", str(arguments.files), "--size", str(arguments.size), "--folder", name]
        timings = alternate(
            {side: Side([__file__, *options, "--side", side]) for side in SIDES},
            arguments.rounds,
        )
        unseen = [path.read_text(encoding="utf-8") for path in paths[-HELDOUT_NOVELS:]]
        lines = [
            "| | seconds | tokens | tokens per word, unseen novels | tokens that differ by run |",
            "|---|---|---|---|---|",
        ]
        for side in SIDES:
            runs = [path.read_text(encoding="utf-8").split("\n")[:-1]
                    for path in sorted(Path(name).glob(f"{side}-*.txt"))]  # fmt: skip
            differ = max(len(set(run) ^ set(runs[0])) // 2 for run in runs)
            same_order = "same order" if all(run == runs[0] for run in runs) else "other order"
            lines.append(
                f"| {side} | {timings[side].median_seconds:.2f} | {len(runs[0]):,} "
                f"| {tokens_per_word(runs[0], unseen):.4f} | {differ}, {same_order} |"
            )
    megabytes = sum(Path(file).stat().st_size for file in files) / 1e6
    note = f"{len(files)} novels, {megabytes:.1f} MB; medians of alternating runs."
    report("vocabulary", "Learning a vocabulary", [*lines, "", note])


if __name__ == "__main__":
    main()
