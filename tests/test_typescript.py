"""Clients for TypeScript that generators make of the OpenAPI document: they compile strictly, and a night goes through.

They need node, and what `npm install openapi-fetch openapi-typescript @hey-api/openapi-ts typescript@5` puts into the
folder `node_modules`, and are skipped without.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import API, HERE, Server, blocks_of, environment

MODULES = HERE / "node_modules"
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


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> Path:
    """A folder with the document of a server, and what npm has installed."""
    if not (MODULES / "openapi-typescript").exists():
        pytest.skip("node_modules/openapi-typescript is not installed")
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "openapi.json").write_text(json.dumps(server.request("GET", f"{API}/openapi.json").json), "utf-8")
    (tmp_path / "package.json").write_text('{"type": "module"}', "utf-8")
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": STRICT}), "utf-8")
    (tmp_path / "openapi-ts.config.js").write_text(f"export default {json.dumps(HEY_API)}", "utf-8")
    return tmp_path


def run(folder: Path, *line: str, **env: str) -> str:
    """Run a program of npm's, or node itself, and return what it prints."""
    program = [line[0]] if line[0] == "node" else ["node_modules/.bin/" + line[0]]
    options: dict[str, Any] = {"cwd": folder, "env": environment(**env), "capture_output": True, "text": True}
    done = subprocess.run([*program, *line[1:]], timeout=120, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


NIGHTS = {
    "openapi_typescript": "openapi-typescript openapi.json --output findings.d.ts",
    "hey_api": "openapi-ts --silent --no-log-file",
}


@pytest.mark.parametrize("generator", NIGHTS)
def test_a_client_in_typescript_compiles_strictly_and_takes_a_night_through(
    folder: Path, server: Server, generator: str
) -> None:
    [of_the_page] = [text for _, kind, text in blocks_of(HERE / "docs" / "agents.md") if kind == "typescript"]
    (folder / "night.ts").write_text(HEY_NIGHT if generator == "hey_api" else of_the_page, "utf-8")
    run(folder, *NIGHTS[generator].split())
    run(folder, "tsc")
    told = run(folder, "node", "out/night.js", FINDINGS_URL=f"http://127.0.0.1:{server.port}", FINDINGS_KEY=server.key)
    assert told.startswith("1 created, 1 open: No new finding of severity "), told
    [task] = server.request("GET", f"{API}/tasks").json["tasks"]
    assert (task["externalId"], task["projectType"]) == ("logo", "a11y")
