"""Tests of the wheel and the source distribution."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from tests.clients import API, task
from tests.documents import HERE, blocks_of
from tests.engines import missing_message
from tests.servers import environment, start_process


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the built wheel; it imports the dependencies from the tests' environment."""
    tmp_path = tmp_path_factory.mktemp("installed")
    source, dist, home = tmp_path / "source", tmp_path / "dist", tmp_path / "venv"
    shutil.copytree(HERE, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.db*"))
    options = {"check": True, "capture_output": True, "cwd": tmp_path, "env": environment()}
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(source)]
    subprocess.run(build, **options)
    shutil.rmtree(source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], **options)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", *map(str, dist.glob("*.whl"))], **options)
    packages = next((home / "lib").glob("python*/site-packages"))
    (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n", "utf-8")
    return home


def test_wheel_works_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    packages = next((installed / "lib").glob("python*/site-packages"))
    assert (packages / "findings_service_data" / "schema.sql").read_bytes() == (HERE / "schema.sql").read_bytes()
    assert not (packages / "schema.sql").exists()
    assert not list(packages.glob("test_*"))
    line = [str(installed / "bin" / "findings-service"), "serve", "--port", "0", "--db", "here.db"]
    server = start_process(line, tmp_path / "here.db", cwd=tmp_path)
    try:
        run = server.start_run()
        assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
        assert missing_message(tmp_path / "here.db") == ""
        files = re.findall(r'"(page/[^"]+)"', server.request("GET", "/").data.decode())
        assert {server.request("GET", f"/{file}").status_code for file in files} == {200}
    finally:
        assert server.stop() == 0


EMBEDDING = """
from flask import Flask

from findings_service import *


def make_host(db: str) -> Flask:
    app: Flask = create_app(Settings(db=db), max_body="1")
    settings: Settings = Settings.read(db=db)
    try:
        blueprint: FindingsBlueprint = create_blueprint(settings, name="findings")
    except (ConfigurationError, DatabaseUnusable) as error:
        raise SystemExit(f"{__version__}: {error}") from error
    app.register_blueprint(blueprint, url_prefix="/findings")
    reveal_type(blueprint.service.settings.max_body)
    return app


create_blueprint("findings.db")  # type: ignore[arg-type]
Settings(max_body="1")  # type: ignore[arg-type]
"""


def test_strict_mypy_accepts_the_wheel_and_the_documented_code(installed: Path, tmp_path: Path) -> None:
    agents = "".join(text for *_, text in blocks_of(HERE / "docs" / "agents.md") if "run.submit(" in text)
    annotated = re.sub('.*"hgh".*', r"\g<0>  # type: ignore[arg-type]", agents)  # "hgh" is not a severity
    files = {"embedding": EMBEDDING, "agents": annotated}
    blocks = [text for _, kind, text in blocks_of(HERE / "docs" / "embedding.md") if kind == "python"]
    for number, text in enumerate(blocks):
        name = re.match(r"# (\w+)\.py\n", text)
        files[name[1] if name else f"block_{number}"] = text
    assert len(files) == 2 + len(blocks)
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    line = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed / "bin" / "python"), "."]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    revealed, verdict = done.stdout.splitlines()
    assert revealed.endswith('Revealed type is "int"')
    assert (done.returncode, verdict) == (0, f"Success: no issues found in {len(files)} source files")


def test_source_distribution_contains_every_committed_file(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=HERE, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is not a git checkout")
    line = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(HERE)]
    subprocess.run(line, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in listed.stdout.split() if not name.startswith(".ci/")} <= packed
