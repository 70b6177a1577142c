"""Nodes that die, freeze, restart or do not fit: running answers end within 3 s with an error that names the node, /health says what is missing, and service
resumes by itself. A coordinator that restarts gets its nodes back. Strangers on the ports change nothing."""
import json
import os
import signal
import socket
import threading
import time

import pytest

from harness import HEARTH, ROOT, Cluster, free_port, pack, run  # noqa: F401 (pack is a fixture)

QUESTION = "Tell me a story about a fox."


@pytest.fixture
def slow(tmp_path, pack):
    """Three nodes whose units take 10 ms longer: an answer takes some 10 seconds."""
    cluster = Cluster(tmp_path / "c", pack, 3, node_options=["--slow-unit-ms", 10])
    try:
        yield cluster.start()
    finally:
        cluster.stop()


class Asking(threading.Thread):
    """A question under way; result is (status, body, seconds after `mark`)."""

    def __init__(self, cluster, **more):
        super().__init__()
        self.cluster, self.more, self.result, self.ended = cluster, more, None, None
        self.start()

    def run(self):
        try:
            self.result = self.cluster.ask(QUESTION, **self.more)
        except OSError as e:
            self.result = (None, {"error": {"message": str(e)}})
        self.ended = time.time()


def wait_running(cluster):
    end = time.time() + 5
    while cluster.get("/v1/status")[1]["running"] == 0:
        assert time.time() < end
        time.sleep(0.02)
    time.sleep(0.5)


def answer(result):
    return result[1]["choices"][0]["message"]["content"]


@pytest.mark.parametrize("victim", ["n0", "n1", "n2"])
def test_a_killed_node_ends_answers_with_its_name_and_comes_back(slow, victim):
    asking = Asking(slow)
    wait_running(slow)
    killed = time.time()
    slow.kill(victim)
    asking.join(10)
    assert asking.ended - killed < 3.5
    assert asking.result[0] in (502, 503, 500) and victim in asking.result[1]["error"]["message"]
    status, health = slow.get("/health")
    assert status == 503 and victim in json.dumps(health)
    assert slow.ask("hi")[0] == 503
    slow.start_node(victim)
    slow.wait_ready(8)
    assert "Paris" in answer(slow.ask("What is the capital of France?"))


def test_a_frozen_node_is_noticed_and_taken_back_when_it_thaws(slow):
    asking = Asking(slow)
    wait_running(slow)
    frozen = time.time()
    slow.signal("n1", signal.SIGSTOP)
    asking.join(10)
    assert asking.ended - frozen < 3.5 and "n1" in asking.result[1]["error"]["message"]
    slow.signal("n1", signal.SIGCONT)
    slow.wait_ready(8)
    assert "Paris" in answer(slow.ask("What is the capital of France?"))


def test_a_short_freeze_ends_nothing(slow):
    want = answer(slow.ask("What is 3 plus 4?"))
    asking = Asking(slow, max_tokens=20)
    wait_running(slow)
    slow.signal("n1", signal.SIGSTOP)
    time.sleep(1.2)
    slow.signal("n1", signal.SIGCONT)
    asking.join(30)
    assert asking.result[0] == 200
    assert answer(slow.ask("What is 3 plus 4?")) == want


def test_a_stopped_node_says_goodbye(slow):
    asking = Asking(slow)
    wait_running(slow)
    stopped = time.time()
    slow.signal("n2", signal.SIGTERM)
    asking.join(10)
    assert asking.ended - stopped < 1.5 and "n2" in asking.result[1]["error"]["message"]
    assert slow.processes.pop("n2").wait(5) == 0
    slow.start_node("n2")
    slow.wait_ready(8)


def test_a_restarted_coordinator_gets_its_nodes_back(slow):
    slow.kill("coordinator")
    slow.start_coordinator()
    slow.wait_ready(10)
    assert "Paris" in answer(slow.ask("What is the capital of France?"))


def test_sigterm_lets_answers_end_and_exits_0(tmp_path, pack):
    cluster = Cluster(tmp_path / "c", pack, 2, node_options=["--slow-unit-ms", 5])
    try:
        cluster.start()
        asking = Asking(cluster, max_tokens=30)
        wait_running(cluster)
        cluster.signal("coordinator", signal.SIGTERM)
        asking.join(20)
        assert asking.result[0] == 200 and asking.result[1]["usage"]["completion_tokens"] == 30
        assert cluster.processes.pop("coordinator").wait(15) == 0
    finally:
        cluster.stop()


def test_a_hang_up_in_a_prompt_frees_the_nodes_within_a_second_and_others_go_on(slow):
    """300 rows of prompt take some 5 s here; one second after the asker has gone no row of it moves any more."""
    other = Asking(slow, max_tokens=25)
    wait_running(slow)
    body = json.dumps({"messages": [{"role": "user", "content": "word " * 900}], "temperature": 0}).encode()
    with socket.create_connection(("127.0.0.1", slow.http)) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        end = time.time() + 5
        while slow.get("/v1/status")[1]["running"] < 2:
            assert time.time() < end
            time.sleep(0.02)
        time.sleep(0.3)
    time.sleep(1)
    assert slow.get("/v1/status")[1]["cancelled"] == 1
    other.join(30)
    assert other.result[0] == 200 and other.result[1]["usage"]["completion_tokens"] == 25
    time.sleep(1.2)  # two heartbeats: the counters have arrived
    before = [n["rows"] for n in slow.get("/v1/status")[1]["nodes"]]
    time.sleep(1.2)
    assert [n["rows"] for n in slow.get("/v1/status")[1]["nodes"]] == before and max(before) < 900


def test_several_at_once_get_the_texts_they_get_alone(tmp_path, pack):
    cluster = Cluster(tmp_path / "c", pack, 3)
    questions = ["What is the capital of France?", "What is 3 plus 4?", QUESTION, "What is your name?", "Hi there"]
    try:
        cluster.start()
        alone = [answer(cluster.ask(q)) for q in questions]
        together = [None] * len(questions)

        def ask(i):
            together[i] = answer(cluster.ask(questions[i]))
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(questions))]
        [t.start() for t in threads], [t.join(60) for t in threads]
        assert together == alone
    finally:
        cluster.stop()


def test_a_node_with_another_model_is_told_why(tmp_path, pack):
    run(HEARTH, "convert", ROOT / "models/kindling", tmp_path / "int8", "--precision", "int8")
    cluster = Cluster(tmp_path / "c", pack, 2)
    try:
        cluster.start_coordinator()
        cluster.start_node("n0")
        cluster.start_node("n1", model=tmp_path / "int8")
        end = time.time() + 8
        while "refuses this node" not in cluster.log("n1"):
            assert time.time() < end, cluster.log("n1")
            time.sleep(0.1)
        assert "hearth inspect" in cluster.log("n1")
        assert "n1" in cluster.get("/v1/status")[1]["last_refusal"] and cluster.get("/health")[0] == 503
        cluster.kill("n1")
        cluster.start_node("n1")
        cluster.wait_ready(8)
    finally:
        cluster.stop()


def test_a_node_with_an_unknown_key_never_joins_and_harms_nothing(tmp_path, pack):
    cluster = Cluster(tmp_path / "c", pack, 2)
    try:
        cluster.start()
        run(HEARTH, "keys", "new", tmp_path / "c/stranger.key")
        cluster.names.append("stranger")
        cluster.ports["stranger"] = free_port()
        cluster.start_node("stranger")
        time.sleep(2)
        status = cluster.get("/v1/status")[1]
        assert sorted(n["name"] for n in status["nodes"]) == ["n0", "n1"] and status["ready"]
        assert "Paris" in answer(cluster.ask("What is the capital of France?"))
    finally:
        cluster.stop()


def test_a_range_that_a_node_may_not_own_is_refused_by_name(tmp_path, pack):
    cluster = Cluster(tmp_path / "c", pack, 2, layers="n0:0-2,n1:2-10")
    try:
        cluster.start_coordinator()
        cluster.start_node("n0")
        cluster.start_node("n1", "--layers", "6-10")
        cluster.wait_in_status("owns layers 6-10 only")
    finally:
        cluster.stop()


def test_garbage_on_every_port_changes_nothing(tmp_path, pack):
    cluster = Cluster(tmp_path / "c", pack, 2)
    try:
        cluster.start()
        want = answer(cluster.ask(QUESTION))
        memory = lambda name: int(open(f"/proc/{cluster.processes[name].pid}/statm").read().split()[1]) * 4096
        before = {n: memory(n) for n in cluster.processes}
        for port in [cluster.control, cluster.rows] + [cluster.ports[n] for n in ("n0", "n1")]:
            for i in range(150):
                with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
                    try:
                        s.sendall(os.urandom(200) if i % 3 else b"\xff" + b"\0" * 8 + b"\x7f\x03\0" + b"\0" * 52 + b"\x02" + b"\xff" * 8)
                    except OSError:
                        pass
        assert answer(cluster.ask(QUESTION)) == want
        for n in cluster.processes:
            assert memory(n) - before[n] < 32 << 20
    finally:
        cluster.stop()
