"""What people get wrong on the command line: one sentence each, before anything is started.

A case is a name, what is typed, and words that the sentence must hold. `{here}` is a folder with
the files that `files_of_mistakes` makes. Add a case for every mistake that came up.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli.app import MISTAKE, run

DATASET, SET = ["run", "--labels"], ["run", "--set"]
CASES = {
    "a setting that is none": (
        [*SET, "examples.mask_fractoin=0.2"],
        "no setting 'examples.mask_fractoin'",
    ),
    "a value that cannot be": ([*SET, "corpus.heldout_fraction=2"], "corpus.heldout_fraction"),
    "a setting without a value": ([*SET, "nonsense"], "section.setting=value"),
    "no such recipe": (
        ["run", "no-such-recipe"],
        "neither a preset nor a file named 'no-such-recipe'",
    ),
    "no such option": (["run", "--no-such-option"], "No such option"),
    "no workers": (["run", "--workers", "0"], "'--workers'"),
    "no such command": (["no-such-command"], "No such command"),
    "no gap to fill": (["fill-mask", "no gap here"], "[MASK]"),
    "nothing to evaluate on": (["evaluate", "--model", "some-model"], "--labels"),
    "a glob without a file": (["run", "--corpus", "{here}/no-such-*.txt"], "no-such-*.txt"),
    "an empty path": (["run", "--corpus", ""], "a path is empty"),
    "a path of blanks": (["run", "--corpus", " "], "a path is empty"),
    "links in a circle": (["run", "--corpus", "{here}/circle.txt"], "circle.txt cannot be opened"),
    "an address of no kind": (["run", "--corpus", "foo://x"], "foo://x"),
    "a port that cannot be": (["run", "--corpus", "http://127.0.0.1:99999/x"], "99999"),
    "a host that cannot be": (["run", "--corpus", "http://[::1/x"], "http://[::1/x"),
    "a recipe in Latin-1": (["run", "{here}/latin1.yaml"], "UTF-8"),
    "a recipe that is empty": (["run", "{here}/empty.txt"], "has no sections"),
    "an empty text": (["run", "--corpus", "{here}/empty.txt"], "at least"),
    "one document": (["run", "--corpus", "{here}/single.txt"], "layout"),
    "a pipe as text": (["run", "--corpus", "{here}/pipe"], "pipe"),
    "a device as text": (["run", "--corpus", "/dev/zero"], "/dev/zero"),
    "no labelled file": ([*DATASET, "{here}/none.csv"], "none.csv"),
    "a folder that is no dataset": ([*DATASET, "{here}"], "give the files themselves"),
    "a pipe of labels": ([*DATASET, "{here}/pipe.csv"], "pipe.csv"),
    "no such column": ([*DATASET, "{here}/rows.csv", "--label-column", "genre"], "genre"),
    "one label alone": ([*DATASET, "{here}/one-label.csv"], "two labels"),
    "a store of an unknown kind": (["run", "--store", "qq://bucket/prefix"], "qq://bucket"),
    "a store on the web": (
        ["run", "--store", "http://127.0.0.1:{closed_port}/x"],
        "nothing can be written there",
    ),
    "a store of one process": (["run", "--store", "memory://x"], "runtime.store"),
    "a store without credentials": (["run", "--store", "s3://bucket/prefix"], "credentials"),
    "a store that is a file": (["run", "--store", "{here}/rows.csv"], "is a file"),
    "a home with a question mark": (["run", "--home", "{here}/who?"], "has a ? in its name"),
    "a home that is a file": (["run", "--home", "{here}/rows.csv"], "is a file"),
    "a tracker of an unknown kind": ([*SET, "runtime.tracking_uri=qq://x"], "tracking_uri"),
    "a tracker without an address": ([*SET, "runtime.tracking_uri='http://[::1'"], "tracking_uri"),
    "a tracker that is away": (
        [*SET, "runtime.tracking_uri=http://127.0.0.1:{closed_port}"],
        "does not answer",
    ),
    "a source that is away": (
        ["run", "--corpus", "http://127.0.0.1:{closed_port}/a.txt"],
        "127.0.0.1:{closed_port}",
    ),
    "steps without end": ([*SET, f"pretraining.num_steps={10**23}"], "num_steps"),
    "age without end": (["store", "prune", "--days", "inf"], "--days"),
    "an age beyond the calendar": (["store", "prune", "--days", "800000"], "--days"),
    "questions in another encoding": (
        ["predict", "--file", "{here}/latin1.txt"],
        "line 1 of {here}/latin1.txt is not UTF-8",
    ),
    "an encoding of questions": (
        ["predict", "--file", "{here}/latin1.txt", "--encoding", "cp1252", "--model", "{here}"],
        "{here} has no",
    ),
    "texts twice": (["predict", "--file", "{here}/rows.csv", "x"], "--file"),
    "a model that is not there": (
        ["evaluate", "--model", "m", "--labels", "{here}/header.csv"],
        "there is no registry at sqlite:///",
    ),
    "more workers than micro-batches": (
        [*SET, "runtime.training_workers=4"],
        "4 training workers cannot share the 2 micro-batches of a step of pretraining",
    ),
    "more workers than texts": (
        ["run", "--set", "runtime.training_workers=2", "--set", "finetuning.micro_batch_size=99"],
        "micro-batches of a step of finetuning",
    ),
    "rates beyond one": ([*SET, "examples.random_share=0.9"], "exceed 1 together"),
    "longer than is read": ([*SET, "finetuning.max_tokens=512"], "examples.max_tokens"),
    "no labels to read": (
        ["run", "--until", "finetuning", "--set", "dataset.source={{kind: none}}"],
        "'none'",
    ),
    "predict with no model": (["predict", "hello", "--model", "{here}"], "{here} has no"),
    "predict texts with columns": (
        ["predict", "a", "--text-column", "b"],
        "name columns of --file or --batch",
    ),
    "predict texts in an encoding": (
        ["predict", "a", "--encoding", "cp1252"],
        "--encoding and --delimiter say how --file or --batch is read",
    ),
    "a split of a file": (
        ["evaluate", "--model", "m", "--labels", "{here}/rows.csv", "--split", "test"],
        "--split is for a dataset's folder",
    ),
    "an inventory of a web page": (["store", "--store", "http://x.invalid/a"], "choose another"),
    "predict a batch by a folder": (
        ["predict", "--batch", "{here}/rows.csv", "--model", "{here}"],
        "--batch needs a registered model, and {here} is a folder",
    ),
    "predict a batch with nothing there": (
        ["predict", "--batch", "{here}/rows.csv"],
        "has no verified model of any task",
    ),
    "predict to a folder without a batch": (["predict", "a", "--to", "{here}/out"], "--batch"),
    "export no model": (["export", "{here}", "--to", "{here}/new"], "{here} has no config.json"),
    "predict with a broken config": (
        ["predict", "hello", "--model", "{here}/broken"],
        "{here}/broken/config.json",
    ),
    "a left-to-right classifier": (
        ["run", "--until", "finetuning", "--set", "examples.objective=clm"],
        "an objective with masks",
    ),
    "a family that is none": ([*SET, "dataset.family=poetry"], "classification"),
}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "single.txt").write_text("A single sentence makes no corpus at all. " * 3)
    (tmp_path / "circle.txt").symlink_to("circle.txt")
    (tmp_path / "header.csv").write_text("text,label\n")
    for name in ("latin1.yaml", "latin1.txt"):
        (tmp_path / name).write_bytes(b"name: caf\xe9\n")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.csv")
    rows = [f"text number {number},{'ab'[number % 2]}" for number in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "one-label.csv").write_text(
        "\n".join(["text,label", *(f"text {number},a" for number in range(20))])
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "be')
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed_port = unused.getsockname()[1]
    return {"here": tmp_path, "closed_port": closed_port}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_one_sentence_and_starts_nothing(
    case: str,
    places: dict[str, object],
    own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(own_home / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(own_home / "none"))
    arguments, words = CASES[case]
    typed = [argument.format(**places) for argument in arguments]
    _refused(typed, words.format(**places), capsys)
    assert not (own_home / "logs").exists()  # no Prefect API was started
    assert not (own_home / "store").exists()  # and nothing built


def _refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == MISTAKE
    said = capsys.readouterr().err.strip()
    assert words in said
    assert said.startswith("bertsmith: ")
    assert len(said.splitlines()) == 1, said


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--corpus", "{here}/no-such-*.txt"],
        ["predict", "Some text."],  # and nothing is registered
        ["fill-mask", "Some [MASK]."],
    ],
)
def test_a_mistake_is_answered_before_torch_ray_mlflow_or_prefect_are_imported(
    arguments: list[str], places: dict[str, object], own_home: Path
) -> None:
    typed = [argument.format(**places) for argument in arguments]
    code = (
        f"import sys; from flows.cli.app import run; run([*{typed}, '--home', '{own_home}']); "
        "print([m for m in ('torch', 'ray', 'mlflow', 'prefect', 'pandas') if m in sys.modules])"
    )
    began = os.times().children_user
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stderr.startswith("bertsmith: ")
    assert said.stdout.splitlines()[-1] == "[]"
    assert os.times().children_user - began < 2  # seconds of processor, however busy it is


@pytest.mark.parametrize("command", ["predict x", "models", "store prune"])
@pytest.mark.parametrize(
    ("uri", "words"),
    [("http://127.0.0.1:{closed_port}", "does not answer"), ("qq://x", "runtime.tracking_uri")],
)
def test_a_registry_that_is_away_is_one_sentence(
    command: str,
    uri: str,
    words: str,
    places: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(**places))
    _refused(command.split(), words, capsys)
