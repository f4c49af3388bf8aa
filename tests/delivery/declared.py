"""What the files of infra/ may name: commands and modules that exist in the code."""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from typer.main import get_command

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
KUBERNETES = INFRA / "kubernetes"
DEPLOYING = ROOT / "docs" / "deploying.md"
ENTRYPOINT = "/usr/local/bin/entrypoint"


def make_credentials(folder: Path) -> bool:
    """Run the first start on `folder`; returns whether it made passwords."""
    done = subprocess.run(
        [INFRA / "first-start.sh", folder], capture_output=True, text=True, check=True
    )
    return done.stdout == "passwords made\n"


def is_command(words: Sequence[str]) -> bool:
    """Whether the image can run `words`: a program, what it is asked for, and its options.

    Values of options are not looked at, so that a name may stand for one.
    """
    program, *rest = map(str, words)
    if program in ("python", sys.executable):
        return rest[0] == "-c" or (rest[0] == "-m" and _is_module(rest[1], rest[2:]))
    if program == "sh":
        return rest[0] in ("-c", "-euc") and all(map(is_command, _in_script(rest[1])))
    if (INFRA / f"{program}.sh").is_file():  # the Dockerfile copies it
        return True
    if program == "mlflow":
        return _is_mlflow(rest)
    if program == "bertsmith":
        from flows.cli.app import app

        return _knows(get_command(app), rest)
    if program == "ray":
        from ray.scripts.scripts import cli

        return _knows(cli, rest)
    if program == "prefect":
        return _is_prefect(rest)
    return bool(entry_points(group="console_scripts", name=program))


def _in_script(text: str) -> list[list[str]]:
    """The words of each command of a shell's script that starts one of our programs."""
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line.removeprefix("exec ")) for line in lines if line]
    return [each for each in words if each[0] in ("prefect", "mlflow", "bertsmith", "ray")]


def _is_module(name: str, arguments: Sequence[str]) -> bool:
    """Whether there is the module, and its text names each option."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return False
    text = Path(spec.origin).read_text(encoding="utf-8")
    return all(f'"{option}"' in text for option in _options(arguments))


def _knows(command: Any, arguments: Sequence[str]) -> bool:
    """Whether a command of click's knows each option, and a group of them the command as well."""
    known = {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}
    below = getattr(command, "commands", None)
    if below is None:
        return known.issuperset(_options(arguments))
    if not arguments or arguments[0] in known:
        return known.issuperset(arguments)
    return arguments[0] in below and _knows(below[arguments[0]], arguments[1:])


def _options(arguments: Sequence[str]) -> set[str]:
    return {each.partition("=")[0] for each in arguments if re.match(r"--?[a-z]", each)}


def _is_mlflow(arguments: Sequence[str]) -> bool:
    from click import ClickException, Context, Group
    from mlflow.cli import cli

    command, rest = cli, list(arguments)
    try:
        while isinstance(command, Group):
            command = command.commands[rest.pop(0)]
        command.make_parser(Context(command)).parse_args(rest)
    except (ClickException, IndexError, KeyError):
        return False
    return True


def _is_prefect(arguments: Sequence[str]) -> bool:
    from cyclopts import CoercionError, CycloptsError, ValidationError
    from prefect.cli._app import _app

    try:
        _app.parse_args(arguments, print_error=False, exit_on_error=False)
    except (CoercionError, ValidationError):  # of a value, which a name stands for
        return True
    except CycloptsError:
        return False
    return True
