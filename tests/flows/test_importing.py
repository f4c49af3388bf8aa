"""What people bring in on the command line: models and vocabularies from elsewhere."""

import json
from pathlib import Path

import pytest

from bert_core.config import EmbeddingConfig
from bert_core.vocabulary import SPECIAL_TOKENS
from flows.cli.app import DONE, MISTAKE, run
from tests.flows.published_folders import WORDS, saved


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import", ""], "name the folder"),
        (["import", "{here}/none"], "neither a model's folder nor a vocab.txt at {here}/none"),
        (["import", "bert-base-uncased"], "is downloaded first: hf download NAME"),
        (["predict", "x", "--model", ""], "--model is empty"),
        (["import", "{model}", "--name", ""], "--name"),
        (["import", "{model}", "--name", "a/b"], "--name"),
        (["import", "{vocabulary}"], "say it with --uncased or --cased"),
        (["import", "{vocabulary}", "--cased", "--head", "encoder"], "holds a vocabulary"),
        (["import", "{vocabulary}", "--cased", "--name", "x"], "this is a vocabulary"),
        (["predict", "x", "--model", "0" * 32], "there is no encoder '0000"),
        (["run", "--encoder", "{model}s", "--labels", "{here}/rows.csv"],
         "there is no encoder '{model}s'; did you mean {name}?; name a folder"),
        (["run", "--encoder", "{here}/rows.csv", "--labels", "{here}/rows.csv"],
         "there is no encoder '{here}/rows.csv'; name a folder"),
        (["run", "--encoder", "x" * 300, "--labels", "{here}/rows.csv"],
         "there is no encoder 'xxx"),
        (["run", "--encoder", "", "--labels", "{here}/rows.csv"], "at least 1 character"),
    ],
)  # fmt: skip
def test_a_mistake_ends_in_a_sentence(
    arguments: list[str], words: str, published: Path, own_home: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n")
    rows = "".join(f"a{number},{'xy'[number % 2]}\n" for number in range(200))
    (tmp_path / "rows.csv").write_text(f"text,label\n{rows}")
    places = {
        "here": str(tmp_path), "model": str(published), "name": published.name,
        "vocabulary": str(vocabulary),
    }  # fmt: skip
    assert run([argument.format(**places) for argument in arguments]) == MISTAKE
    said = capsys.readouterr().err.strip()
    assert words.format(**places) in said
    assert len(said.splitlines()) == 1
    assert not (own_home / "store").exists()


def first_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[0]


def test_what_was_imported_is_asked_by_its_fingerprint_and_by_its_folder(
    published: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", str(published)]) == DONE
    kind, _, fingerprint = first_line(capsys).partition(":")[0].partition("/")
    assert kind == "imported_model"
    assert run(["import", str(published)]) == DONE
    assert "already in the store" in first_line(capsys)
    answers = []
    for model in (fingerprint, str(published)):
        assert run(["fill-mask", "the [MASK]", "--model", model, "--json"]) == DONE
        answers.append(capsys.readouterr().out)
        assert run(["predict", "the text", "--model", model, "--json"]) == DONE
        answers.append(capsys.readouterr().out)
    assert answers[:2] == answers[2:]


def test_several_labels_are_imported_as_such_and_answered(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "multi_label_classification"
    folder = saved(tmp_path / "model", head, num_labels=3, labels=["x", "y", "z"])
    assert run(["import", str(folder)]) == DONE
    assert f"head: {head}" in capsys.readouterr().out
    assert run(["predict", "the text", "--model", str(folder), "--json"]) == DONE
    assert set(json.loads(capsys.readouterr().out)["labels"]) <= {"x", "y", "z"}


def test_what_sentence_transformers_says_survives_import_and_export(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = saved(tmp_path / "model", "encoder")
    how = EmbeddingConfig(pooling="cls", normalize=False, max_tokens=5)
    (folder / "modules.json").write_text(json.dumps(
        [{"type": "sentence_transformers.models.Transformer", "path": ""},
         {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    ))  # fmt: skip
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        '{"word_embedding_dimension": 8, "pooling_mode_cls_token": true}'
    )
    assert run(["import", str(folder)]) == DONE
    said = capsys.readouterr().out
    assert "'max_tokens': 5, 'normalize': False, 'pooling': 'cls'}" in said
    fingerprint = said.partition(":")[0].partition("/")[2]
    ours = own_home / "store" / "imported_model" / fingerprint
    assert json.loads((ours / "config.json").read_text())["embedding"] == how.to_dict()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["export", fingerprint, "--to=~/back"]) == DONE  # bash leaves this ~ as it is
    vectors = []
    for model in (str(folder), fingerprint, str(tmp_path / "back")):
        capsys.readouterr()
        long = "the text a b c a b c a b c"
        assert run(["predict", long, "--model", model, "--json"]) == DONE
        vectors.append(json.loads(capsys.readouterr().out)["embedding"])
    assert vectors[0] == vectors[1] == vectors[2]
    assert abs(sum(value**2 for value in vectors[0]) - 1) > 0.1


@pytest.mark.slow
def test_an_imported_model_is_registered_and_proves_itself(
    published: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", str(published), "--name", "theirs"]) == DONE
    told = capsys.readouterr()
    said = told.out
    steps = [f"reading {published}", "registering it as theirs", "loading models:/theirs/1 in a"]
    for line, step in zip(told.err.splitlines(), steps, strict=True):
        assert line.startswith(step)
    assert "models:/theirs/1, loaded in a fresh process, reproduced its answers\n" in said
    assert run(["import", str(published), "--name", "theirs"]) == DONE
    assert "models:/theirs/1, loaded in a fresh process, was registered before" in (
        capsys.readouterr().out
    )
    for model in ("theirs", "models:/theirs@champion", "theirs/1"):
        assert run(["fill-mask", "the [MASK]", "--model", model]) == DONE
    assert run(["models", "--json"]) == DONE
    rows = json.loads(capsys.readouterr().out.partition("[\n")[2].join(("[", "")))
    assert rows[0]["is_verified"]
    assert run(["models", "theirs@champion"]) == DONE
    said = capsys.readouterr().out
    assert "\nverified: a fresh process reproduced its answers (exact); cpu, float32, " in said
    assert "imported_model" in said
    assert "not in the store" not in said


def test_a_causal_model_is_said_to_be_one_wherever_it_is_read(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "model")
    assert run(["import", str(folder)]) == DONE
    assert "is_decoder" not in "".join(capsys.readouterr())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "is_decoder": True}))
    said = "causal, as its config.json says (is_decoder): a token reads itself and what is left"
    for _ in range(2):  # taken into the store, then found there
        assert run(["import", str(folder)]) == DONE
        assert "causal: True" in capsys.readouterr().out
        assert run(["predict", "the text", "--model", str(folder)]) == DONE
        assert f"{folder} is {said}" in capsys.readouterr().err
