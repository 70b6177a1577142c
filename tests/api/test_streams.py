"""What happens while an answer is under way: silence, hang-ups, slow readers, failures, the end of the server."""
import json
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from conftest import API_SERVER, ASK, HEARTH, events, is_closed, read_all, read_until

ENDLESS = {"logit_bias": {"40": 100}, "max_tokens": 4000, "stream": True}  # "IIII..."


def hang_up(s, how):
    if how == "rst":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        s.shutdown(socket.SHUT_WR)
    else:
        s.close()


def test_a_stream_is_data_and_nothing_else(server):
    reply = server.chat(stream=True)
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/event-stream")
    blocks = events(reply.body)
    assert blocks[-1] == "[DONE]" and all(isinstance(b, dict) and "usage" not in b and len(b["choices"]) == 1 for b in blocks[:-1])
    assert blocks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    with_usage = events(server.chat(stream=True, stream_options={"include_usage": True}).body)
    assert all(b["usage"] is None for b in with_usage[:-2]) and with_usage[-2]["choices"] == [] and with_usage[-2]["usage"]["total_tokens"] == 39


def test_tokens_come_as_they_are_made(start):
    server = start("--step-ms", 50)
    with server.connect() as s:
        server.open_chat(s, **ENDLESS)
        data, times = read_until(s, b'"role"'), []
        for _ in range(10):
            data = read_until(s, b"\n\n")
            times.append(time.monotonic())
        assert max(b - a for a, b in zip(times, times[1:])) < 0.3


def test_silence_is_filled_with_comments(start):
    server = start("--keep-alive-ms", 200, "--step-ms", 900)
    with server.connect() as s:
        server.open_chat(s, stream=True, max_tokens=2)
        blocks = events(read_until(s, b"[DONE]").partition(b"\r\n\r\n")[2])
    data = b""
    assert sum(": keep-alive" in str(b) for b in blocks) >= 3
    client = server.client()
    chunks = list(client.chat.completions.create(model="kindling", messages=ASK, max_tokens=2, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length" and not data


def test_no_head_before_admission(start):
    server = start("--never-admits")
    with server.connect() as s:
        server.open_chat(s, stream=True)
        server.wait_for(lambda c: c["queued"] == 1)
        s.settimeout(0.5)
        with pytest.raises(TimeoutError):
            s.recv(1)
    server.wait_for(lambda c: c["queued"] == 0 and c["cancelled"] == 1, 1)


@pytest.mark.parametrize("how", ["fin", "rst", "half"])
@pytest.mark.parametrize("when", ["queued", "prefill", "decode", "whole"])
def test_a_hang_up_ends_the_work_at_once(start, how, when):
    """With a slow engine: the request is cancelled within a second, and somebody else's answer is what it would have been."""
    server = start("--step-ms", 60, *(["--never-admits"] if when == "queued" else []), "--chunk", 4)
    other = {}
    alone = None if when == "queued" else server.chat(max_tokens=12).json
    if when != "queued":
        thread = threading.Thread(target=lambda: other.update(server.chat(max_tokens=12).json))
        thread.start()
        server.wait_for(lambda c: c["running"] == 1)
    s = server.connect()
    messages = [{"role": "user", "content": "word " * 600}] if when == "prefill" else ASK
    server.open_chat(s, **ENDLESS | {"messages": messages, "stream": when != "whole"})
    if when == "queued":
        server.wait_for(lambda c: c["queued"] == 1)
    else:
        server.wait_for(lambda c: c["running"] == 2)
    if when == "decode":
        read_until(s, b"reasoning_content")
    hang_up(s, how)
    begun = time.monotonic()
    server.wait_for(lambda c: c["cancelled"] == 1, 1)
    assert time.monotonic() - begun < 1
    if how == "half":
        s.close()
    if when != "queued":
        thread.join()
        assert other["choices"] == alone["choices"] and other["usage"] == alone["usage"]


def test_a_slow_reader_costs_bounded_memory(start):
    server = start("--stream-bytes", 65536, "--socket-bytes", 16384)
    fine = server.chat(max_tokens=10).json["choices"]
    before = server.rss_kib()
    stuck = []
    for _ in range(4):
        stuck.append(server.connect(receive_bytes=4096))
        server.open_chat(stuck[-1], **ENDLESS)
    server.wait_for(lambda c: c["cancelled"] == 4, 60)
    assert "__asan" in open(API_SERVER, "rb").read().decode("latin-1") or server.rss_kib() - before < 8192  # ASan keeps what is freed
    assert server.chat(max_tokens=10).json["choices"] == fine
    for s in stuck:
        assert b"[DONE]" not in read_all(s)
        s.close()
    server.wait_for(lambda c: c["running"] == 0)


def test_a_reader_that_catches_up_gets_everything(start):
    server = start("--stream-bytes", 4 << 20, "--socket-bytes", 16384)
    with server.connect(receive_bytes=4096) as s:
        server.open_chat(s, **ENDLESS | {"max_tokens": 600})
        server.wait_for(lambda c: c["done"] == 1)
        data = read_until(s, b"[DONE]")
    assert data.count(b'"reasoning_content":"I"') == 600


def test_aborts_at_random_leave_nothing_behind(start):
    import random
    rng = random.Random(5)
    server = start("--sequences", 8, "--queue", 64)
    want = server.chat().json["choices"]
    n_fds = server.n_fds()
    for _ in range(200):
        s = server.connect()
        server.open_chat(s, **ENDLESS | {"stream": rng.random() < 0.7})
        if rng.random() < 0.5:
            s.settimeout(rng.random() * 0.02 + 0.001)
            try:
                s.recv(rng.randrange(1, 5000))
            except TimeoutError:
                pass
        hang_up(s, rng.choice(["fin", "rst"]))
    server.wait_for(lambda c: c["running"] == 0 and c["queued"] == 0)
    assert server.n_fds() <= n_fds + 2 and server.chat().json["choices"] == want


def test_a_failure_after_the_head_is_one_error_and_done(start):
    blocks = events(start("--fail-after", 5).chat(stream=True).body)
    assert blocks[-1] == "[DONE]" and set(blocks[-2]) == {"error"} and "lost" in blocks[-2]["error"]["message"]
    assert sum("error" in b for b in blocks[:-1]) == 1 and len(blocks) == 1 + 4 + 2


def test_a_failure_before_the_head_is_an_error_reply(start):
    reply = start("--fail-after", 1).chat()
    assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1 and reply.error["type"] == "server_error"


def test_layers_that_go_away_end_running_answers(start):
    server = start("--step-ms", 50)
    with server.connect() as s:
        server.open_chat(s, **ENDLESS)
        read_until(s, b"reasoning_content")
        server.process.send_signal(signal.SIGUSR1)
        data = read_until(s, b"[DONE]")
        assert b'"error"' in data and b"layers" in data


def test_the_same_request_twice_runs_twice(start):
    server = start("--step-ms", 30)
    with server.connect() as a, server.connect() as b:
        for s in (a, b):
            server.open_chat(s, stream=True, max_tokens=5)
        server.wait_for(lambda c: c["running"] == 2)
        one, two = (json.loads(read_until(s, b"[DONE]").split(b"data: ")[1].split(b"\n")[0])["id"] for s in (a, b))
        assert one != two


def test_sigterm_lets_answers_end(start):
    server = start("--step-ms", 30, "--drain-ms", 20000)
    with server.connect() as s, server.connect() as idle:
        server.open_chat(s, stream=True)
        read_until(s, b"reasoning_content")
        server.process.send_signal(signal.SIGTERM)
        data = read_until(s, b"[DONE]")
        assert b'"finish_reason":"stop"' in data and b"error" not in data
        assert server.process.wait(5) == 0
        assert is_closed(idle, 2)


def test_sigterm_ends_what_takes_too_long(start):
    server = start("--step-ms", 50, "--drain-ms", 500)
    with server.connect() as s, server.connect() as second:
        server.open_chat(s, **ENDLESS)
        server.open_chat(second, max_tokens=4000, logit_bias={"40": 100})
        read_until(s, b"reasoning_content")
        server.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        data = read_until(s, b"[DONE]")
        assert b"shutting down" in data and time.monotonic() - begun < 3
        assert b"503" in read_all(second).split(b"\r\n")[0]
        assert server.process.wait(5) == 0


def test_new_work_is_refused_while_draining(start):
    server = start("--step-ms", 50, "--drain-ms", 20000)
    with server.connect() as s, server.connect() as waiting:
        waiting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_until(waiting, b"}")
        server.open_chat(s, stream=True, max_tokens=20)
        read_until(s, b"reasoning_content")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        server.open_chat(waiting)
        head = read_until(waiting, b"}}")
        assert b" 503 " in head.split(b"\r\n")[0] and b"shutting_down" in head and b"Retry-After" in head
        read_until(s, b"[DONE]")
