"""GET /metrics of running nodes: the text obeys Prometheus' rules, its counters rise with an answer and its gauges tell the map and the memory; a taken default port costs
only the metrics, a taken port that was asked for is an error."""
import re
import socket
import time
import urllib.error
import urllib.request

import pytest

from harness import NODE, Cluster, pack, run  # noqa: F401 (pack is a fixture)

SAMPLE = re.compile(r'([a-z_][a-z0-9_]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')


def parse(text):
    """{(name, labels): value}; every name in one group of HELP, TYPE and samples, no sample twice."""
    samples, groups, at = {}, {}, None
    assert text.endswith("\n")
    for line in text.splitlines():
        words = line.split(" ", 3)
        if line.startswith("# HELP "):
            assert words[2] not in groups and words[3], line
            at = words[2]
            groups[at] = None
        elif line.startswith("# TYPE "):
            assert words[2] == at and groups[at] is None and words[3] in ("counter", "gauge"), line
            groups[at] = words[3]
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert name == at and groups[at] and name.startswith("hearth_") and (groups[at] == "counter") == name.endswith("_total"), line
            key = name if labels is None else (name, labels)
            assert key not in samples
            samples[key] = float(value)
    return samples


def get(cluster, name, path="/metrics", method="GET"):
    request = urllib.request.Request(f"http://127.0.0.1:{cluster.metrics_ports[name]}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as r:
            assert r.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, pack):
    c = Cluster(tmp_path_factory.mktemp("metrics"), pack, 2, layers="n0:0-6,n1:6-10")
    try:
        yield c.start()
    finally:
        c.stop()


def test_counters_rise_with_an_answer(cluster):
    before = {n: parse(get(cluster, n)[1]) for n in cluster.names}
    status, body = cluster.ask("What is the capital of France?")
    assert status == 200
    for name in cluster.names:
        after = parse(get(cluster, name)[1])
        assert set(before[name]) <= set(after)
        for key in ("rows", "units", "busy_seconds", "queue_seconds"):
            assert after[f"hearth_node_{key}_total"] > before[name][f"hearth_node_{key}_total"]
        assert after["hearth_node_rows_total"] - before[name]["hearth_node_rows_total"] >= body["usage"]["prompt_tokens"]
        assert after["hearth_node_units_total"] >= 4 * body["usage"]["completion_tokens"]  # a unit is one layer


def test_gauges_tell_the_map_and_the_memory(cluster):
    for name, begin, end in (("n0", 0, 6), ("n1", 6, 10)):
        now = parse(get(cluster, name)[1])
        assert (now["hearth_node_layer_begin"], now["hearth_node_layer_end"], now["hearth_node_epoch"]) == (begin, end, 1)
        assert [k[1] for k, v in now.items() if k[0] == "hearth_node_state" and v] == ['state="ready"']
        accounts = {k[1]: v for k, v in now.items() if k[0] == "hearth_node_memory_bytes"}
        assert 'account="weights"' in accounts and 0 < sum(accounts.values()) <= now["hearth_node_memory_limit_bytes"]
        assert any(k[0] == "hearth_node_info" and f'name="{name}"' in k[1] for k in now)


def test_nothing_else_is_served(cluster):
    assert [get(cluster, "n0", path)[0] for path in ("/", "/metrics/x", "/health", "/v1/status")] == [404] * 4
    assert [get(cluster, "n0", method=m)[0] for m in ("POST", "PUT", "DELETE")] == [405] * 3
    assert get(cluster, "n0", method="HEAD") == (200, "")


def test_silent_connections_do_not_keep_others_out_for_long(cluster):
    idle = [socket.create_connection(("127.0.0.1", cluster.metrics_ports["n0"])) for _ in range(12)]
    try:
        end = time.time() + 30
        while True:
            try:
                assert get(cluster, "n0")[0] == 200
                break
            except (TimeoutError, urllib.error.URLError):
                assert time.time() < end
    finally:
        for s in idle:
            s.close()


def test_a_node_without_its_coordinator_shows_that_it_waits(tmp_path, pack):
    cluster = Cluster(tmp_path / "c", pack, 1, plaintext=True)
    try:
        cluster.start_coordinator()
        cluster.start_node("n0")
        cluster.wait_ready()
        cluster.kill("coordinator")
        end, now = time.time() + 10, {}
        while now.get("hearth_node_epoch") != 0:
            assert time.time() < end
            now = parse(get(cluster, "n0")[1])
            time.sleep(0.1)
        assert "hearth_node_layer_begin" not in now
    finally:
        cluster.stop()


def node_command(pack, *more):
    return [NODE, "--model", pack, "--name", "n", "--coordinator", "tcp://127.0.0.1:1", "--bind", "tcp://127.0.0.1:*", "--plaintext", *more]


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(pack):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(*node_command(pack, "--metrics", address), ok=False, timeout=20)
        assert done.returncode == 1 and address in done.stderr and "in use" in done.stderr
    done = run(*node_command(pack, "--metrics", "desk.example:7603"), ok=False, timeout=20)
    assert done.returncode == 1 and "not an address" in done.stderr


def test_the_default_port_taken_costs_only_the_metrics(tmp_path, pack):
    """This test has the port, or another program of this machine; no node gets it, and all work."""
    cluster = Cluster(tmp_path / "c", pack, 2, plaintext=True)
    try:
        taken = socket.create_server(("127.0.0.1", 7603))
    except OSError:
        taken = None
    try:
        cluster.start_coordinator()
        for name in cluster.names:
            cluster.start_node(name, default_metrics=True)
        cluster.wait_ready()
        assert cluster.ask("What is 3 plus 4?")[0] == 200
        for name in cluster.names:
            assert "cannot listen on 127.0.0.1:7603" in cluster.log(name) and "--metrics off" in cluster.log(name)
    finally:
        cluster.stop()
        if taken:
            taken.close()
