"""Text is mended; near duplicates are removed and counted."""

import numpy as np
import pytest

from pipelines.stages.corpus.cleaning import mend
from pipelines.stages.corpus.selection import find_near, signature
from pipelines.stages.corpus.settings import CleaningSettings, CorpusSettings, TextFiles
from pipelines.stages.corpus.shards import read_documents
from pipelines.stages.corpus.stage import build_corpus
from tests.pipelines.small_data import invented_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One line.\nÜber die Straße. 東京。", "One line.\nÜber die Straße. 東京。"),
        ("a\r\nb", "a\nb"),
        ("a\rb", "a\nb"),
        ("a\x00b\x07c\x7fd\x9fe", "abcde"),
        ("e\u0301te\u0301", "été"),
        ("a \t b\u00a0\u3000c \n d", "a b c\nd"),
        ("a\u2028b\u2029c\u0085d", "a\nb\nc\nd"),
        ("a\ud800b", "a?b"),
        ("One.\x0bTwo\x1fwords.\x0c\x00Th\x01ree.", "One.\nTwo words.\nThree."),
        ("\ufeffक\ufeffa", "कa"),
    ],
)
def test_text_is_mended(text, expected):
    assert mend(text) == expected


def runs_of(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[index : index + 5]) for index in range(len(words) - 4)}


def edited(text: str, every: int) -> str:
    words = text.split()
    words[::every] = ["changed"] * len(words[::every])
    return " ".join(words)


@pytest.mark.parametrize("every", [10, 40, 120])
def test_signatures_estimate_the_share_of_common_runs(every):
    text = invented_text(1, 80)
    other = edited(text, every)
    first, second = runs_of(text), runs_of(other)
    similarity = len(first & second) / len(first | second)
    estimate = (signature(text) == signature(other)).mean()
    assert abs(estimate - similarity) < 5 * np.sqrt(0.25 / 64)


def test_of_a_cluster_of_near_duplicates_the_first_stays_across_files():
    texts = [invented_text(seed, 60) for seed in range(8)]
    documents = [
        [texts[0], texts[1], edited(texts[0], 200)],
        [texts[2], edited(texts[1], 150), texts[3], edited(edited(texts[0], 200), 300)],
        [texts[4], texts[0]],
    ]
    signatures = [np.stack([signature(text) for text in file]) for file in documents]
    dropped = [np.zeros(len(file), dtype=bool) for file in documents]
    dropped[2][1] = True  # an exact duplicate, known already
    found = find_near(signatures.__getitem__, dropped, 0.8)
    assert [each.tolist() for each in found] == [
        [False, False, True],
        [False, True, False, True],
        [False, False],
    ]


def test_the_stage_removes_what_it_is_told_to_and_counts_it(tmp_path, small_context):
    numbered = [invented_text(number, 20) for number in range(12)]
    blocks = [*numbered, f"{edited(numbered[0], 300)}\nAnother ending line."]
    (tmp_path / "all.txt").write_text("\n\n".join(blocks))
    settings = CorpusSettings(
        sources=(TextFiles(paths=(str(tmp_path / "all.txt"),), layout="blank_line"),),
        cleaning=CleaningSettings(near_duplicates=True, near_duplicate_similarity=0.7),
    )
    corpus = build_corpus(settings, small_context)
    assert corpus.statistics["dropped"] == {"near duplicate": 1}
    documents = [
        document for split in ("train", "heldout") for document in read_documents(corpus, split)
    ]
    assert len(documents) == 12
