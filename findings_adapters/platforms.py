"""Where a scan takes place, by the variables of a CI platform: the branch, the repository, and metadata of a run.

They are those of GitHub Actions (https://docs.github.com/en/actions/reference/workflows-and-actions/variables) and of
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
Environment = Mapping[str, str]  # in which what is not set is empty
Line = tuple[str | None, str]  # a branch (None: the main line), and why that is a guess, if it is one


class ScanContext(Struct):
    """The branch that is scanned (None: the main line), its repository, and other metadata of a run.

    `unknown` is the reason why a branch is a guess. What is `proposed` is a pull request's: its author may have written
    any file of the checkout.
    """

    branch: str | None = None
    unknown: str = ""
    metadata: dict[str, str] = {}
    proposed: bool = False
    target: str | None = None


def read_event(path: str) -> Json:
    """Return GitHub's event that started the workflow, empty if its file cannot be read."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Json)
    except (OSError, ValueError, RecursionError):
        return {}


def line_of(branch: str, default: str, lack: str = "") -> Line:
    """Return None for the default branch, and any other branch by its name.

    If the default branch is not known, also return `lack`, the reason why this is a guess.
    """
    return (None if branch and branch == default else branch), ("" if default else lack)


def github_line(env: Environment, event: Json) -> Line:
    """Return the line that a workflow is of.

    Only what is known to run on the default branch's own code is of the main line: a comment on a pull request, or
    the end of another workflow, starts one there for code that comes from anywhere.
    """
    name, kind = env["GITHUB_REF_NAME"], env["GITHUB_EVENT_NAME"]
    if kind == "schedule":
        return None, ""  # one runs on the default branch alone
    if is_of_pull_request(env):
        return pull_request_branch(env, event) or name, ""
    if kind == "workflow_run":
        return workflow_run_line(event)
    if is_about_pull_request(event):
        return f"pull/{event['issue'].get('number')}", ""
    if env["GITHUB_REF_TYPE"] == "tag":
        return name, ""
    default = text_in(event, "repository.default_branch")
    return line_of(name, default, "GitHub's event does not name the default branch")


def is_of_pull_request(env: Environment) -> bool:
    """Return whether a workflow runs for a pull request."""
    return env["GITHUB_EVENT_NAME"].startswith("pull_request") or bool(env["GITHUB_HEAD_REF"])


def is_proposed(env: Environment, event: Json, branch: str | None) -> bool:
    """Return whether the code is a pull request's or a merge queue's; a `workflow_run` may be about the main line."""
    kind = env["GITHUB_EVENT_NAME"]
    if kind in ("merge_group", "workflow_run"):
        return branch is not None
    return is_of_pull_request(env) or is_about_pull_request(event)


def is_about_pull_request(event: Json) -> bool:
    """Return whether a comment on a pull request started the workflow."""
    return member(event, "issue").get("pull_request") is not None


def pull_request_branch(env: Environment, event: Json) -> str:
    """Return the name of a pull request's branch, with its owner's where that is a fork's."""
    head = member(member(event, "pull_request"), "head")
    branch = text_in(head, "ref") or env["GITHUB_HEAD_REF"]
    home = text_in(event, "repository.full_name") or env["GITHUB_REPOSITORY"]
    if head and text_in(head, "repo.full_name") != home:
        return text_in(head, "label") or f"fork:{branch}"
    return branch


def workflow_run_line(event: Json) -> Line:
    """Return the line of the workflow whose end started this one: the code that it was about."""
    started = partial(text_in, member(event, "workflow_run"))
    branch, home = started("head_branch"), partial(text_in, member(event, "repository"))
    if started("head_repository.full_name") != home("full_name"):
        return f"{started('head_repository.owner.login') or 'fork'}:{branch}", ""
    own = started("event") in ("push", "schedule", "workflow_dispatch")
    return line_of(branch, home("default_branch") if own else "")


COMMITS = {"workflow_run": "workflow_run.head_sha", "pull_request_target": "pull_request.head.sha"}  # in the event


def github_commit(env: Environment, event: Json) -> str:
    """Return the commit that a workflow is about, as far as GitHub says: GITHUB_SHA may be the default branch's."""
    if path := COMMITS.get(env["GITHUB_EVENT_NAME"]):
        return text_in(event, path)
    if not is_about_pull_request(event):
        return env["GITHUB_SHA"]
    commit = find_commit(Path())  # the pull request's, if the workflow has checked it out
    return "" if commit == env["GITHUB_SHA"] else commit


def github_place(env: Environment) -> ScanContext:
    """Return where a workflow of GitHub Actions runs."""
    event = read_event(env["GITHUB_EVENT_PATH"])
    repository, run = env["GITHUB_REPOSITORY"], env["GITHUB_RUN_ID"]
    target = f"{env['GITHUB_SERVER_URL'] or 'https://github.com'}/{repository}" if repository else ""
    pipeline = f"{target}/actions/runs/{run}" if target and run else ""
    told = {"commit": github_commit(env, event), "pipeline": pipeline, "actor": env["GITHUB_ACTOR"]}
    branch, lack = github_line(env, event)
    return ScanContext(branch, lack, {"repository": target, **told}, is_proposed(env, event, branch))


def gitlab_line(env: Environment) -> Line:
    """Return the line that a pipeline is of."""
    if source := env["CI_MERGE_REQUEST_SOURCE_BRANCH_NAME"]:
        project = env["CI_MERGE_REQUEST_SOURCE_PROJECT_ID"]
        is_fork = project not in ("", env["CI_PROJECT_ID"])
        return (f"{env['CI_MERGE_REQUEST_SOURCE_PROJECT_PATH'] or project}:{source}" if is_fork else source), ""
    aside = env["CI_EXTERNAL_PULL_REQUEST_SOURCE_BRANCH_NAME"] or env["CI_COMMIT_TAG"]
    branch = env["CI_COMMIT_BRANCH"]
    if aside or not branch:
        return aside or env["CI_COMMIT_REF_NAME"], ""
    return line_of(branch, env["CI_DEFAULT_BRANCH"], "CI_DEFAULT_BRANCH is not set")


GITLAB = {
    "repository": "CI_PROJECT_URL",
    "commit": "CI_COMMIT_SHA",
    "pipeline": "CI_PIPELINE_URL",
    "actor": "GITLAB_USER_LOGIN",
}


def gitlab_place(env: Environment) -> ScanContext:
    """Return where a job of GitLab CI runs."""
    metadata = {name: env[variable] for name, variable in GITLAB.items()}
    is_merge_request = bool(env["CI_MERGE_REQUEST_IID"] or env["CI_EXTERNAL_PULL_REQUEST_IID"])
    return ScanContext(*gitlab_line(env), metadata, is_merge_request)


def place_of(variables: Environment) -> ScanContext:
    """Return where a scan takes place; without a platform that is known, it is of the main line and of no target."""
    env, place = defaultdict(str, variables), ScanContext()
    if env["GITHUB_ACTIONS"] or env["GITHUB_EVENT_NAME"]:
        place = github_place(env)
    elif env["GITLAB_CI"] or env["CI_PROJECT_ID"] or env["CI_PROJECT_URL"]:
        place = gitlab_place(env)
    elif env["CI"]:
        place.unknown = "this CI platform is not known"
    if place.branch is not None:  # as the service takes it; a merge queue has a branch for each pull request
        place.branch = regex.sub(r"\A(gh-readonly-queue/.+)/[^/]+\Z", r"\1", place.branch)
        place.branch = regex.sub(f"[{CONTROLS}]", "", place.branch)[:LONGEST_BRANCH]
    place.metadata = {name: told for name, told in place.metadata.items() if told}
    place.target = place.metadata.get("repository")
    return place
