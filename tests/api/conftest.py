"""Starts tests/api/api_server (the API over a one-process engine with faults on demand) and talks to it. HEARTH_API_SERVER names another build of it."""
import json
import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
API_SERVER = os.environ.get("HEARTH_API_SERVER", str(ROOT / "build/release/tests/api/api_server"))
HEARTH = os.environ.get("HEARTH", str(ROOT / "build/release/cli/hearth"))
WAIT_S = 30
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Current weather in a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "add_numbers", "description": "Add two integers.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "set_light", "description": "Switch a lamp.", "parameters": {
        "type": "object", "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}}, "required": ["room", "on"]}}},
    {"type": "function", "function": {"name": "get_time", "description": "The current time.", "parameters": {"type": "object", "properties": {}}}},
]
ASK = [{"role": "user", "content": "What is the capital of France?"}]


class Reply:
    def __init__(self, data):
        self.raw = data
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0] else 0
        self.headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        self.body = dechunk(body) if self.headers.get("transfer-encoding") == "chunked" else body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


def dechunk(body):
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        n = int(size, 16)
        if not n:
            break
        out, body = out + body[:n], body[n + 2:]
    return out


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([API_SERVER, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("port "), self.process.stderr.read()
        self.port = int(line.split()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def client(self, key="none", **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=WAIT_S, **options)

    def connect(self, receive_bytes=None):
        s = socket.socket()
        if receive_bytes:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        s.settimeout(WAIT_S)
        s.connect(("127.0.0.1", self.port))
        return s

    def raw(self, data, piece=None):
        """Sends bytes, reads until the server closes (the request must make it do so) and gives what came."""
        with self.connect() as s:
            try:
                for at in range(0, len(data), piece or max(len(data), 1)):
                    s.sendall(data[at:at + (piece or len(data))])
            except (BrokenPipeError, ConnectionResetError):
                pass
            return read_all(s)

    def request(self, method, path, body=None, headers=None, **kw):
        fields = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"}
        if body is not None:
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        fields |= headers or {}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items() if v is not None) + "\r\n"
        return Reply(self.raw(head.encode() + (body or b""), **kw))

    def chat(self, headers=None, **fields):
        return self.request("POST", "/v1/chat/completions", {"messages": ASK, "temperature": 0} | fields, headers)

    def open_chat(self, s, **fields):
        body = json.dumps({"messages": ASK, "temperature": 0} | fields).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def counts(self, headers=None):
        return self.request("GET", "/v1/status", headers=headers).json

    def wait_for(self, check, limit_s=WAIT_S):
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            counts = self.counts()
            if check(counts):
                return counts
            time.sleep(0.02)
        raise AssertionError(f"not within {limit_s} s: {counts}")

    def rss_kib(self):
        return int(next(line for line in open(f"/proc/{self.process.pid}/status") if line.startswith("VmRSS")).split()[1])

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "killed: it did not end"
        errors = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        assert code == 0 and "Sanitizer" not in errors and "runtime error" not in errors, (code, errors)
        return errors


def read_all(s):
    data = b""
    try:
        while piece := s.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        pass
    return data


def read_until(s, what, data=b""):
    while what not in data:
        piece = s.recv(1 << 16)
        assert piece, data
        data += piece
    return data


def is_closed(s, limit_s):
    """1 when the server closes the connection within limit_s."""
    return bool(select.select([s], [], [], limit_s)[0]) and s.recv(1) == b""


def events(body):
    """The data of an event stream, comments and all: a list of objects, strings for what is not JSON."""
    out = []
    for block in body.decode().split("\n\n"):
        if block.startswith("data: "):
            out.append(block[6:] if block[6:] == "[DONE]" else json.loads(block[6:]))
        elif block:
            out.append(block)
    return out


@pytest.fixture(scope="session")
def pack(tmp_path_factory):
    """The exact pack: its answers are the stored ones."""
    out = tmp_path_factory.mktemp("api") / "exact"
    subprocess.run([HEARTH, "convert", str(ROOT / "models/kindling"), str(out), "--precision", "exact"], check=True, capture_output=True, timeout=300)
    return out


@pytest.fixture
def start(pack):
    """start(options...) gives a server that is stopped, and must have lived and ended well, at the end of the test."""
    servers = []

    def begin(*arguments):
        servers.append(Server("--model", pack, *arguments))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def server(pack):
    """One for all tests that leave no trace in it."""
    server = Server("--model", pack)
    yield server
    server.stop()
