"""The passwords of a first start: made once, found by who reads them, changed everywhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.composition import COMPOSE, written
from tests.delivery.declared import DEPLOYING, INFRA, ROOT, make_credentials


def test_each_reader_of_a_password_finds_it(composition: dict[str, Any], passwords: Path) -> None:
    made = {path.relative_to(passwords) for path in passwords.rglob("*") if path.is_file()}
    parts = {str(path.parts[0]) for path in made}
    first = composition["services"]["credentials"]
    where = dict(mount.split(":")[:2] for mount in first["volumes"])
    assert {Path(target).name for target in where.values()} == parts
    text = COMPOSE.read_text()
    for service in composition["services"].values():
        for mount in service.get("volumes", ()):
            source, target = mount.split(":")[:2]
            if service is first or source not in where:
                continue
            part = Path(where[source]).name
            asked = set(re.findall(rf"{target}/([\w./]+)", text))
            files = {str(path.relative_to(part)) for path in made if path.parts[0] == part}
            assert asked & files, f"nobody reads {files} at {target}"


def test_passwords_are_made_once_and_differ(passwords: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in passwords.rglob("*") if path.is_file()}
    assert not make_credentials(passwords)
    assert {path: path.read_bytes() for path in before} == before
    assert make_credentials(tmp_path)
    assert (tmp_path / "postgres" / "password").read_text() != before[
        passwords / "postgres" / "password"
    ].decode()
    identity = json.loads((passwords / "s3" / "identities.json").read_text())["identities"][0]
    clients = written(passwords, "clients")
    assert identity["credentials"][0]["secretKey"] == clients["AWS_SECRET_ACCESS_KEY"]
    assert identity["credentials"][0]["accessKey"] == clients["AWS_ACCESS_KEY_ID"]
    server = written(passwords, "servers")
    assert (passwords / "postgres" / "password").read_text() in server["MLFLOW_BACKEND_STORE_URI"]
    assert not {"POSTGRES", "DATABASE"} & {part for name in clients for part in name.split("_")}


def test_a_folder_of_passwords_that_is_made_here_lets_nobody_else_in(tmp_path: Path) -> None:
    made, volumes = tmp_path / "made" / "credentials", tmp_path / "volumes"
    volumes.mkdir(mode=0o755)
    for folder in (made, volumes):
        assert make_credentials(folder)
        for path in folder.rglob("*/*"):  # read by the users of other images
            assert path.stat().st_mode & 0o004, path
        assert (folder / "postgres").stat().st_mode & 0o005 == 0o005
    assert made.stat().st_mode & 0o777 == 0o700
    assert volumes.stat().st_mode & 0o777 == 0o755
    typed = DEPLOYING.read_text(encoding="utf-8").splitlines()
    (begin,) = (n for n, line in enumerate(typed) if "first-start.sh credentials" in line)
    assert "/credentials/" in (ROOT / ".gitignore").read_text().splitlines()
    assert any(line.startswith("rm -rf credentials") for line in typed[begin:])


def test_a_first_start_that_was_cut_short_begins_again(tmp_path: Path) -> None:
    make_credentials(tmp_path)
    (tmp_path / "servers" / "complete").unlink()
    old = (tmp_path / "postgres" / "password").read_text()
    assert make_credentials(tmp_path)
    assert (tmp_path / "postgres" / "password").read_text() != old


@pytest.mark.parametrize("rotated", ["MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY"])
def test_a_password_is_changed_wherever_it_stands(tmp_path: Path, rotated: str) -> None:
    make_credentials(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = {path: path.read_text() for path in files}
    runbook = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"--entrypoint sh credentials -euc '([^']+)'", runbook)
    script = script.replace("/credentials", str(tmp_path))
    script = script.replace("MLFLOW_TRACKING_PASSWORD", rotated)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-euc", script], env={"PATH": path}, check=True)
    new = written(tmp_path, "clients")[rotated]
    (old,) = re.findall(rf"^{rotated}=(.*)$", before[tmp_path / "clients/environment"], re.M)
    assert new != old
    assert {path: path.read_text() for path in files} == {
        path: text.replace(old, new) for path, text in before.items()
    }
    assert sum(old in text for text in before.values()) >= 2
    assert not make_credentials(tmp_path)


def test_the_shell_of_the_image_takes_the_passwords(passwords: Path) -> None:
    wanted = written(passwords, "clients")
    environment = {
        "PATH": os.environ["PATH"],
        "BERTSMITH_CREDENTIALS": str(passwords / "clients" / "environment"),
    }
    done = subprocess.run(
        ["sh", INFRA / "entrypoint.sh", "env"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert {name: found.get(name) for name in wanted} == wanted
