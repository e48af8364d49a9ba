"""Context of a scan from a CI platform's variables: branch, repository, and run metadata.

The platforms are GitHub Actions (https://docs.github.com/en/actions/reference/workflows-and-actions/variables) and
GitLab CI (https://docs.gitlab.com/ci/variables/predefined_variables/).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
import regex
from msgspec import Struct

from findings_adapters.git import find_commit
from findings_adapters.scan_config import member, text_in
from findings_client import Json
from findings_service import CONTROLS

LONGEST_BRANCH = 255
Environment = Mapping[str, str]  # variables that are not set are empty
Branch = tuple[str | None, str]  # a branch (None: the main line), and why it is a guess, or ""


class ScanContext(Struct):
    """Branch that is scanned (None: the main line, "": not known), target, and metadata of a run.

    `unknown` is the reason why the branch is a guess, or "". `proposed` is whether the code is a pull request's, whose
    author may have written any file of the checkout.
    """

    branch: str | None = None
    unknown: str = ""
    metadata: dict[str, str] = {}
    proposed: bool = False
    target: str | None = None


def read_event(path: str) -> Json:
    """Return the GitHub event that started the workflow, or {} if its file cannot be read."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Json)
    except (OSError, ValueError, RecursionError):
        return {}


def branch_of(branch: str, default: str, reason: str = "") -> Branch:
    """Return None for the default branch, or the name of another branch; and why it is a guess, or "".

    It is a guess, for the given `reason`, if `default` is "" because the default branch is not known.
    """
    return (None if branch and branch == default else branch), ("" if default else reason)


def github_branch(env: Environment, event: Json) -> Branch:
    """Return the branch that a GitHub workflow scans.

    Only a workflow that is known to run on the default branch's own code scans the main line. A comment on a pull
    request, or the end of another workflow, starts a workflow on the default branch for code of any branch or fork.
    """
    name, kind = env["GITHUB_REF_NAME"], env["GITHUB_EVENT_NAME"]
    if kind == "schedule":
        return None, ""  # scheduled workflows run only on the default branch
    if is_of_pull_request(env):
        return pull_request_branch(env, event) or name, ""
    if kind == "workflow_run":
        return workflow_run_branch(event)
    if is_about_pull_request(event):
        return f"pull/{event['issue'].get('number')}", ""
    if env["GITHUB_REF_TYPE"] == "tag":
        return name, ""
    default = text_in(event, "repository.default_branch")
    return branch_of(name, default, "GitHub's event does not name the default branch")


def is_of_pull_request(env: Environment) -> bool:
    """Return whether a workflow runs for a pull request."""
    return env["GITHUB_EVENT_NAME"].startswith("pull_request") or bool(env["GITHUB_HEAD_REF"])


def is_proposed(env: Environment, event: Json, branch: str | None) -> bool:
    """Return whether the code is of a pull request, a merge queue, or another workflow not on the main line."""
    kind = env["GITHUB_EVENT_NAME"]
    if kind in ("merge_group", "workflow_run"):
        return branch is not None
    return is_of_pull_request(env) or is_about_pull_request(event)


def is_about_pull_request(event: Json) -> bool:
    """Return whether a comment on a pull request started the workflow."""
    return member(event, "issue").get("pull_request") is not None


def pull_request_branch(env: Environment, event: Json) -> str:
    """Return the branch of a pull request, prefixed with the owner's name if it is a fork's."""
    head = member(member(event, "pull_request"), "head")
    branch = text_in(head, "ref") or env["GITHUB_HEAD_REF"]
    home = text_in(event, "repository.full_name") or env["GITHUB_REPOSITORY"]
    if head and text_in(head, "repo.full_name") != home:
        return text_in(head, "label") or f"fork:{branch}"
    return branch


def workflow_run_branch(event: Json) -> Branch:
    """Return the branch on which the workflow ran whose completion started this workflow."""
    started = partial(text_in, member(event, "workflow_run"))
    branch, home = started("head_branch"), partial(text_in, member(event, "repository"))
    if started("head_repository.full_name") != home("full_name"):
        return f"{started('head_repository.owner.login') or 'fork'}:{branch}", ""
    own = started("event") in ("push", "schedule", "workflow_dispatch")
    return branch_of(branch, home("default_branch") if own else "")


COMMITS = {"workflow_run": "workflow_run.head_sha", "pull_request_target": "pull_request.head.sha"}  # in the event


def github_commit(env: Environment, event: Json) -> str:
    """Return the commit of the scanned code, or ""; GITHUB_SHA may be the default branch's."""
    if path := COMMITS.get(env["GITHUB_EVENT_NAME"]):
        return text_in(event, path)
    if not is_about_pull_request(event):
        return env["GITHUB_SHA"]
    commit = find_commit(Path())  # the pull request's, if it is checked out
    return "" if commit == env["GITHUB_SHA"] else commit


def github_context(env: Environment) -> ScanContext:
    """Return the context of a scan in GitHub Actions."""
    event = read_event(env["GITHUB_EVENT_PATH"])
    repository, run = env["GITHUB_REPOSITORY"], env["GITHUB_RUN_ID"]
    target = f"{env['GITHUB_SERVER_URL'] or 'https://github.com'}/{repository}" if repository else ""
    pipeline = f"{target}/actions/runs/{run}" if target and run else ""
    metadata = {"commit": github_commit(env, event), "pipeline": pipeline, "actor": env["GITHUB_ACTOR"]}
    branch, reason = github_branch(env, event)
    return ScanContext(branch, reason, {"repository": target, **metadata}, is_proposed(env, event, branch))


def gitlab_branch(env: Environment) -> Branch:
    """Return the branch that a GitLab pipeline scans."""
    if source := env["CI_MERGE_REQUEST_SOURCE_BRANCH_NAME"]:
        project = env["CI_MERGE_REQUEST_SOURCE_PROJECT_ID"]
        is_fork = project not in ("", env["CI_PROJECT_ID"])
        return (f"{env['CI_MERGE_REQUEST_SOURCE_PROJECT_PATH'] or project}:{source}" if is_fork else source), ""
    other = env["CI_EXTERNAL_PULL_REQUEST_SOURCE_BRANCH_NAME"] or env["CI_COMMIT_TAG"]
    branch = env["CI_COMMIT_BRANCH"]
    if other or not branch:
        return other or env["CI_COMMIT_REF_NAME"], ""
    return branch_of(branch, env["CI_DEFAULT_BRANCH"], "CI_DEFAULT_BRANCH is not set")


GITLAB = {
    "repository": "CI_PROJECT_URL",
    "commit": "CI_COMMIT_SHA",
    "pipeline": "CI_PIPELINE_URL",
    "actor": "GITLAB_USER_LOGIN",
}


def gitlab_context(env: Environment) -> ScanContext:
    """Return the context of a scan in GitLab CI."""
    metadata = {name: env[variable] for name, variable in GITLAB.items()}
    is_merge_request = bool(env["CI_MERGE_REQUEST_IID"] or env["CI_EXTERNAL_PULL_REQUEST_IID"])
    return ScanContext(*gitlab_branch(env), metadata, is_merge_request)


def place_of(variables: Environment) -> ScanContext:
    """Return the context of a scan from a CI platform's variables; of an unknown platform, the main line only."""
    env, context = defaultdict(str, variables), ScanContext()
    if env["GITHUB_ACTIONS"] or env["GITHUB_EVENT_NAME"]:
        context = github_context(env)
    elif env["GITLAB_CI"] or env["CI_PROJECT_ID"] or env["CI_PROJECT_URL"]:
        context = gitlab_context(env)
    elif env["CI"]:
        context.unknown = "this CI platform is not known"
    if context.branch is not None:  # as the service accepts it, without a merge queue's suffix per pull request
        context.branch = regex.sub(r"\A(gh-readonly-queue/.+)/[^/]+\Z", r"\1", context.branch)
        context.branch = regex.sub(f"[{CONTROLS}]", "", context.branch)[:LONGEST_BRANCH]
    context.metadata = {name: value for name, value in context.metadata.items() if value}
    context.target = context.metadata.get("repository")
    return context
