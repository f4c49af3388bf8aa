"""What a run would reuse and build is told without building anything."""

import os
import re
from pathlib import Path

import pytest

from flows.cli.app import DONE, MISTAKE, run
from tests.flows.conftest import WholeRun
from tests.flows.published_folders import saved


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[str, str]]:
    """Outcome and reason by stage."""
    assert run(["run", *arguments, "--plan"]) == DONE
    shown = capsys.readouterr()
    assert ("Registration follows every time" in shown.err) == ("--until" not in arguments)
    rows = {}
    for line in shown.out.splitlines():
        title, outcome, reason = re.split(r"\s{2,}", line, maxsplit=2)
        rows[title] = (outcome, reason)
    return rows


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def test_a_run_that_is_in_the_store_is_reused_whole(
    whole_run: WholeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_below(whole_run.home / "store")
    rows = planned(capsys, str(whole_run.recipe), "--home", str(whole_run.home))
    assert [*rows] == [
        "corpus", "vocabulary", "examples", "pretraining", "dataset", "fine-tuning",
        "fine-tuning, random", "evaluation",
    ]  # fmt: skip
    assert {outcome for outcome, _ in rows.values()} == {"reused"}
    assert rows["corpus"][1].endswith("training documents")
    assert files_below(whole_run.home / "store") == before


def test_what_differs_is_named_and_what_stands_on_it_is_built(
    whole_run: WholeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    at_home = [str(whole_run.recipe), "--home", str(whole_run.home)]
    rows = planned(capsys, *at_home, "--set", "pretraining.num_steps=31")
    assert rows["examples"][0] == "reused" and rows["dataset"][0] == "reused"
    assert rows["pretraining"][0] == "built"
    assert "num_steps: 31, was 30; the last one took " in rows["pretraining"][1]
    assert rows["fine-tuning"] == ("built", "new pretraining")
    assert rows["evaluation"] == ("built", "new fine-tuning")
    rows = planned(capsys, *at_home, "--set", "pretraining.initialization=informed")
    assert rows["pretraining"][1].startswith("initialization: informed, was published; ")
    rows = planned(capsys, *at_home, "--set", "finetuning.num_seeds=2")
    assert rows["fine-tuning"][1].startswith(
        "the best of several training runs in place of one; the last one took "
    )
    rows = planned(capsys, *at_home, "--set", "finetuning.num_epochs=7")
    assert re.fullmatch(r"num_epochs: 7\S*, was \S+; the last one took .*", rows["fine-tuning"][1])
    fewer = "corpus.sources.0.max_source_megabytes=0.5"
    rows = planned(capsys, *at_home, "--set", fewer, "--until", "corpus")
    reason = rows["corpus"][1]
    assert reason.startswith("sources.0.max_source_megabytes: 0.5, was 0.6; "), reason
    rows = planned(capsys, *at_home, "--set", "vocabulary.size=1100", "--until", "pretraining")
    assert [*rows] == ["corpus", "vocabulary", "examples", "pretraining"]
    assert "size: 1100, was 1200" in rows["vocabulary"][1]
    assert rows["examples"] == ("built", "new vocabulary")


def test_an_empty_store_and_an_encoder_that_is_not_imported(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = planned(capsys, "demo")
    assert rows["corpus"] == ("built", "none in the store")
    assert rows["fine-tuning"] == ("built", "new dataset")
    labels = tmp_path / "rows.csv"
    lines = [f"text {number},{'ab'[number % 2]}" for number in range(200)]
    labels.write_text("\n".join(["text,label", *lines]))
    encoder = str(saved(tmp_path / "model"))
    rows = planned(capsys, "--encoder", encoder, "--labels", str(labels))
    assert rows == {
        "encoder to start from": ("built", "none in the store"),
        "all that follows": ("built", "new encoder"),
    }
    assert not (own_home / "store").exists()
    assert not (tmp_path / "home" / "mlflow.db").exists()
    assert run(["run", "--labels", str(labels), "--encoder", "/none", "--plan"]) == MISTAKE
    assert os.environ.get("RAY_ADDRESS") is None
