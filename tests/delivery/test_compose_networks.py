"""The composition's networks and ports: who asks whom, and who is let in."""

import re
import subprocess
from pathlib import Path
from typing import Any

from tests.delivery.composition import written


def test_pages_are_on_the_loopback_and_servers_have_no_door(composition: dict[str, Any]) -> None:
    opened = {}
    for name, service in composition["services"].items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} opens {port}"
            opened[name] = int(port.rpartition(":")[2])
    assert opened == {"prefect": 4200, "mlflow": 5000, "ray-head": 8265}


def networks(service: dict[str, Any]) -> set[str]:
    if service.get("network_mode") == "none":
        return set()
    return set(service.get("networks", ["default"]))


def test_who_asks_another_shares_a_network_with_it(
    composition: dict[str, Any], passwords: Path
) -> None:
    services = composition["services"]
    said = {name: [*map(str, s.get("environment", {}).values())] for name, s in services.items()}
    for name, service in services.items():
        if "server-credentials:/credentials/servers:ro" in service.get("volumes", ()):
            urls = [value for value in written(passwords, "servers").values() if "://" in value]
            said[name] += [re.sub(r"//[^@]+@", "//", url) for url in urls]  # without the password
    pairs = {
        (name, host)
        for name, texts in said.items()
        for text in texts
        for host in re.findall(r"(?:^|//)([a-z][a-z0-9-]*):\d+", text)
        if host in services
    }
    assert {("prefect", "postgres"), ("mlflow", "postgres"), ("worker", "s3")} <= pairs
    for name, host in pairs:
        assert networks(services[name]) & networks(services[host]), f"{name} asks {host}"
    declared = set().union(*map(networks, services.values()))
    assert declared == set(composition["networks"])


def test_who_has_no_key_of_the_store_does_not_reach_it(composition: dict[str, Any]) -> None:
    services = composition["services"]
    near = {name for name, s in services.items() if networks(s) & networks(services["s3"])}
    keys = {"client-credentials", "server-credentials", "s3-credentials"}
    holders = {
        name
        for name, s in services.items()
        if keys & {mount.split(":")[0] for mount in s.get("volumes", ())}
    }
    assert near <= holders


def test_the_store_opens_s3_alone_and_signs_its_own_calls_with_a_key_of_this_start(
    composition: dict[str, Any], tmp_path: Path
) -> None:
    s3 = composition["services"]["s3"]
    assert {"-s3.port.iceberg=0", "-s3.port.lance=0", "-ip.bind=127.0.0.1"} <= set(s3["command"])
    release = tuple(map(int, s3["image"].rpartition(":")[2].split(".")))
    assert release >= (4, 46)  # the first that asks for a token where there is such a key
    told = tmp_path / "told"
    told.write_text('#!/bin/sh\nprintf "%s\\n" "$WEED_JWT_FILER_SIGNING_KEY" "$@"\n')
    told.chmod(0o755)
    command = [
        each.replace("$$", "$").replace("/entrypoint.sh", str(told)) for each in s3["entrypoint"]
    ]
    assert command != s3["entrypoint"]

    starts = [
        subprocess.check_output([*command, *s3["command"]], text=True).splitlines()
        for _ in range(2)
    ]
    assert [arguments for _, *arguments in starts] == [s3["command"]] * 2
    assert all(len(key) == 44 for key, *_ in starts)
    assert starts[0][0] != starts[1][0]
