"""The command line: help at once, useful exit codes, one sentence for a mistake."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from flows.cli.app import DONE, FAILED, MISTAKE, app, run


def _commands(group: object = None, path: str = "") -> list[str]:
    """What can be typed: the names of all commands, those of groups below their group's."""
    group = group or typer.main.get_command(app)
    found = []
    for name, command in group.commands.items():
        if command.hidden:
            continue
        here = f"{path} {name}".strip()
        if hasattr(command, "commands"):
            found.extend(_commands(command, here))
        elif not command.hidden:
            found.append(here)
    return found


def test_help_lists_at_most_twenty_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == DONE
    printed = capsys.readouterr().out
    commands = re.findall(r"^  ([a-z-]+)  +\S", printed, re.MULTILINE)
    assert {"run", "predict", "up"} <= set(commands)
    assert len(commands) <= 20
    assert "..." not in printed.partition("Commands:")[2]  # in 80 columns no line is cut


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from flows.cli.app import run; run(['run', '--help']); "
        "print([m for m in ('torch', 'ray', 'mlflow', 'prefect', 'pandas') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", _commands())
def test_every_command_has_help_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), "--help"]) == DONE
    example = " ".join(capsys.readouterr().out.split()).partition("Example: ")[2]
    assert f"bertsmith {command}" in example.partition("Options")[0]


@pytest.mark.parametrize("command", ["predict", "store prune", "run"])
def test_a_wrong_option_points_to_the_help_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), "--nonsense"]) == MISTAKE
    assert capsys.readouterr().err.endswith(f"(see `bertsmith {command} --help`)\n")


def test_the_demo_is_listed_with_its_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes"]) == DONE
    assert re.search(r"^demo +The demo:", capsys.readouterr().out, re.MULTILINE)


def test_a_printed_recipe_is_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["run", "demo", "--show-recipe", "--set", "vocabulary.size=9000"]) == DONE
    printed = capsys.readouterr().out
    assert "size: 9000" in printed
    mine = tmp_path / "mine.yaml"
    mine.write_text(printed)
    assert run(["run", "--show-recipe", str(mine)]) == DONE
    assert capsys.readouterr().out == printed


def test_a_mistake_that_a_stage_finds_is_one_sentence_too(
    prefect_api: str, local_ray: None, small_recipe: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    too_large = ["--until", "vocabulary", "--set", "vocabulary.size=60000"]
    assert run(["run", str(small_recipe), *too_large]) == MISTAKE
    told = capfd.readouterr().err
    assert "Traceback" not in told
    last = told.strip().splitlines()[-1]
    assert last.startswith("bertsmith: ")
    assert "60,000 tokens" in last


def test_an_empty_registry_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == DONE
    assert "bertsmith run" in capsys.readouterr().out
    assert run(["predict", "Some text."]) == MISTAKE
    assert "run `bertsmith run` first" in capsys.readouterr().err


def test_down_without_up_says_that_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["down"]) == DONE
    assert "Nothing is running." in capsys.readouterr().out


@pytest.mark.slow
def test_the_doctor_finds_this_machine_fit(tmp_path: Path) -> None:
    """In a process of its own, whose Ray and Prefect are its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "RAY_", "MLFLOW"))}
    code = "from flows.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--home", str(tmp_path / "home")],
        env=kept, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ran.returncode == DONE, ran.stdout + ran.stderr
    assert [line.split()[:2] for line in ran.stdout.splitlines()] == [
        ["ok", name] for name in ("Python", "store", "tracker", "Prefect", "Ray")
    ]


@pytest.mark.slow
def test_the_doctor_fails_where_the_store_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run(["doctor", "--store", str(tmp_path / "file" / "store")]) == FAILED
    said = capsys.readouterr().out
    assert "fail  store" in said
    assert "choose another store" in said
