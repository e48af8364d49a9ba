"""The Prometheus metrics of a service, with one or several workers and under other WSGI servers."""

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
from findings_service import ConfigurationError, Settings, create_app, create_blueprint, install_hint
from tests.clients import API, Client, assert_problem, cases, client_of, client_with, make_key, reader_of, task
from tests.documents import HERE, blocks_of, installed_program, table_rows
from tests.engines import ON_POSTGRES, connect_directly, db_at, locked
from tests.postgres_server import children_of
from tests.servers import IMPORT_CORE, LISTENING, PATIENCE, PROGRAM, Server, command, free_port, invoke, start_process

Samples = dict[tuple[Any, ...], float]
TASKS = f"{API}/tasks"


def parse_metrics(text: str) -> Samples:
    """Return the samples of an exposition by (name, *label values), with the labels in the order of their names."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def scrape(server: Server, key: str = "") -> Samples:
    response = None
    while response is None or response.status_code == 503:  # a worker is starting
        response = server.request("GET", "/metrics", key=key)  # on a new connection, to any worker
    assert (response.status_code, response.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return parse_metrics(response.data.decode())


def increase_of(before: Samples, after: Samples, name: str) -> Samples:
    """Return the nonzero increases of a metric's samples, by label values."""
    increase = {key[1:]: n - before.get(key, 0) for key, n in after.items() if key[0] == name}
    return {key: n for key, n in increase.items() if n}


def requests_between(before: Samples, after: Samples) -> Samples:
    """Return the numbers of requests between two scrapes by method, route and status, without the scrapes."""
    requests = increase_of(before, after, "findings_http_requests_total")
    return {key: n for key, n in requests.items() if key[1] != "/metrics"}


@pytest.fixture(scope="module")
def metrics_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with metrics, shared by the tests that check only increases."""
    db = tmp_path_factory.mktemp("metrics") / "served.db"
    settings = {"FINDINGS_METRICS": "1", "PROMETHEUS_MULTIPROC_DIR": "/nowhere"}  # not used by a single worker
    server = start_process([*PROGRAM, "serve", "--port", "0", "--db", str(db)], db, r"curl .*\n", **settings)
    yield server
    assert server.stop() == 0


@pytest.fixture
def metrics_app(make_app: Callable[..., flask.Flask]) -> flask.Flask:
    return make_app(metrics="1")


# Samples


def test_requests_are_counted_by_route_method_and_status(metrics_server: Server) -> None:
    before = scrape(metrics_server)
    run = metrics_server.start_run()
    path = f"{API}/runs/{run}/tasks"
    for sent, status in ((task(), 201), ({"tasks": [task(), task()]}, 201), (task(severity="hgh"), 422)):
        assert metrics_server.request("POST", path, sent).status_code == status
    for _ in range(3):
        metrics_server.request("GET", f"{TASKS}?limit=1")
    metrics_server.request("HEAD", TASKS)
    metrics_server.request("GET", TASKS, key="fts_nobody's")
    assert requests_between(before, scrape(metrics_server)) == {
        ("POST", f"{API}/project-types", "201"): 1,
        ("POST", f"{API}/runs", "201"): 1,
        ("POST", f"{API}/runs/{{run_id}}/tasks", "201"): 2,
        ("POST", f"{API}/runs/{{run_id}}/tasks", "422"): 1,
        ("GET", TASKS, "200"): 3,
        ("HEAD", TASKS, "200"): 1,
        ("GET", TASKS, "401"): 1,
    }


def test_durations_are_recorded_for_every_status(metrics_server: Server) -> None:
    before, began = scrape(metrics_server), time.monotonic()
    for path in (f"{TASKS}/x", f"{TASKS}/y?z=1", TASKS):
        metrics_server.request("GET", path)
    after, took = scrape(metrics_server), time.monotonic() - began
    counts = increase_of(before, after, "findings_http_request_duration_seconds_count")
    assert counts.items() >= {("GET", f"{TASKS}/{{task_id}}"): 2, ("GET", TASKS): 1}.items()
    assert 0 < increase_of(before, after, "findings_http_request_duration_seconds_sum")["GET", TASKS] < took
    buckets = [n for key, n in after.items() if key[0].endswith("seconds_bucket") and key[2:] == ("GET", TASKS)]
    assert len(buckets) == len(metrics.SECONDS) + 1
    assert buckets == sorted(buckets)
    assert buckets[-1] == after["findings_http_request_duration_seconds_count", "GET", TASKS]


def test_unknown_methods_and_paths_add_no_labels(metrics_server: Server) -> None:
    before = scrape(metrics_server)
    for number in range(20):
        for path in (f"/{number}", f"{API}/x{number}", TASKS, f"{TASKS}/{number}", f"/page/{number}.js"):
            metrics_server.request(f"FROB{number}", path)
        metrics_server.request("GET", f"/{number}", **{"X-HTTP-Method-Override": f"FROB{number}"})
    assert requests_between(before, scrape(metrics_server)) == {
        ("other", "-", "404"): 60,
        ("other", TASKS, "405"): 20,
        ("other", f"{TASKS}/{{task_id}}", "405"): 20,
        ("GET", "-", "404"): 20,
    }


@pytest.mark.sqlite
def test_commit_group_sizes_are_recorded(metrics_server: Server) -> None:
    metrics_server.start_run()  # from here on the service knows the key's client
    before = scrape(metrics_server)
    path = f"{API}/runs/{metrics_server.start_run()}/tasks"
    with ThreadPoolExecutor(5) as pool:
        for _ in range(5):
            pool.submit(metrics_server.request, "POST", path, task())
    after = scrape(metrics_server)
    assert increase_of(before, after, "findings_commit_group_size_sum") == {(): 7}
    assert 3 <= increase_of(before, after, "findings_commit_group_size_count")[()] <= 7


def test_tasks_and_runs_are_counted_for_the_keys_client_only(metrics_server: Server) -> None:
    key = invoke("keys", "create", "shop", "--client", "shop", "--db", str(metrics_server.db)).stdout.strip()
    before, own = scrape(metrics_server, key), scrape(metrics_server)
    metrics_server.request("POST", f"{API}/project-types", {"name": "web"}, key)
    for branch in (None, "topic"):
        body = {"projectType": "web", "branch": branch}
        run = metrics_server.request("POST", f"{API}/runs", body, key).json["id"]
        reports = [task(severity="high"), task(severity="low", status="dismissed")]
        metrics_server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": reports}, key)
    metrics_server.request("PATCH", f"{API}/runs/{run}", {"status": "failed"}, key)
    after = scrape(metrics_server, key)
    assert increase_of(before, after, "findings_tasks") == {("high", "open"): 2, ("low", "dismissed"): 2}
    assert increase_of(before, after, "findings_runs") == {("running",): 1, ("failed",): 1}
    for name in ("findings_tasks", "findings_runs"):
        assert increase_of(own, scrape(metrics_server), name) == {}
    assert len([key for key in after if key[0] == "findings_tasks"]) == 20  # including zeros


@pytest.mark.sqlite
def test_file_sizes_and_free_disk_space_are_exported(metrics_server: Server) -> None:
    samples, db = scrape(metrics_server), metrics_server.db
    assert samples["findings_database_bytes",] == db.stat().st_size
    assert samples["findings_wal_bytes",] == db.with_name(f"{db.name}-wal").stat().st_size
    assert 0 < samples["findings_disk_free_bytes",] <= shutil.disk_usage(db.parent).total
    assert samples["findings_build_info", sqlite3.sqlite_version, findings_service.__version__] == 1


def test_unreadable_disk_space_is_omitted(metrics_app: flask.Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(metrics_app)
    monkeypatch.setattr("shutil.disk_usage", Mock(side_effect=OSError(5, "Input/output error")))
    samples = parse_metrics(client.get("/metrics").text)
    assert ("findings_database_bytes",) in samples
    assert ("findings_disk_free_bytes",) not in samples


@pytest.mark.sqlite
def test_scrape_scans_no_tables(metrics_app: flask.Flask) -> None:
    client, connection, statements = client_of(metrics_app), reader_of(metrics_app), list[str]()
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
def test_last_successful_backup_time_is_exported_and_0_before(metrics_server: Server, tmp_path: Path) -> None:
    assert scrape(metrics_server)[LAST_BACKUP] == 0
    began, counts = time.time(), []
    for name in ("one.db", "two.db"):
        line = ("backup", str(tmp_path / name), "--db", str(metrics_server.db))
        done = invoke(*line)
        assert (done.exit_code, len(done.stderr.splitlines())) == (0, 1), done.stderr
        exported, ended = scrape(metrics_server)[LAST_BACKUP], time.time()
        assert began - 0.001 <= exported <= ended
        assert invoke(*line).exit_code == 1  # the copy exists already
        assert scrape(metrics_server)[LAST_BACKUP] == exported
        began = ended
        with connect_directly(tmp_path / name) as copy:
            counts += copy.execute("SELECT COUNT(*) FROM backups").fetchone()
    assert counts == [0, 1]  # the first copy was made before the first record


@pytest.mark.sqlite
def test_backup_of_a_locked_database_succeeds_but_is_not_recorded(
    metrics_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINDINGS_BUSY_TIMEOUT", "0.1")
    before = scrape(metrics_server)[LAST_BACKUP]
    with locked(metrics_server.db):
        done = invoke("backup", str(tmp_path / "copy.db"), "--db", str(metrics_server.db))
    assert done.exit_code == 0
    assert "verified" in (lines := done.stderr.splitlines())[0]
    assert lines[1:] == [
        f"The metrics do not show the backup: {metrics_server.db} cannot be written (database is locked)."
    ]
    assert scrape(metrics_server)[LAST_BACKUP] == before


# Authorization and formats


def test_metrics_require_a_key_of_level_read(metrics_app: flask.Flask) -> None:
    assert client_of(metrics_app, level="read").get("/metrics").status_code == 200
    assert_problem(metrics_app.test_client().get("/metrics"), 401, "unauthorized")
    assert_problem(client_of(metrics_app, name="other").get("/metrics?name=x"), 400, "invalid_parameter")
    assert client_of(metrics_app, name="head").head("/metrics").data == b""
    refused = client_of(metrics_app, name="third").post("/metrics")
    assert_problem(refused, 405, "method_not_allowed")
    assert refused.headers["Allow"] == "GET, HEAD"


PLAIN, OPEN = "text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8"
ACCEPTED = cases(
    nothing=("", PLAIN),
    anything=("*/*", PLAIN),
    openmetrics=("application/openmetrics-text", OPEN),
    prometheus_2=("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPEN),
    digits=(f"text/plain;version={'9' * 5000}", PLAIN),
    html_in_version=("application/openmetrics-text;version=2.<b>", PLAIN),
    not_ascii=("application/openmetrics-text;version=é", PLAIN),
    only_json=("application/json", PLAIN),
)


@pytest.mark.parametrize(("accept", "media_type"), ACCEPTED)
def test_accept_header_selects_the_format(metrics_app: flask.Flask, accept: str, media_type: str) -> None:
    response = client_of(metrics_app).get("/metrics", headers={"Accept": accept})
    assert response.status_code == 200
    assert response.content_type.startswith(media_type)
    parse = openmetrics_families if media_type == OPEN else text_string_to_metric_families
    assert {family.name for family in parse(response.text)} >= {"findings_tasks", "findings_commit_group_size"}


# Enabled and disabled


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "FROB"])
def test_metrics_endpoint_is_404_without_the_setting(app: flask.Flask, client: Client, method: str) -> None:
    response, other = (client.open(path, method=method) for path in ("/metrics", "/metrix"))
    assert response.status_code == 404
    assert (response.data, [*response.headers]) == (other.data, [*other.headers])
    assert app.extensions["findings"].listeners == findings_service.Listeners()


def test_openapi_describes_the_endpoint_if_enabled(metrics_app: flask.Flask, app: flask.Flask) -> None:
    described = metrics_app.test_client().get(f"{API}/openapi.json").json["paths"]["/metrics"]["get"]
    assert [*described["responses"]["200"]["content"]] == ["text/plain"]
    assert "level `read`" in described["description"]
    assert "/metrics" not in app.test_client().get(f"{API}/openapi.json").json["paths"]


def test_missing_package_is_reported_in_one_line_at_start(tmp_path: Path) -> None:
    without = f"{IMPORT_CORE}, sys; sys.modules['prometheus_client'] = None; findings_service.main()"
    options = ("serve", "--port", "0", "--db", str(tmp_path / "x.db"), "--workers", "2")
    done = command(*options, program=(sys.executable, "-c", without), FINDINGS_METRICS="1")
    message = f"Error: FINDINGS_METRICS needs the package prometheus_client{install_hint('metrics')}\n"
    assert (done.returncode, done.stderr) == (1, message)


# Several processes and other servers


def assert_every_request_is_counted(server: Server, key: str = "") -> None:
    """Send requests on new connections, and check that each scrape has counted all of them."""
    before = scrape(server, key)
    for number in range(1, 13):
        server.request("GET", f"{TASKS}?limit={number}", key=key)
        assert requests_between(before, scrape(server, key)) == {("GET", TASKS, "200"): number}


@pytest.fixture
def shared_dir(tmp_path: Path) -> Path:
    """The temporary folder in which workers create their shared folder."""
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def two_workers(serve: Callable[..., Server], shared_dir: Path) -> Callable[..., Server]:
    return partial(serve, "--workers", "2", FINDINGS_METRICS="1", TMPDIR=str(shared_dir))


def test_two_workers_export_their_sum_and_reset_it_at_start(
    two_workers: Callable[..., Server], shared_dir: Path
) -> None:
    server = two_workers(PROMETHEUS_MULTIPROC_DIR="/nowhere")
    assert_every_request_is_counted(server)
    (remaining,) = shared_dir.iterdir()
    server.stop(signal.SIGKILL)  # so the folder is not removed
    restarted = two_workers(until=LISTENING, PROMETHEUS_MULTIPROC_DIR="/nowhere")
    assert requests_between({}, scrape(restarted, server.key)) == {("GET", "/healthz", "200"): 1}
    assert restarted.stop() == 0
    assert [*shared_dir.iterdir()] == [remaining]


def test_scrape_returns_503_while_a_worker_file_is_empty(two_workers: Callable[..., Server], shared_dir: Path) -> None:
    server = two_workers()
    (folder,) = shared_dir.iterdir()
    empty_file = folder / "counter_1.db"
    empty_file.touch()
    response = server.request("GET", "/metrics")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    empty_file.unlink()
    assert scrape(server)


def test_shared_folder_is_removed_if_a_worker_is_killed(two_workers: Callable[..., Server], shared_dir: Path) -> None:
    server = two_workers()
    os.kill(children_of(server.process.pid)[0], signal.SIGKILL)
    assert server.process.wait(PATIENCE) == 1
    assert [*shared_dir.iterdir()] == []


def test_two_gunicorn_workers_export_their_sum(tmp_path: Path) -> None:
    port, db, folder = free_port(), tmp_path / "findings.db", tmp_path / "figures"
    folder.mkdir()
    key = invoke("keys", "create", "tests", "--level", "full", "--new", "--db", str(db)).stdout.strip()
    line = [installed_program("gunicorn"), "--workers", "2", "--threads", "2", "--bind", f"127.0.0.1:{port}"]
    env = {"FINDINGS_DB": str(db), "FINDINGS_METRICS": "1", "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    started = r"(?s)http://127\.0\.0\.1:\d+.*Booting worker.*Booting worker"
    server = start_process([*line, "findings_service:create_app()"], db, started, **env)
    try:
        assert_every_request_is_counted(server, key)
    finally:
        assert server.stop() == 0


def test_concurrent_threads_lose_no_count(metrics_app: flask.Flask) -> None:
    key = make_key(metrics_app)

    def send(_: int) -> None:
        client = client_with(metrics_app, key)
        for _ in range(25):
            client.get(TASKS)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    samples = parse_metrics(client_of(metrics_app, name="scraper").get("/metrics").text)
    assert requests_between({}, samples) == {("GET", TASKS, "200"): 100}


def test_streamed_list_is_counted_when_it_is_sent(metrics_server: Server, metrics_app: flask.Flask) -> None:
    before = scrape(metrics_server)
    assert metrics_server.request("GET", TASKS, Accept="text/csv").status_code == 200
    while not (requests := requests_between(before, scrape(metrics_server))):
        pass
    assert requests == {("GET", TASKS, "200"): 1}
    client = client_of(metrics_app)
    response = client.get(TASKS, headers={"Accept": "text/csv"})
    assert response.text.startswith("id,")
    response.close()
    assert requests_between({}, parse_metrics(client.get("/metrics").text)) == {("GET", TASKS, "200"): 1}


def test_each_mounted_service_has_metrics_below_its_prefix(tmp_path: Path) -> None:
    app, keys = flask.Flask(__name__), {}
    app.add_url_rule("/metrics", "own", lambda: "the application's own")
    for name, enabled in (("one", "1"), ("two", "0"), ("three", "1")):
        settings = Settings.read(db=db_at(tmp_path / f"{name}.db"), metrics=enabled)
        app.register_blueprint(create_blueprint(settings, name), url_prefix=f"/{name}")
        with app.blueprints[name].service.database.transaction() as connection:
            key = findings_service.insert_key(connection, "x", "default", "read")
        keys[name] = {"Authorization": f"Bearer {key}"}
    client = app.test_client()
    assert client.get("/metrics").text == "the application's own"
    client.get("/one/api/v1/tasks", headers=keys["one"])
    responses = {name: client.get(f"/{name}/metrics", headers=headers) for name, headers in keys.items()}
    assert [response.status_code for response in responses.values()] == [200, 404, 200]
    assert requests_between({}, parse_metrics(responses["one"].text)) == {("GET", TASKS, "200"): 1}
    assert requests_between({}, parse_metrics(responses["three"].text)) == {}
    assert_problem(client.post("/one/metrics"), 405, "method_not_allowed")
    for name in keys:
        app.blueprints[name].service.database.close()


def test_missing_multiprocess_folder_is_reported_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"PROMETHEUS_MULTIPROC_DIR: .*nowhere is not a writable folder"):
        create_app(db=db_at(tmp_path / "x.db"), metrics="1")


# The operations page


FILE_METRICS = {"findings_wal_bytes", "findings_disk_free_bytes", "findings_last_backup_timestamp_seconds"}


def documented_files() -> dict[str, str]:
    """Return the Prometheus files of docs/operations.md by name."""
    texts = [text for _, language, text in blocks_of(HERE / "docs" / "operations.md") if language == "yaml"]
    return {text.split()[1].rpartition("/")[2]: text for text in texts}


def documented_rules() -> dict[str, dict[str, Any]]:
    """Return the alerting rules of docs/operations.md by name."""
    (group,) = yaml.safe_load(documented_files()["findings.rules.yml"])["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_operations_page_lists_every_metric(metrics_server: Server) -> None:
    families = [*text_string_to_metric_families(metrics_server.request("GET", "/metrics").data.decode())]
    exported = {}
    for family in families:
        name = family.name + {"counter": "_total"}.get(family.type, "")
        labels = sorted({label for sample in family.samples for label in sample.labels if label != "le"})
        exported[name] = (family.type, ", ".join(f"`{label}`" for label in labels), family.documentation)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table_rows("docs/operations.md")]
    table = {row[0].strip("`"): row[1:] for row in rows if row[0].startswith("`findings_")}
    if ON_POSTGRES:  # has no metrics of files
        table["findings_build_info"][1] = table["findings_build_info"][1].replace("sqlite", "postgresql")
        table = {name: row for name, row in table.items() if name not in FILE_METRICS}
    assert exported == {name: tuple(row) for name, row in table.items()}


def test_documented_alerts_use_exported_metrics(metrics_server: Server) -> None:
    exported = {key[0] for key in scrape(metrics_server)} | (FILE_METRICS if ON_POSTGRES else set())
    named = [{*re.findall(r"findings_\w+", rule["expr"])} for rule in documented_rules().values()]
    assert len(named) == 3
    assert all(named)
    assert set().union(*named) <= exported


ALERT_TESTS = """
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
    """Return an expected alert as promtool compares it."""
    labels = {"instance": instance} | ({"job": "findings"} if instance == "away" else {})
    summary = rule["annotations"]["summary"].replace("{{ $labels.instance }}", instance)
    return {"exp_labels": labels, "exp_annotations": {"summary": summary}}


def test_documented_prometheus_files_are_valid_and_alerts_fire(tmp_path: Path) -> None:
    expected = yaml.safe_load(ALERT_TESTS)
    for each in expected["tests"][0]["alert_rule_test"]:
        rule = documented_rules()[each["alertname"]]
        each["exp_alerts"] = [alert(rule, instance) for instance in each["exp_alerts"]]
    files = {name: text.replace("/etc/prometheus/", "") for name, text in documented_files().items()}
    files |= {"findings.key": "fts_x", "alerts.yml": yaml.safe_dump(expected)}
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    for line in ("check config prometheus.yml", "test rules alerts.yml"):
        promtool = [installed_program("promtool"), *line.split()]
        done = subprocess.run(promtool, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
