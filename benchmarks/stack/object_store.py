"""An S3 server on the loopback: Ceph's gateway from Debian's packages, else moto's server.

Ceph is a minimal cluster: one monitor, one OSD that keeps its objects in memory, and the RADOS
gateway, which checks signatures and refuses to create what exists. Machines without Ceph use moto's
server; it checks no signature.
"""

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path

import boto3

from benchmarks.stack.processes import Server
from flows.services.health import free_port

BUCKET = "bertsmith"
_USER = "bertsmith"
_PROGRAMS = ("ceph-mon", "ceph-osd", "ceph", "monmaptool", "radosgw", "radosgw-admin")
# The cluster behind the gateway has no authentication: it listens only on the loopback and has only
# test data.
_CEPH = """
[global]
fsid = {cluster}
mon host = [v2:127.0.0.1:{monitor_port}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 2
mon allow pool size one = true
osd crush chooseleaf type = 0
mon max pg per osd = 2000
mon data avail crit = 1
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
mon data = {folder}/mon
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 4294967296
ms bind msgr1 = false

[client]
ms mon client mode = crc
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
debug rgw = 0
"""


class ObjectStore:
    """An S3 server with one bucket, `BUCKET`, and one user."""

    def __init__(self, folder: Path) -> None:
        self.is_ceph = all(map(shutil.which, _PROGRAMS))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.access_key, self.secret_key = uuid.uuid4().hex, uuid.uuid4().hex
        self._folder = folder / "s3"
        self._folder.mkdir(parents=True)
        self._configuration = self._folder / "ceph.conf"
        self.servers = self._ceph() if self.is_ceph else [self._moto()]

    def start(self) -> None:
        """Start it and create the bucket."""
        if self.is_ceph:
            self._start_ceph()
        else:
            self.servers[0].start(self.answers)
        self.client().create_bucket(Bucket=BUCKET)

    def stop(self) -> None:
        """Stop it; its contents are lost."""
        for server in reversed(self.servers):
            server.stop()

    def answers(self) -> bool:
        """Whether it accepts requests."""
        try:
            urllib.request.urlopen(self.url, timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def version(self) -> str:
        """The server's name and version."""
        if self.is_ceph:
            output = subprocess.run(["radosgw", "--version"], capture_output=True, text=True)
            return f"Ceph RADOS gateway {output.stdout.split()[2]}"
        from importlib.metadata import version

        return f"moto's server {version('moto')}"

    def environment(self, url: str = "") -> dict[str, str]:
        """Environment of clients; `url` if something else, such as a proxy, is in front of it."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def client(self, **changed: str):  # type: ignore[no-untyped-def]  # boto3 has no types
        """A boto3 client; `changed` replaces keys, for clients without access."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=changed.get("access_key", self.access_key),
            aws_secret_access_key=changed.get("secret_key", self.secret_key),
        )

    def keys_below(self, prefix: str) -> list[str]:
        """Names of all objects below `prefix`, sorted."""
        return sorted(self.digests_below(prefix))

    def digests_below(self, prefix: str) -> dict[str, str]:
        """The ETag of each object, by name."""
        pages = self.client().get_paginator("list_objects_v2")
        return {
            found["Key"]: found["ETag"]
            for page in pages.paginate(Bucket=BUCKET, Prefix=prefix)
            for found in page.get("Contents", [])
        }

    def add_key(self) -> Mapping[str, str]:
        """Create another pair of keys for the same user, as the first step of a rotation."""
        pair = {"access_key": uuid.uuid4().hex, "secret_key": uuid.uuid4().hex}
        self._admin(
            "key", "create", f"--uid={_USER}", "--key-type=s3",
            f"--access-key={pair['access_key']}", f"--secret-key={pair['secret_key']}",
        )  # fmt: skip
        return pair

    def remove_key(self, access_key: str) -> None:
        """Revoke a key."""
        self._admin("key", "rm", f"--uid={_USER}", "--key-type=s3", f"--access-key={access_key}")

    def _moto(self) -> Server:
        program = str(Path(sys.executable).parent / "moto_server")
        command = [program, "-H", "127.0.0.1", "-p", str(self.port)]
        return Server("moto", command, os.environ, self._folder / "moto.out")

    def _ceph(self) -> list[Server]:
        for name in ("mon", "osd", "rgw"):
            (self._folder / name).mkdir()
        self._configuration.write_text(
            _CEPH.format(
                cluster=uuid.uuid4(),
                folder=self._folder,
                monitor_port=free_port(),
                port=self.port,
            )
        )
        commands = {
            "Ceph monitor": ["ceph-mon", "-f", "-i", "a"],
            "Ceph OSD": ["ceph-osd", "-f", "-i", "0"],
            "Ceph RADOS gateway": ["radosgw", "-f", "-n", "client.rgw"],
        }
        return [
            Server(
                name,
                [*command, "-c", str(self._configuration)],
                os.environ,
                self._folder / f"{command[0]}.out",
            )
            for name, command in commands.items()
        ]

    def _start_ceph(self) -> None:
        monitor, osd, gateway = self.servers
        text = self._configuration.read_text()
        cluster = text.partition("fsid = ")[2].split()[0]
        address = text.partition("mon host = ")[2].split()[0]
        map_file, osd_id = str(self._folder / "monmap"), str(uuid.uuid4())
        self._call("monmaptool", "--create", "--addv", "a", address, "--fsid", cluster, map_file)
        self._call("ceph-mon", "--mkfs", "-i", "a", "--monmap", map_file)
        monitor.start(lambda: "quorum" in self._output("ceph", "--connect-timeout=5", "-s"))
        self._call("ceph", "osd", "new", osd_id, "0")
        self._call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd_id)
        osd.start(lambda: " 1 up" in self._output("ceph", "--connect-timeout=5", "osd", "stat"))
        self._admin(
            "user", "create", f"--uid={_USER}", "--display-name=Bertsmith",
            f"--access-key={self.access_key}", f"--secret-key={self.secret_key}",
        )  # fmt: skip
        gateway.start(self.answers)

    def _admin(self, *arguments: str) -> None:
        self._call("radosgw-admin", *arguments)

    def _call(self, program: str, *arguments: str) -> str:
        completed = self._run(program, *arguments)
        if completed.returncode:
            raise RuntimeError(f"{program} failed: {completed.stderr.strip()[-2000:]}")
        return completed.stdout

    def _output(self, program: str, *arguments: str) -> str:
        return self._run(program, *arguments).stdout

    def _run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        named = [] if program == "monmaptool" else ["-c", str(self._configuration)]
        return subprocess.run(
            [program, *named, *arguments], capture_output=True, text=True, check=False, timeout=300
        )
