"""Tests of the page's JavaScript modules that need no browser, run by Node (18 or newer)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents import HERE
from tests.servers import environment


@pytest.mark.parametrize("file", sorted((HERE / "tests" / "page").glob("*.test.mjs")), ids=lambda file: file.name)
def test_a_test_file_for_node_passes(file: Path) -> None:
    node = shutil.which("node") or pytest.skip("node is not installed")
    line = [node, "--test", "--test-reporter=tap", str(file)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Node reports a file without tests as one passed test that has the file's name.
    assert re.search(r"^ *ok \d+ - (?!/)", done.stdout, re.MULTILINE), done.stdout
