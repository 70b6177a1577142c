"""`hearth chat URL`, `hearth status URL` and `hearth logits --cluster URL` against the API, and against servers that are none."""
import json
import socket
import subprocess
import threading
import time

import numpy as np
import pytest

from conftest import HEARTH
from hearth_command import read_safetensors


def hearth(*arguments, stdin="", ok=True):
    done = subprocess.run([HEARTH, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=60)
    assert not ok or done.returncode == 0, done.stderr
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_chat_talks_with_a_cluster(server, suffix):
    done = hearth("chat", server.url + suffix, "--temperature", 0, stdin="My name is Pablo.\nWhat is my name?\n")
    assert "Pablo" in done.stdout.splitlines()[-1] and "prompt tokens" in done.stderr


def test_chat_says_the_same_as_in_one_process(server, pack):
    questions = "What is the capital of France?\nWhat is 3 plus 4?\n"
    for options in (["--temperature", 0], ["--temperature", 1.2, "--seed", 5, "--no-think"], ["--temperature", 0, "--effort", "high", "--system", "Be kind."]):
        assert hearth("chat", server.url, *options, stdin=questions).stdout == hearth("chat", pack, *options, stdin=questions).stdout


def test_chat_reports_what_the_server_says(start):
    done = hearth("chat", start("--fail-after", 4).url, stdin="Hi\n", ok=False)
    assert done.returncode == 1 and "lost" in done.stderr
    done = hearth("chat", start("--key", "k").url, stdin="Hi\n", ok=False)
    assert done.returncode == 1 and "API key" in done.stderr


def test_keys_come_from_a_file(start, tmp_path):
    server = start("--key", "top secret")
    key = tmp_path / "key"
    key.write_text("top secret\n")
    assert "ready" in hearth("status", server.url, "--api-key-file", key).stdout
    assert hearth("chat", server.url, "--api-key-file", key, "--temperature", 0, stdin="Hi there\n").stdout.strip()
    key.write_text("wrong\n")
    assert "API key" in hearth("status", server.url, "--api-key-file", key, ok=False).stderr
    key.write_text("\n")
    assert "first line" in hearth("status", server.url, "--api-key-file", key, ok=False).stderr


def test_status_shows_nodes_and_what_is_missing(start):
    import signal
    server = start()
    text = hearth("status", server.url).stdout
    assert "kindling" in text and "ready" in text and "local" in text and "0-10" in text and "READY" in text
    words = next(line for line in text.splitlines() if "local" in line).split()
    assert words[-4:] == ["97.5", "12.3", "1.5", "63/64"], text  # experts: hits %, GB read, wait % of the busy time, held of those that fit
    assert json.loads(hearth("status", server.url, "--json").stdout)["nodes"][0]["name"] == "local"
    server.process.send_signal(signal.SIGUSR1)
    server.wait_for(lambda c: not c["ready"])
    assert "not ready: layers 0-10" in hearth("status", server.url).stdout


def test_logits_through_the_api_have_the_same_bits(start, pack, tmp_path):
    server = start("--logits")
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps([[3602, 3604, 3606, 392, 393, 25], [5], list(range(100, 170))]))
    for drafts in ([], ["--drafts"]):
        hearth("logits", "--model", pack, "--tokens", tokens, "--out", tmp_path / "one", *drafts)
        hearth("logits", "--cluster", server.url, "--tokens", tokens, "--out", tmp_path / "two", *drafts)
        one, two = read_safetensors(tmp_path / "one"), read_safetensors(tmp_path / "two")
        assert one.keys() == two.keys() and all(np.array_equal(one[k].view(np.uint32), two[k].view(np.uint32)) for k in one) and len(one) == (5 if drafts else 3)


def test_logits_are_served_only_where_they_are_allowed(server, tmp_path):
    tokens = tmp_path / "tokens.json"
    tokens.write_text("[[1, 2]]")
    done = hearth("logits", "--cluster", server.url, "--tokens", tokens, "--out", tmp_path / "out", ok=False)
    assert done.returncode == 1 and "404" in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("body, param", [({}, "tokens"), ({"tokens": []}, "tokens"), ({"tokens": [-1]}, "tokens"), ({"tokens": [3712]}, "tokens"),
                                         ({"tokens": ["a"]}, "tokens"), ({"tokens": [1] * 8193}, "tokens"), ({"tokens": [1], "drafts": 1}, "drafts")])
def test_wrong_logits_requests_are_named(start, body, param):
    reply = start("--logits").request("POST", "/v1/logits", body)
    assert reply.status == 400 and reply.error["param"] == param


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "http://", "http://:80", "http://a b", "http://h:port", "http://h:80/x", "ftp://h", "http://u@h:1", "http://[::1"])
def test_a_url_that_is_none_is_refused(url):
    done = hearth("status", url, ok=False)
    assert done.returncode == 1 and url in done.stderr


def test_nobody_there_is_said():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        done = hearth("status", f"http://127.0.0.1:{s.getsockname()[1]}", ok=False)
    assert done.returncode == 1 and "cannot connect" in done.stderr


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ODD = {  # what a server may answer instead; every one is an error with a sentence, in bounded time
    "nothing": b"", "no_http": b"SSH-2.0-x\r\n", "cut_head": b"HTTP/1.1 200 OK\r\nContent-Le", "cut_body": HEAD + b"Content-Length: 10\r\n\r\n{}",
    "no_json": HEAD + b"Content-Length: 2\r\n\r\nxx", "bad_chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "empty": HEAD + b"Content-Length: 0\r\n\r\n",
    "cut_chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}", "endless_line": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200000, "huge_chunk":
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "500": b"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nabc", "many_lines":
    b"HTTP/1.1 200 OK\r\n" + b"X: yyyyyyyyyyyyyyyyyyyyyyy\r\n" * 10000, "negative": HEAD + b"Content-Length: -1\r\n\r\n{}",
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("command", ["status", "chat"])
def test_odd_servers_get_a_sentence(name, command):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def answer():
            s, _ = listener.accept()
            with s:
                s.recv(1 << 16)
                try:
                    s.sendall(ODD[name])
                    s.shutdown(socket.SHUT_WR)
                    while s.recv(1 << 16):
                        pass
                except OSError:
                    pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        begun = time.monotonic()
        done = hearth(command, f"http://127.0.0.1:{listener.getsockname()[1]}", stdin="Hi\n", ok=False)
        assert done.returncode == 1 and len(done.stderr) > 20 and time.monotonic() - begun < 10
        thread.join(5)


def test_chunks_and_plain_ends_are_read():
    status = json.dumps({"ready": True, "model": "m", "nodes": []}).encode()
    forms = [HEAD + b"Content-Length: %d\r\n\r\n" % len(status) + status, HEAD + b"\r\n" + status,
             HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1;x=y\r\n%c\r\n" % c for c in status) + b"0\r\n\r\n",
             b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(status) + status]
    for form in forms:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def answer():
                s, _ = listener.accept()
                with s:
                    s.recv(1 << 16)
                    for i in range(0, len(form), 7):
                        s.sendall(form[i:i + 7])

            threading.Thread(target=answer, daemon=True).start()
            assert "m at 127.0.0.1" in hearth("status", f"http://127.0.0.1:{listener.getsockname()[1]}").stdout
