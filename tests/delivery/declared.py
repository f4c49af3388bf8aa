"""What the files of infra/ may name: commands, variables and modules that exist in the code."""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pipelines.config import environment

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
KUBERNETES = INFRA / "kubernetes"
DEPLOYING = ROOT / "docs" / "deploying.md"
ENTRYPOINT = "/usr/local/bin/entrypoint"

# Variables that other programs read, by whom; those of Prefect are asked of its own settings.
_AWS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"}
_PREFECT_KUBERNETES = "PREFECT_INTEGRATIONS_KUBERNETES_"  # settings of its worker's package


def is_command(words: Sequence[str]) -> bool:
    """Whether the image can run `words`: a program, what it is asked for, and its options.

    Values of options are not looked at, so that a name may stand for one.
    """
    program, *rest = map(str, words)
    if program in ("python", sys.executable):
        return rest[0] == "-c" or (rest[0] == "-m" and _is_module(rest[1], rest[2:]))
    if program == "sh":
        return rest[0] in ("-c", "-euc") and all(map(is_command, _in_script(rest[1])))
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


def foreign_names(variables: Iterable[str]) -> set[str]:
    """Of `variables` those that nothing reads."""
    return {name for name in variables if not _is_read(name)}


def _is_read(name: str) -> bool:
    if name in _AWS:
        return True
    if name.startswith("BERTSMITH_"):
        preparation = KUBERNETES / "base" / "preparation.yaml"
        return name in _names_in(
            ROOT / "flows", ROOT / "pipelines", INFRA / "entrypoint.sh", preparation
        )
    if name.startswith(_PREFECT_KUBERNETES):
        settings = pytest.importorskip("prefect_kubernetes.settings").KubernetesSettings
        return name.lower() in _prefect_names(settings, _PREFECT_KUBERNETES.lower())
    if name.startswith("PREFECT_"):
        from prefect.settings import Settings

        return name.lower() in _prefect_names(Settings)
    if name.startswith("MLFLOW_"):
        import mlflow.environment_variables as known
        from mlflow.cli import server

        return hasattr(known, name) or name in {each.envvar for each in server.params}
    if name.startswith("RAY_"):
        return name.encode() in _words_of_ray()
    return False


def as_prefect_takes_them(variables: Mapping[str, str]) -> None:
    """Raise where Prefect's settings refuse a value of `variables`."""
    from prefect.settings import Settings

    own = {name: str(value) for name, value in variables.items() if name.startswith("PREFECT_")}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        Settings()


def _prefect_names(model: type, prefix: str = "prefect_") -> set[str]:
    from pydantic import AliasChoices, BaseModel

    names = set()
    for name, field in model.model_fields.items():  # type: ignore[attr-defined]
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            inner = annotation.model_config.get("env_prefix") or f"{prefix}{name}_"
            names |= _prefect_names(annotation, str(inner).lower())
            continue
        names.add(f"{prefix}{name}")
        if isinstance(field.validation_alias, AliasChoices):
            names |= {str(each).lower() for each in field.validation_alias.choices}
    return names


def _names_in(*places: Path) -> str:
    files = [f for p in places for f in ([p] if p.is_file() else p.rglob("*.py"))]
    listed = Path(environment.__file__)  # what is only listed is not read
    return "\n".join(file.read_text(encoding="utf-8") for file in files if file != listed)


@cache
def _words_of_ray() -> bytes:
    """Ray's core, which reads most of its variables, and two parts of its own in Python."""
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    others = _names_in(folder / "dashboard" / "modules" / "metrics", folder / "_common" / "usage")
    return (folder / "_raylet.so").read_bytes() + others.encode()
