"""A cluster of real processes on this machine: hearth-coordinator and hearth-node with keys, on loopback or each in a network namespace of its own."""
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HEARTH_BUILD", ROOT / "build/release"))
HEARTH, NODE, COORDINATOR = BUILD / "cli/hearth", BUILD / "node/hearth-node", BUILD / "coordinator/hearth-coordinator"


LOW, HIGH = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
PORTS = [port for port in range(10000, 65000) if not LOW <= port <= HIGH]
random.shuffle(PORTS)


def free_port():
    """Never one that the kernel may give to a connection that goes out before the server is up (or while it restarts), and none twice."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", PORTS.pop()))
            return s.getsockname()[1]


def run(*command, ok=True, timeout=120):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout)
    assert not ok or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """The int4 pack of kindling, for those who import it."""
    folder = tmp_path_factory.mktemp("models")
    run(HEARTH, "convert", ROOT / "models/kindling", folder / "int4", "--precision", "int4")
    return folder / "int4"


class Cluster:
    """nodes: number of nodes, or list of names. Options given by keyword go to the coordinator ("allow_logits": True, "layers": "..."), node_options to every node."""

    def __init__(self, folder, model, nodes=3, plaintext=False, node_options=(), hosts=None, **options):
        self.folder, self.model, self.plaintext = Path(folder), Path(model), plaintext
        self.names = [f"n{i}" for i in range(nodes)] if isinstance(nodes, int) else list(nodes)
        self.hosts = hosts  # None: loopback; else {name: (prefix command, address)} with "coordinator" among the names
        self.node_options, self.options = list(node_options), options
        self.http, self.control, self.rows = free_port(), free_port(), free_port()
        self.ports, self.metrics_ports = {n: free_port() for n in self.names}, {n: free_port() for n in self.names}
        self.processes = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        if not plaintext:
            self.make_keys()

    def make_keys(self):
        self.public = {}
        for name in ["coordinator"] + self.names:
            run(HEARTH, "keys", "new", self.key(name))
            self.public[name] = run(HEARTH, "keys", "show", self.key(name)).stdout.split()[0]
        for name in self.names:
            run(HEARTH, "keys", "trust", self.folder / "trusted", self.public[name], name)

    def key(self, name):
        return self.folder / f"{name}.key"

    def address(self, name):
        return "127.0.0.1" if self.hosts is None else self.hosts[name][1]

    def prefix(self, name):
        return [] if self.hosts is None else self.hosts[name][0]

    @property
    def url(self):
        return f"http://{self.address('coordinator')}:{self.http}"

    def start_process(self, name, command):
        with open(self.folder / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(self.prefix(name) + [str(c) for c in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def start_coordinator(self):
        a = self.address("coordinator")
        command = [COORDINATOR, "--model", self.model, "--nodes", len(self.names), "--listen", f"{a}:{self.http}", "--control", f"tcp://{a}:{self.control}",
                   "--rows", f"tcp://{a}:{self.rows}", "--hosts", a]
        command += ["--plaintext"] if self.plaintext else ["--key", self.key("coordinator"), "--trust", self.folder / "trusted"]
        for k, v in self.options.items():
            command += [f"--{k.replace('_', '-')}"] + ([] if v is True else [v])
        self.start_process("coordinator", command)

    def start_node(self, name, *more, model=None, default_metrics=False):
        command = [NODE, "--model", model or self.model, "--name", name, "--coordinator", f"tcp://{self.address('coordinator')}:{self.control}",
                   "--bind", f"tcp://{self.address(name)}:{self.ports[name]}", "--threads", 1]
        if not default_metrics:
            command += ["--metrics", f"{self.address(name)}:{self.metrics_ports[name]}" if name in self.metrics_ports else "off"]
        command += ["--plaintext"] if self.plaintext else ["--key", self.key(name), "--coordinator-key", self.public["coordinator"]]
        self.start_process(name, command + self.node_options + list(more))

    def start(self, wait=True, more=None):
        """more: {name: further options of that node}"""
        self.start_coordinator()
        for name in self.names:
            self.start_node(name, *(more or {}).get(name, ()))
        if wait:
            self.wait_ready()
        return self

    def get(self, path, timeout=5):
        request = urllib.request.Request(self.url + path)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                return r.status, json.loads(r.read() or "null")
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read() or "null")

    def post(self, path, body, timeout=60):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                return r.status, json.loads(r.read())
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read() or "null")

    def is_ready(self):
        try:
            return self.get("/health", 2)[0] == 200
        except OSError:
            return False

    def wait_in_status(self, words, seconds=8):
        """Until /v1/status contains the words."""
        end, last = time.time() + seconds, ""
        while words not in last:
            assert time.time() < end, last
            try:
                last = json.dumps(self.get("/v1/status")[1])
            except OSError as e:
                last = str(e)
            time.sleep(0.05)

    def wait_ready(self, seconds=20):
        end = time.time() + seconds
        while not self.is_ready():
            for name, p in self.processes.items():
                assert p.poll() is None or time.time() < end - 1, f"{name} ended with {p.returncode}: {self.log(name)[-1500:]}"
            assert time.time() < end, "not ready: " + "\n".join(f"--- {n}\n{self.log(n)[-800:]}" for n in self.processes)
            time.sleep(0.05)

    def wait_not_ready(self, seconds):
        end = time.time() + seconds
        while self.is_ready():
            assert time.time() < end, "still ready"
            time.sleep(0.02)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def signal(self, name, number):
        self.processes[name].send_signal(number)

    def kill(self, name):
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def stop(self):
        """None has ended badly so far, and all end with 0 when they are told to. kill() has taken away those that it killed."""
        for p in self.processes.values():
            try:
                p.send_signal(signal.SIGCONT)
                p.terminate()
            except ProcessLookupError:
                pass
        for name, p in self.processes.items():
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        badly = {name: f"{p.returncode}: {self.log(name)[-800:]}" for name, p in self.processes.items() if p.returncode}
        self.processes = {}
        assert not badly, badly

    def ask(self, text, **more):
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}
        return self.post("/v1/chat/completions", body)

    def metrics(self, name):
        """{"name" or 'name{labels}': value} of GET /metrics of a node."""
        with urllib.request.urlopen(f"http://{self.address(name)}:{self.metrics_ports[name]}/metrics", timeout=5) as r:
            lines = [line for line in r.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def logits(self, tokens, out, drafts=True):
        (self.folder / "tokens.json").write_text(json.dumps(tokens))
        run(HEARTH, "logits", "--cluster", self.url, "--tokens", self.folder / "tokens.json", "--out", out, *(["--drafts"] if drafts else []))
        return Path(out).read_bytes()


def copy_model(source, folder):
    shutil.copytree(source, folder)
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    return folder
