"""What Prometheus gets of a service: figures that are right, whoever serves and however many do."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import flask
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import findings_service
from findings_adapters import metrics
from findings_service import ConfigurationError, Settings, create_app, create_blueprint, installing
from tests.clients import API, Client, assert_problem, cases, client_of, client_with, make_key, reader_of, task
from tests.documents import HERE, blocks_of, installed_program, table_rows
from tests.engines import ON_POSTGRES, connect_directly, db_at, locked
from tests.postgres_server import children_of
from tests.servers import IMPORT_CORE, LISTENING, PATIENCE, PROGRAM, Server, command, free_port, invoke, start_process

Figures = dict[tuple[Any, ...], float]
TASKS = f"{API}/tasks"


def figures_of(text: str) -> Figures:
    """Return the figures of an exposition, by name and the values of the labels in the order of their names."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def scraped(server: Server, key: str = "") -> Figures:
    """Return the figures that a server tells."""
    answer = None
    while answer is None or answer.status_code == 503:  # as long as a worker is being started
        answer = server.request("GET", "/metrics", key=key)  # on a connection of its own, to any of the workers
    assert (answer.status_code, answer.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return figures_of(answer.data.decode())


def gained(before: Figures, after: Figures, name: str) -> Figures:
    """Return by how much the figures of a name have risen, without the name."""
    risen = {key[1:]: n - before.get(key, 0) for key, n in after.items() if key[0] == name}
    return {key: n for key, n in risen.items() if n}


def requests_between(before: Figures, after: Figures) -> Figures:
    """Return the requests between two scrapes but for these, by method, route and status."""
    found = gained(before, after, "findings_http_requests_total")
    return {key: n for key, n in found.items() if key[1] != "/metrics"}


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with metrics, for all tests that only look at what it gains."""
    db = tmp_path_factory.mktemp("metrics") / "served.db"
    settings = {"FINDINGS_METRICS": "1", "PROMETHEUS_MULTIPROC_DIR": "/nowhere"}  # which one worker has no need of
    server = start_process([*PROGRAM, "serve", "--port", "0", "--db", str(db)], db, r"curl .*\n", **settings)
    yield server
    assert server.stop() == 0


@pytest.fixture
def on(make_app: Callable[..., flask.Flask]) -> flask.Flask:
    return make_app(metrics="1")


# Figures


def test_requests_are_counted_by_route_method_and_status(counting: Server) -> None:
    before = scraped(counting)
    run = counting.start_run()
    path = f"{API}/runs/{run}/tasks"
    for sent, status in ((task(), 201), ({"tasks": [task(), task()]}, 201), (task(severity="hgh"), 422)):
        assert counting.request("POST", path, sent).status_code == status
    for _ in range(3):
        counting.request("GET", f"{TASKS}?limit=1")
    counting.request("HEAD", TASKS)
    counting.request("GET", TASKS, key="fts_nobody's")
    assert requests_between(before, scraped(counting)) == {
        ("POST", f"{API}/project-types", "201"): 1,
        ("POST", f"{API}/runs", "201"): 1,
        ("POST", f"{API}/runs/{{run_id}}/tasks", "201"): 2,
        ("POST", f"{API}/runs/{{run_id}}/tasks", "422"): 1,
        ("GET", TASKS, "200"): 3,
        ("HEAD", TASKS, "200"): 1,
        ("GET", TASKS, "401"): 1,
    }


def test_durations_are_counted_whatever_came_of_a_request(counting: Server) -> None:
    before, began = scraped(counting), time.monotonic()
    for path in (f"{TASKS}/x", f"{TASKS}/y?z=1", TASKS):
        counting.request("GET", path)
    after, took = scraped(counting), time.monotonic() - began
    counts = gained(before, after, "findings_http_request_duration_seconds_count")
    assert counts.items() >= {("GET", f"{TASKS}/{{task_id}}"): 2, ("GET", TASKS): 1}.items()
    assert 0 < gained(before, after, "findings_http_request_duration_seconds_sum")["GET", TASKS] < took
    buckets = [n for key, n in after.items() if key[0].endswith("seconds_bucket") and key[2:] == ("GET", TASKS)]
    assert len(buckets) == len(metrics.SECONDS) + 1
    assert buckets == sorted(buckets)
    assert buckets[-1] == after["findings_http_request_duration_seconds_count", "GET", TASKS]


def test_made_up_methods_and_paths_add_no_labels(counting: Server) -> None:
    before = scraped(counting)
    for number in range(20):
        for path in (f"/{number}", f"{API}/x{number}", TASKS, f"{TASKS}/{number}", f"/page/{number}.js"):
            counting.request(f"FROB{number}", path)
        counting.request("GET", f"/{number}", **{"X-HTTP-Method-Override": f"FROB{number}"})
    assert requests_between(before, scraped(counting)) == {
        ("other", "-", "404"): 60,
        ("other", TASKS, "405"): 20,
        ("other", f"{TASKS}/{{task_id}}", "405"): 20,
        ("GET", "-", "404"): 20,
    }


@pytest.mark.sqlite
def test_groups_of_writes_are_counted(counting: Server) -> None:
    counting.start_run()  # behind which whoever writes knows whose the key is
    before = scraped(counting)
    path = f"{API}/runs/{counting.start_run()}/tasks"
    with ThreadPoolExecutor(5) as pool:
        for _ in range(5):
            pool.submit(counting.request, "POST", path, task())
    after = scraped(counting)
    assert gained(before, after, "findings_commit_group_size_sum") == {(): 7}
    assert 3 <= gained(before, after, "findings_commit_group_size_count")[()] <= 7


def test_tasks_and_runs_are_those_of_the_keys_own_client(counting: Server) -> None:
    key = invoke("keys", "create", "shop", "--client", "shop", "--db", str(counting.db)).stdout.strip()
    before, own = scraped(counting, key), scraped(counting)
    counting.request("POST", f"{API}/project-types", {"name": "web"}, key)
    for branch in (None, "topic"):
        body = {"projectType": "web", "branch": branch}
        run = counting.request("POST", f"{API}/runs", body, key).json["id"]
        reports = [task(severity="high"), task(severity="low", status="dismissed")]
        counting.request("POST", f"{API}/runs/{run}/tasks", {"tasks": reports}, key)
    counting.request("PATCH", f"{API}/runs/{run}", {"status": "failed"}, key)
    after = scraped(counting, key)
    assert gained(before, after, "findings_tasks") == {("high", "open"): 2, ("low", "dismissed"): 2}
    assert gained(before, after, "findings_runs") == {("running",): 1, ("failed",): 1}
    for name in ("findings_tasks", "findings_runs"):
        assert gained(own, scraped(counting), name) == {}
    assert len([key for key in after if key[0] == "findings_tasks"]) == 20  # also those of which there are none


@pytest.mark.sqlite
def test_the_files_and_the_disk_are_told(counting: Server) -> None:
    figures, db = scraped(counting), counting.db
    assert figures["findings_database_bytes",] == db.stat().st_size
    assert figures["findings_wal_bytes",] == db.with_name(f"{db.name}-wal").stat().st_size
    assert 0 < figures["findings_disk_free_bytes",] <= shutil.disk_usage(db.parent).total
    assert figures["findings_build_info", sqlite3.sqlite_version, findings_service.__version__] == 1


def test_what_cannot_be_read_is_left_out(on: flask.Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(on)
    monkeypatch.setattr("shutil.disk_usage", Mock(side_effect=OSError(5, "Input/output error")))
    figures = figures_of(client.get("/metrics").text)
    assert ("findings_database_bytes",) in figures
    assert ("findings_disk_free_bytes",) not in figures


@pytest.mark.sqlite
def test_a_scrape_costs_the_same_whatever_is_stored(on: flask.Flask) -> None:
    client, connection, statements = client_of(on), reader_of(on), list[str]()
    client.get("/metrics")
    connection.set_trace_callback(statements.append)
    client.get("/metrics")
    connection.set_trace_callback(None)
    queries = [each for each in statements if each.startswith("SELECT")]
    steps = [row[3] for query in queries for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert len(statements) <= 5
    costly = [each for each in steps if "SCAN" in each.removeprefix("SCAN json_each")]
    assert [*costly, *(each for each in steps if each.endswith(("tasks", "runs")))] == []


# Backups

LAST_BACKUP = ("findings_last_backup_timestamp_seconds",)


@pytest.mark.sqlite
def test_the_last_good_backup_is_told_and_none_is_long_ago(counting: Server, tmp_path: Path) -> None:
    assert scraped(counting)[LAST_BACKUP] == 0
    began, noted = time.time(), []
    for name in ("one.db", "two.db"):
        line = ("backup", str(tmp_path / name), "--db", str(counting.db))
        done = invoke(*line)
        assert (done.exit_code, len(done.stderr.splitlines())) == (0, 1), done.stderr
        told, ended = scraped(counting)[LAST_BACKUP], time.time()
        assert began - 0.001 <= told <= ended
        assert invoke(*line).exit_code == 1  # it is there already
        assert scraped(counting)[LAST_BACKUP] == told
        began = ended
        with connect_directly(tmp_path / name) as copy:
            noted += copy.execute("SELECT COUNT(*) FROM backups").fetchone()
    assert noted == [0, 1]  # each as of its moment


@pytest.mark.sqlite
def test_a_backup_of_a_locked_database_is_good_but_not_noted(
    counting: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINDINGS_BUSY_TIMEOUT", "0.1")
    before = scraped(counting)[LAST_BACKUP]
    with locked(counting.db):
        done = invoke("backup", str(tmp_path / "copy.db"), "--db", str(counting.db))
    assert done.exit_code == 0
    assert "verified" in (lines := done.stderr.splitlines())[0]
    assert lines[1:] == [f"The metrics do not know of it: {counting.db} could not be written (database is locked)."]
    assert scraped(counting)[LAST_BACKUP] == before


# Who may ask, and how


def test_a_key_of_level_read_is_enough_and_none_is_not(on: flask.Flask) -> None:
    assert client_of(on, level="read").get("/metrics").status_code == 200
    assert_problem(on.test_client().get("/metrics"), 401, "unauthorized")
    assert_problem(client_of(on, name="other").get("/metrics?name=x"), 400, "invalid_parameter")
    assert client_of(on, name="head").head("/metrics").data == b""
    refused = client_of(on, name="third").post("/metrics")
    assert_problem(refused, 405, "method_not_allowed")
    assert refused.headers["Allow"] == "GET, HEAD"


PLAIN, OPEN = "text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8"
ACCEPTED = cases(
    nothing=("", PLAIN),
    anything=("*/*", PLAIN),
    openmetrics=("application/openmetrics-text", OPEN),
    prometheus_2=("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPEN),
    digits=(f"text/plain;version={'9' * 5000}", PLAIN),
    no_text=("application/openmetrics-text;version=2.<b>", PLAIN),
    no_ascii=("application/openmetrics-text;version=é", PLAIN),
    only_json=("application/json", PLAIN),
)


@pytest.mark.parametrize(("accept", "kind"), ACCEPTED)
def test_the_format_is_the_one_that_is_asked_for(on: flask.Flask, accept: str, kind: str) -> None:
    answer = client_of(on).get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.content_type.startswith(kind)
    parse = openmetrics_families if kind == OPEN else text_string_to_metric_families
    assert {family.name for family in parse(answer.text)} >= {"findings_tasks", "findings_commit_group_size"}


# On and off


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "FROB"])
def test_without_the_setting_there_is_nothing_as_anywhere_else(app: flask.Flask, client: Client, method: str) -> None:
    answer, other = (client.open(path, method=method) for path in ("/metrics", "/metrix"))
    assert answer.status_code == 404
    assert (answer.data, [*answer.headers]) == (other.data, [*other.headers])
    assert app.extensions["findings"].listeners == findings_service.Listeners()


def test_where_it_is_on_it_is_described(on: flask.Flask, app: flask.Flask) -> None:
    described = on.test_client().get(f"{API}/openapi.json").json["paths"]["/metrics"]["get"]
    assert [*described["responses"]["200"]["content"]] == ["text/plain"]
    assert "level `read`" in described["description"]
    assert "/metrics" not in app.test_client().get(f"{API}/openapi.json").json["paths"]


def test_a_start_without_the_package_is_one_line(tmp_path: Path) -> None:
    without = f"{IMPORT_CORE}, sys; sys.modules['prometheus_client'] = None; findings_service.main()"
    options = ("serve", "--port", "0", "--db", str(tmp_path / "x.db"), "--workers", "2")
    done = command(*options, program=(sys.executable, "-c", without), FINDINGS_METRICS="1")
    said = f"Error: FINDINGS_METRICS needs the package prometheus_client{installing('metrics')}\n"
    assert (done.returncode, done.stderr) == (1, said)


# Whoever serves


def assert_every_answer_is_counted(server: Server, key: str = "") -> None:
    """Ask again and again, on new connections, and find each answer counted by whoever tells the figures."""
    before = scraped(server, key)
    for number in range(1, 13):
        server.request("GET", f"{TASKS}?limit={number}", key=key)
        assert requests_between(before, scraped(server, key)) == {("GET", TASKS, "200"): number}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Where workers make the folder for what they share."""
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def two_workers(serve: Callable[..., Server], shared: Path) -> Callable[..., Server]:
    """What starts a server of two workers."""
    return partial(serve, "--workers", "2", FINDINGS_METRICS="1", TMPDIR=str(shared))


def test_two_workers_tell_their_sums_at_once_and_begin_anew_with_each_start(
    two_workers: Callable[..., Server], shared: Path
) -> None:
    server = two_workers(PROMETHEUS_MULTIPROC_DIR="/nowhere")
    assert_every_answer_is_counted(server)
    (left,) = shared.iterdir()
    server.stop(signal.SIGKILL)  # nobody is left to remove the folder
    again = two_workers(until=LISTENING, PROMETHEUS_MULTIPROC_DIR="/nowhere")
    assert requests_between({}, scraped(again, server.key)) == {("GET", "/healthz", "200"): 1}
    assert again.stop() == 0
    assert [*shared.iterdir()] == [left]


def test_a_file_that_a_worker_has_just_made_is_waited_for(two_workers: Callable[..., Server], shared: Path) -> None:
    server = two_workers()
    (folder,) = shared.iterdir()
    begun = folder / "counter_1.db"
    begun.touch()
    answer = server.request("GET", "/metrics")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    begun.unlink()
    assert scraped(server)


def test_a_worker_that_is_killed_leaves_no_folder_behind(two_workers: Callable[..., Server], shared: Path) -> None:
    server = two_workers()
    os.kill(children_of(server.process.pid)[0], signal.SIGKILL)
    assert server.process.wait(PATIENCE) == 1
    assert [*shared.iterdir()] == []


def test_two_workers_of_gunicorn_tell_their_sums_at_once(tmp_path: Path) -> None:
    port, db, figures = free_port(), tmp_path / "findings.db", tmp_path / "figures"
    figures.mkdir()
    key = invoke("keys", "create", "tests", "--level", "full", "--new", "--db", str(db)).stdout.strip()
    line = [installed_program("gunicorn"), "--workers", "2", "--threads", "2", "--bind", f"127.0.0.1:{port}"]
    env = {"FINDINGS_DB": str(db), "FINDINGS_METRICS": "1", "PROMETHEUS_MULTIPROC_DIR": str(figures)}
    started = r"(?s)http://127\.0\.0\.1:\d+.*Booting worker.*Booting worker"
    server = start_process([*line, "findings_service:create_app()"], db, started, **env)
    try:
        assert_every_answer_is_counted(server, key)
    finally:
        assert server.stop() == 0


def test_threads_of_another_server_lose_no_request(on: flask.Flask) -> None:
    key = make_key(on)

    def ask(_: int) -> None:
        client = client_with(on, key)
        for _ in range(25):
            client.get(TASKS)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    figures = figures_of(client_of(on, name="scraper").get("/metrics").text)
    assert requests_between({}, figures) == {("GET", TASKS, "200"): 100}


def test_a_list_that_is_streamed_is_counted_once_it_is_sent(counting: Server, on: flask.Flask) -> None:
    before = scraped(counting)
    assert counting.request("GET", TASKS, Accept="text/csv").status_code == 200
    while not (found := requests_between(before, scraped(counting))):
        pass
    assert found == {("GET", TASKS, "200"): 1}
    client = client_of(on)
    answer = client.get(TASKS, headers={"Accept": "text/csv"})
    assert answer.text.startswith("id,")
    answer.close()
    assert requests_between({}, figures_of(client.get("/metrics").text)) == {("GET", TASKS, "200"): 1}


def test_a_prefix_has_its_metrics_and_leaves_the_applications_own_alone(tmp_path: Path) -> None:
    app, keys = flask.Flask(__name__), {}
    app.add_url_rule("/metrics", "own", lambda: "the application's own")
    for name, on in (("one", "1"), ("two", "0"), ("three", "1")):
        settings = Settings.read(db=db_at(tmp_path / f"{name}.db"), metrics=on)
        app.register_blueprint(create_blueprint(settings, name), url_prefix=f"/{name}")
        with app.blueprints[name].service.database.transaction() as connection:
            key = findings_service.insert_key(connection, "x", "default", "read")
        keys[name] = {"Authorization": f"Bearer {key}"}
    client = app.test_client()
    assert client.get("/metrics").text == "the application's own"
    client.get("/one/api/v1/tasks", headers=keys["one"])
    answers = {name: client.get(f"/{name}/metrics", headers=headers) for name, headers in keys.items()}
    assert [answer.status_code for answer in answers.values()] == [200, 404, 200]
    assert requests_between({}, figures_of(answers["one"].text)) == {("GET", TASKS, "200"): 1}
    assert requests_between({}, figures_of(answers["three"].text)) == {}
    assert_problem(client.post("/one/metrics"), 405, "method_not_allowed")
    for name in keys:
        app.blueprints[name].service.database.close()


def test_a_folder_that_is_not_there_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"PROMETHEUS_MULTIPROC_DIR: .*nowhere is no folder"):
        create_app(db=db_at(tmp_path / "x.db"), metrics="1")


# The handbook


OF_FILES = {"findings_wal_bytes", "findings_disk_free_bytes", "findings_last_backup_timestamp_seconds"}


def handbook_files() -> dict[str, str]:
    """Return the files of the handbook for Prometheus by their names."""
    texts = [text for _, kind, text in blocks_of(HERE / "docs" / "operations.md") if kind == "yaml"]
    return {text.split()[1].rpartition("/")[2]: text for text in texts}


def handbook_rules() -> dict[str, dict[str, Any]]:
    """Return the alerts of the handbook by their names."""
    (group,) = yaml.safe_load(handbook_files()["findings.rules.yml"])["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_the_handbooks_table_has_what_is_told_and_nothing_else(counting: Server) -> None:
    families = [*text_string_to_metric_families(counting.request("GET", "/metrics").data.decode())]
    told = {}
    for family in families:
        name = family.name + {"counter": "_total"}.get(family.type, "")
        labels = sorted({label for sample in family.samples for label in sample.labels if label != "le"})
        told[name] = (family.type, ", ".join(f"`{label}`" for label in labels), family.documentation)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table_rows("docs/operations.md")]
    table = {row[0].strip("`"): row[1:] for row in rows if row[0].startswith("`findings_")}
    if ON_POSTGRES:  # whose files no service knows
        table["findings_build_info"][1] = table["findings_build_info"][1].replace("sqlite", "postgresql")
        table = {name: row for name, row in table.items() if name not in OF_FILES}
    assert told == {name: tuple(row) for name, row in table.items()}


def test_the_handbooks_alerts_ask_for_what_is_told(counting: Server) -> None:
    told = {key[0] for key in scraped(counting)} | (OF_FILES if ON_POSTGRES else set())
    named = [{*re.findall(r"findings_\w+", rule["expr"])} for rule in handbook_rules().values()]
    assert len(named) == 3
    assert all(named)
    assert set().union(*named) <= told


ALERTED = """
rule_files: [findings.rules.yml]
evaluation_interval: 5m
tests:
  - interval: 1m
    input_series:
      - {series: 'up{job="findings", instance="well"}', values: 1x240}
      - {series: 'up{job="findings", instance="away"}', values: 0+0x240}
      - {series: 'findings_http_requests_total{instance="well", status="200"}', values: 0+100x240}
      - {series: 'findings_http_requests_total{instance="well", status="503"}', values: 0+1x240}
      - {series: 'findings_http_requests_total{instance="failing", status="200"}', values: 0+100x240}
      - {series: 'findings_http_requests_total{instance="failing", status="503"}', values: 0+5x240}
      - {series: 'findings_disk_free_bytes{instance="well"}', values: 5e10x240}
      - {series: 'findings_disk_free_bytes{instance="filling"}', values: 5e10-1e8x240}
      - {series: 'findings_last_backup_timestamp_seconds{instance="well"}', values: 2e5x240}
      - {series: 'findings_last_backup_timestamp_seconds{instance="never"}', values: 0+0x4320}
    alert_rule_test:
      - {eval_time: 4h, alertname: FindingsFailing, exp_alerts: [away, failing]}
      - {eval_time: 4h, alertname: FindingsDiskFills, exp_alerts: [filling]}
      - {eval_time: 3d, alertname: FindingsBackupTooOld, exp_alerts: [never]}
"""


def alert(rule: dict[str, Any], instance: str) -> dict[str, Any]:
    """Return an alert as Prometheus tells it."""
    labels = {"instance": instance} | ({"job": "findings"} if instance == "away" else {})
    summary = rule["annotations"]["summary"].replace("{{ $labels.instance }}", instance)
    return {"exp_labels": labels, "exp_annotations": {"summary": summary}}


def test_prometheus_takes_the_handbooks_files_and_alerts_fire_when_they_should_and_not_else(tmp_path: Path) -> None:
    expected = yaml.safe_load(ALERTED)
    for each in expected["tests"][0]["alert_rule_test"]:
        rule = handbook_rules()[each["alertname"]]
        each["exp_alerts"] = [alert(rule, instance) for instance in each["exp_alerts"]]
    files = {name: text.replace("/etc/prometheus/", "") for name, text in handbook_files().items()}
    files |= {"findings.key": "fts_x", "alerts.yml": yaml.safe_dump(expected)}
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    for line in ("check config prometheus.yml", "test rules alerts.yml"):
        judge = [installed_program("promtool"), *line.split()]
        done = subprocess.run(judge, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
