"""A small corpus of invented words, as text files, for tests of the data stages."""

from pathlib import Path

import numpy as np

SYLLABLES = ["ba", "do", "ki", "lu", "me", "no", "pa", "ri", "sto", "tan", "ve", "zu"]


def invented_text(seed: int, num_sentences: int) -> str:
    """Sentences of two- and three-syllable words with a Zipf-like distribution."""
    rng = np.random.default_rng(seed)
    sentences = []
    for _ in range(num_sentences):
        words = []
        for _ in range(int(rng.integers(3, 15))):
            index = int(min(rng.zipf(1.3), 800)) - 1
            words.append("".join(SYLLABLES[index // 12**power % 12] for power in range(3)))
        sentences.append(" ".join(words).capitalize() + ".")
    return " ".join(sentences)


def write_text_files(folder: Path, num_files: int = 24) -> tuple[str, ...]:
    """Text files of different lengths, a few of them with several paragraphs; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(num_files):
        paragraphs = [invented_text(100 * number + part, 12) for part in range(1 + number % 4)]
        path = folder / f"text{number:02d}.txt"
        path.write_text("\n\n".join(paragraphs), encoding="utf-8")
        paths.append(str(path))
    return tuple(paths)
