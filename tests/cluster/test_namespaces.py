"""Four hosts: a coordinator and three nodes, each in a network namespace of its own behind a bridge. Nothing assumes loopback; cables are pulled and links are slow."""
import json
import os
import shutil
import subprocess
import time

import pytest

from harness import Cluster, pack  # noqa: F401 (pack is a fixture)
from test_faults import QUESTION, Asking, answer, wait_running
from test_same_bytes import kindling_tokens, one_process

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
NET = f"10.77.{os.getpid() % 200 + 10}"
BRIDGE = f"hb{os.getpid() % 100000}"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def namespace(name):
    return f"{BRIDGE}-{name}"


@pytest.fixture(scope="module")
def hosts():
    names, made = ["coordinator", "n0", "n1", "n2"], {}
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{NET}.254/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for i, name in enumerate(names):
            ns, veth = namespace(name), f"{BRIDGE}v{i}"
            ip("netns", "add", ns)
            ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", ns)
            ip("link", "set", veth, "master", BRIDGE, "up")
            ip("-n", ns, "addr", "add", f"{NET}.{i + 1}/24", "dev", "eth0")
            ip("-n", ns, "link", "set", "eth0", "up")
            ip("-n", ns, "link", "set", "lo", "up")
            made[name] = (["ip", "netns", "exec", ns], f"{NET}.{i + 1}")
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", namespace(name)], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


@pytest.fixture
def cluster(hosts, pack, tmp_path, request):
    options = getattr(request, "param", [])
    c = Cluster(tmp_path / "c", pack, 3, hosts=hosts, allow_logits=True, node_options=options)
    try:
        yield c.start()
    finally:
        c.stop()


def test_the_same_bytes_across_four_hosts(cluster, pack, tmp_path):
    tokens = kindling_tokens(2)
    assert cluster.logits(tokens, tmp_path / "cluster.safetensors") == one_process(pack, tokens, tmp_path)
    assert "Paris" in answer(cluster.ask("What is the capital of France?"))


def test_the_same_bytes_over_a_slow_link(cluster, pack, tmp_path):
    tokens = kindling_tokens(1)
    want = one_process(pack, tokens, tmp_path)
    shape = ["tc", "-n", namespace("n1"), "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "2mbit", "burst", "8kb", "latency", "300ms"]
    subprocess.run(shape, check=True, capture_output=True)
    try:
        began = time.time()
        assert cluster.logits(tokens, tmp_path / "cluster.safetensors") == want
        assert time.time() - began > 0.5  # some 150 KB of rows through 2 Mbit/s
    finally:
        subprocess.run(["tc", "-n", namespace("n1"), "qdisc", "del", "dev", "eth0", "root"], check=True)


@pytest.mark.parametrize("cluster", [["--slow-unit-ms", 10]], indirect=True)
@pytest.mark.parametrize("victim", ["n0", "n1", "n2"])
def test_a_pulled_cable_ends_answers_within_3_s_and_heals(cluster, victim):
    asking = Asking(cluster)
    wait_running(cluster)
    pulled = time.time()
    ip("-n", namespace(victim), "link", "set", "eth0", "down")
    try:
        asking.join(10)
        assert asking.ended - pulled < 3.5 and victim in asking.result[1]["error"]["message"]
        status, health = cluster.get("/health")
        assert status == 503 and victim in json.dumps(health)
    finally:
        ip("-n", namespace(victim), "link", "set", "eth0", "up")
    cluster.wait_ready(25)
    assert "Paris" in answer(cluster.ask("What is the capital of France?"))


@pytest.mark.parametrize("cluster", [["--slow-unit-ms", 10]], indirect=True)
def test_a_killed_node_on_another_host_is_named_and_comes_back(cluster):
    asking = Asking(cluster)
    wait_running(cluster)
    killed = time.time()
    cluster.kill("n1")
    asking.join(10)
    assert asking.ended - killed < 3.5 and "n1" in asking.result[1]["error"]["message"]
    cluster.start_node("n1")
    cluster.wait_ready(20)
    assert answer(cluster.ask(QUESTION, max_tokens=5)) is not None
