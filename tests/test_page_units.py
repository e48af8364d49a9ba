"""What the page's modules promise that need no browser: tests of their own, run by Node (18 or newer)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents import HERE
from tests.servers import environment


@pytest.mark.parametrize("file", sorted((HERE / "tests" / "page").glob("*.test.mjs")), ids=lambda file: file.name)
def test_what_needs_no_browser(file: Path) -> None:
    node = shutil.which("node") or pytest.skip("node is not installed")
    line = [node, "--test", "--test-reporter=tap", str(file)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # A file without a test counts as one that passed, by its own name.
    assert re.search(r"^ *ok \d+ - (?!/)", done.stdout, re.MULTILINE), done.stdout
