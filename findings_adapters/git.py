"""Queries to git about a checkout: its files, the order of commits, and renames since a commit."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

# A pull request can contain the files of a bare repository whose configuration runs a program of its author's. With
# safe.bareRepository=explicit git ignores such a folder, and core.fsmonitor=false starts no monitor.
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit", "-c", "safe.directory=*")
COMMIT = re.compile("[0-9a-fA-F]{7,64}")
PATIENCE = 60.0  # seconds
UNTRACKED = 1  # exit code of `git ls-files --error-unmatch`; what fails has another


def run(folder: Path, *words: str) -> tuple[int | None, bytes]:
    """Run git in a folder and return its exit code, None if it is not installed or takes too long, and its output."""
    # In a hook, GIT_DIR names another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        line = [*GIT, *words]
        done = subprocess.run(line, cwd=folder, env=env, capture_output=True, check=False, timeout=PATIENCE)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None, b""
    return done.returncode, done.stdout


def ask(folder: Path, *words: str) -> bytes | None:
    """Return git's output in a folder, None if it fails or is not installed."""
    code, told = run(folder, *words)
    return told if code == 0 else None


def files_of(folder: Path) -> set[Path]:
    """Return the files of a repository that git does not ignore."""
    listed = ask(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or b""
    return {folder / name for name in os.fsdecode(listed).split("\0")}


def top_of(path: Path) -> Path | None:
    """Return the top of the checkout that a path lies in, None outside of any.

    It has a `.git`, which no commit can contain, and is found without git: that takes a folder with the files of a bare
    repository for a top, and a commit can contain those.
    """
    return next((each for each in (path, *path.parents) if (each / ".git").exists()), None)


def is_tracked(file: Path) -> bool | None:
    """Return whether git tracks a file, or the one that it links to; None if git fails or is not installed."""
    words = ("--literal-pathspecs", "ls-files", "--error-unmatch", "--")
    paths = {file.absolute(), Path(os.path.realpath(file))}
    codes = {run(top, *words, str(path.relative_to(top)))[0] for path in paths if (top := top_of(path))}
    return 0 in codes if codes <= {0, UNTRACKED} else None


def find_commit(folder: Path, name: str = "HEAD") -> str:
    """Return the commit of a name such as a branch, by default the one that is checked out; "" if there is none."""
    found = ask(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return os.fsdecode(found or b"").strip()


def is_before(folder: Path, commit: str, other: str) -> bool:
    """Return whether a commit is another one or its ancestor."""
    known = all(map(COMMIT.fullmatch, (commit, other)))
    return commit == other or (known and ask(folder, "merge-base", "--is-ancestor", commit, other) is not None)


def renames_since(folder: Path, commit: str) -> dict[str, str] | None:
    """Return the files below a folder that were renamed since a commit, with their earlier paths.

    None if git cannot compare, as in a checkout without that commit.
    """
    options = ("--no-ext-diff", "--no-textconv", "--relative", "-M", "--diff-filter=R", "--name-status", "-z")
    told = ask(folder, "diff", *options, commit, "--") if COMMIT.fullmatch(commit) else None
    if told is None:
        return None
    words = os.fsdecode(told).split("\0")  # a state, the earlier path and the new one for each
    return {new: old for old, new in zip(words[1::3], words[2::3], strict=False)}
