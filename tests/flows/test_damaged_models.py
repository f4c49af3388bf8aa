"""Models that are damaged or foreign, on the command line: one sentence, and nothing kept."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from flows.cli.app import MISTAKE, run
from tests.flows.published_folders import WORDS

WEIGHTS = "model.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 9\n"


def rewrite(path: Path, **entries: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def cut(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pointer of Git LFS": (
        lambda folder: (folder / WEIGHTS).write_text(POINTER), f"{WEIGHTS} is only a Git LFS"
    ),
    "a pointer in place of the tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text(POINTER), "json is only a Git LFS"
    ),
    "a file that is cut off": (lambda folder: cut(folder / WEIGHTS, 0.5), WEIGHTS),
    "an empty file": (lambda folder: cut(folder / WEIGHTS, 0), WEIGHTS),
    "weights in shards": (
        lambda folder: (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors"),
        "have transformers write it",
    ),
    "the older file": (
        lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
        "has no model.safetensors; have transformers write it",
    ),
    "a number that is none": (
        lambda folder: rewrite(folder / "config.json", hidden_size="768"),
        "config.json must describe a BERT, but hidden_size must be a whole number, got '768'",
    ),
    "a number that is no number": (
        lambda folder: rewrite(folder / "config.json", layer_norm_eps=float("nan")),
        "layer_norm_eps must be positive and finite, got nan",
    ),
    "sizes beyond any memory": (
        lambda folder: rewrite(folder / "config.json", vocab_size=10**15, intermediate_size=10**12),
        "of another shape than config.json says",
    ),
    "more layers than there are": (
        lambda folder: rewrite(folder / "config.json", num_hidden_layers=10**9),
        "must say how many layers the weights have, 2",
    ),
    "JSON that is none": (
        lambda folder: cut(folder / "config.json", 0.5), "config.json is not JSON"
    ),
    "a list for an object": (
        lambda folder: (folder / "config.json").write_text("[]"), "not a JSON object but a list"
    ),
    "a tokenizer that is cut off": (
        lambda folder: cut(folder / "tokenizer.json", 0.5), "tokenizer.json is not JSON"
    ),
    "RoBERTa": (
        lambda folder: rewrite(folder / "config.json", model_type="roberta"),
        "config.json must describe a model of type bert, found 'roberta'",
    ),
    "code of its own": (
        lambda folder: rewrite(folder / "config.json", auto_map={"AutoModel": "x.Y"}), "auto_map"
    ),
    "numbers that are not finite": (
        lambda folder: save_file(
            {name: tensor / 0 if name.endswith("LayerNorm.bias") else tensor
             for name, tensor in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS),
        "holds NaN or infinity",
    ),
    "quantized weights": (
        lambda folder: save_file(
            {name: tensor.char() for name, tensor in load_file(folder / WEIGHTS).items()},
            folder / WEIGHTS),
        "floating-point numbers",
    ),
    "more tokens than rows": (
        lambda folder: WordPieceTokenizer([*SPECIAL_TOKENS, *WORDS, "more"]).save(folder),
        "a row for each of the 12 tokens of the vocabulary, found 11",
    ),
    "two vocabularies": (
        lambda folder: (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n"),
        "vocab.txt and tokenizer.json hold different vocabularies",
    ),
    "a Japanese tokenizer": (
        lambda folder: rewrite(folder / "tokenizer_config.json", word_tokenizer_type="mecab",
                               tokenizer_class="BertJapaneseTokenizer"),
        "names the tokenizer BertJapaneseTokenizer",
    ),
    "another tokenizer": (
        lambda folder: rewrite(folder / "tokenizer_config.json", tokenizer_class="XLNetTokenizer"),
        "names the tokenizer XLNetTokenizer",
    ),
    "a tokenizer that disagrees with itself": (
        lambda folder: rewrite(folder / "tokenizer_config.json", do_lower_case=False),
        "do_lower_case=False, tokenizer.json lowercase=True",
    ),
    "another special token": (
        lambda folder: rewrite(folder / "tokenizer_config.json", cls_token="<s>"),
        "must call the cls_token [CLS]",
    ),
    "a module that is not read": (
        lambda folder: (folder / "modules.json").write_text(json.dumps(
            [{"type": f"sentence_transformers.models.{name}", "path": ""}
             for name in ("Transformer", "Pooling", "Dense")])),
        "found Transformer, Pooling, Dense",
    ),
    "nothing at all": (
        lambda folder: [path.unlink() for path in folder.iterdir()], "has no config.json"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_ends_in_a_sentence_that_names_the_file_and_leaves_nothing(
    name: str, published: Path, own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(published, folder)
    damage, words = DAMAGE[name]
    damage(folder)
    assert run(["import", str(folder)]) == MISTAKE
    said = capsys.readouterr().err.strip()
    assert words in said
    assert str(folder) in said
    assert len(said.splitlines()) == 1
    assert "Traceback" not in said
    assert not (own_home / "store").exists()
