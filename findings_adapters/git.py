"""Queries to git about a checkout: its files, the order of commits, and renames since a commit."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

# A pull request can contain the files of a bare repository whose configuration runs a program of the author.
# safe.bareRepository=explicit makes git ignore such a folder; core.fsmonitor=false prevents a monitor program.
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit", "-c", "safe.directory=*")
COMMIT = re.compile("[0-9a-fA-F]{7,64}")
PATIENCE = 60.0  # seconds for one git command
UNTRACKED = 1  # exit code of `git ls-files --error-unmatch` for an untracked file; failures have other codes


def run(folder: Path, *words: str) -> tuple[int | None, bytes]:
    """Run git in a folder. Return (exit code, output), or (None, b"") if git is not installed or takes too long."""
    # In a git hook, GIT_DIR may select another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        line = [*GIT, *words]
        done = subprocess.run(line, cwd=folder, env=env, capture_output=True, check=False, timeout=PATIENCE)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None, b""
    return done.returncode, done.stdout


def ask(folder: Path, *words: str) -> bytes | None:
    """Run git in a folder and return its output, or None if git fails, takes too long or is not installed."""
    code, output = run(folder, *words)
    return output if code == 0 else None


def files_of(folder: Path) -> set[Path]:
    """Return all files below a folder, tracked or untracked, that git does not ignore."""
    listed = ask(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or b""
    return {folder / name for name in os.fsdecode(listed).split("\0")}


def top_of(path: Path) -> Path | None:
    """Return the top folder of the checkout that contains a path, or None outside a checkout.

    It is the folder with a `.git`, which no commit can contain. Git is not used to find it, because git also accepts
    a folder with the files of a bare repository, which a commit can contain.
    """
    return next((each for each in (path, *path.parents) if (each / ".git").exists()), None)


def is_tracked(file: Path) -> bool | None:
    """Return whether git tracks a file or, if it is a link, its target; None if git fails or is not installed."""
    words = ("--literal-pathspecs", "ls-files", "--error-unmatch", "--")
    paths = {file.absolute(), Path(os.path.realpath(file))}
    codes = {run(top, *words, str(path.relative_to(top)))[0] for path in paths if (top := top_of(path))}
    return 0 in codes if codes <= {0, UNTRACKED} else None


def find_commit(folder: Path, name: str = "HEAD") -> str:
    """Return the full hash of the commit that a name refers to, such as a branch; "" if there is none."""
    found = ask(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return os.fsdecode(found or b"").strip()


def is_before(folder: Path, commit: str, other: str) -> bool:
    """Return whether a commit equals another commit or is an ancestor of it; false if git cannot tell."""
    known = all(map(COMMIT.fullmatch, (commit, other)))
    return commit == other or (known and ask(folder, "merge-base", "--is-ancestor", commit, other) is not None)


def renames_since(folder: Path, commit: str) -> dict[str, str] | None:
    """Return the renames of files below a folder since a commit, as a mapping of new paths to earlier ones.

    Return None if git cannot compare them, for example in a shallow checkout without that commit.
    """
    options = ("--no-ext-diff", "--no-textconv", "--relative", "-M", "--diff-filter=R", "--name-status", "-z")
    output = ask(folder, "diff", *options, commit, "--") if COMMIT.fullmatch(commit) else None
    if output is None:
        return None
    words = os.fsdecode(output).split("\0")  # for each rename: status, earlier path, new path
    return {new: old for old, new in zip(words[1::3], words[2::3], strict=False)}
