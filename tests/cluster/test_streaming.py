"""Experts on disk in a running cluster: the same bytes as one process with all of them in RAM, with few slots, both readers, a slow drive and several folders; a long
prompt on a slow drive holds up no other chat; a damaged record ends what needs it with a sentence and nothing else; figures in /metrics, status and log."""
import http.client
import json
import os
import re
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest

from harness import HEARTH, ROOT, Cluster, copy_model, run
from test_faults import answer
from test_same_bytes import byte_tokenizer, kindling_tokens, one_process

NO_COUNTS = ["--use-counts", "none"]


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    """kindling: trained, experts in layers 3 to 9; share: random weights, its tokens are bytes; spread: made up, so that each of three nodes has experts."""
    folder = tmp_path_factory.mktemp("packs")
    run(HEARTH, "convert", ROOT / "models/kindling", folder / "kindling", "--precision", "int4")
    share = copy_model(ROOT / "tests/golden/tiny-share/checkpoint", folder / "share-vendor")
    share.chmod(0o755)
    byte_tokenizer(share)
    run(HEARTH, "convert", share, folder / "share", "--precision", "int4")
    run(HEARTH, "synth", folder / "spread", "--like", "kindling", "--layers", 7, "--dense-layers", 1, "--experts", 16, "--skew", 0.1)
    return folder


def spread_over_two_folders(pack, folder):
    """--store of two folders: every second file of experts in one, the others and the first in the other."""
    names = sorted(p.name for p in pack.glob("experts-*"))
    for i, store in enumerate(("a", "b")):
        (folder / store).mkdir(parents=True)
        for name in names[i::2] + names[:i]:
            shutil.copy(pack / name, folder / store / name)
    return ["--store", f"{folder / 'a'},{folder / 'b'}"]


def random_tokens(n, vocab, seed):
    return np.random.default_rng(seed).integers(0, vocab, n).tolist()


# model: {"pack": .., "layers": .., "experts": of a layer, "top_k": .., "vocab": ids that may occur}
MODELS = {
    "kindling": {"layers": "n0:0-2,n1:2-6,n2:6-10", "experts": 32, "top_k": 4, "vocab": 3600, "sparse": (0, 3, 5)},
    "share": {"layers": "n0:0-1,n1:1-2,n2:2-8", "experts": 8, "top_k": 2, "vocab": 256, "sparse": (0, 0, 6)},
    "spread": {"layers": "n0:0-2,n1:2-6,n2:6-7", "experts": 16, "top_k": 4, "vocab": 256, "sparse": (1, 4, 2)},
}


def slots_of(kind, model):
    """Of each node; "mixed": another way for each of the three."""
    def of_node(kind, n_sparse):
        n = {"two": 2, "few": model["top_k"] - 1, "top_k": model["top_k"], "half": n_sparse * model["experts"] // 2}[kind]
        return ["--slots", max(n, 2)]
    kinds = ("half", "top_k", "two") if kind == "mixed" else (kind,) * 3
    return [of_node(k, n) for k, n in zip(kinds, model["sparse"])]


@pytest.mark.parametrize("name, slots, chunk", [("kindling", "two", 0), ("kindling", "few", 64), ("kindling", "top_k", 100), ("kindling", "half", 0),
                                                ("kindling", "mixed", 64), ("share", "two", 7), ("share", "half", 0), ("spread", "two", 64),
                                                ("spread", "mixed", 0)])
def test_experts_from_disk_give_the_bytes_of_one_process_with_all_in_ram(packs, tmp_path, name, slots, chunk):
    """One node reads with threads, one from a drive with jitter, one from two folders; a prompt of 700 rows (400 where the model ends) goes in several chunks."""
    model, pack = MODELS[name], packs / name
    tokens = [random_tokens(400 if name == "share" else 700, model["vocab"], 7), random_tokens(50, model["vocab"], 8), [5]]
    tokens += kindling_tokens(1)[:1] if name == "kindling" else []
    want = one_process(pack, tokens, tmp_path)
    more = dict(zip(("n0", "n1", "n2"), slots_of(slots, model)))
    more["n0"] += ["--reader", "pread", "--prefetch", "on"] + NO_COUNTS
    more["n1"] += ["--emulate-disk", "1,80,200", "--prefetch", "on"] + NO_COUNTS
    more["n2"] += spread_over_two_folders(pack, tmp_path / "stores") + ["--use-counts", tmp_path / "uses"]
    cluster = Cluster(tmp_path / "c", pack, 3, layers=model["layers"], allow_logits=True, context=512 if name == "share" else 1024,
                      chunk=chunk)
    try:
        cluster.start(more=more)
        for again in range(2):  # the second time with whatever the first left in the slots
            assert cluster.logits(tokens, tmp_path / "cluster.safetensors") == want
        streaming = [n for n, sparse in zip(cluster.names, model["sparse"]) if sparse]
        for node in streaming:
            now = cluster.metrics(node)
            assert now["hearth_expert_misses_total"] > 0 and now["hearth_expert_read_bytes_total"] > 0
            assert now["hearth_expert_slots_used"] <= now["hearth_expert_slots"] == max(int(more[node][1]), 2)
    finally:
        cluster.stop()
    assert list((tmp_path / "uses").glob("uses-*"))


# ---- a slow drive ----

class Chat(threading.Thread):
    """A streamed answer; times: when each piece of it came; is_complete: it has come to its end."""

    def __init__(self, cluster, text, max_tokens):
        super().__init__(daemon=True)
        self.times, self.end, self.error, self.is_complete = [], None, None, False
        body = json.dumps({"messages": [{"role": "user", "content": text}], "temperature": 0, "stream": True, "max_tokens": max_tokens})
        self.connection = http.client.HTTPConnection("127.0.0.1", cluster.http, timeout=120)
        self.connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        self.start()

    def run(self):
        try:
            for line in self.connection.getresponse():
                if line.startswith(b"data: {"):
                    delta = json.loads(line[6:])
                    if delta.get("error"):
                        self.error = delta["error"]
                    elif any(c["delta"].get("content") or c["delta"].get("reasoning_content") for c in delta["choices"]):
                        self.times.append(time.time())
                elif line.startswith(b"data: [DONE]"):
                    self.is_complete = True
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass
        self.end = time.time()

    def hang_up(self):
        self.connection.sock.shutdown(2)
        self.connection.close()

    def wait_pieces(self, n, seconds=60):
        until = time.time() + seconds
        while len(self.times) < n:
            assert time.time() < until and self.end is None, (len(self.times), self.error)
            time.sleep(0.01)


@pytest.fixture(scope="module")
def slow_drive(tmp_path_factory, packs):
    """Two places, and a drive on which all experts of a layer take 0.1 s: a chunk of a prompt reads them in every layer, a token an eighth of them."""
    cluster = Cluster(tmp_path_factory.mktemp("slow"), packs / "kindling", 3, layers="n0:0-2,n1:2-6,n2:6-10", sequences=2, context=4096, chunk=128,
                      node_options=["--slots", 16, "--emulate-disk", "0.012,100", "--prefetch", "off", *NO_COUNTS])
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def count(cluster, key):
    return cluster.get("/v1/status")[1][key]


def wait_count(cluster, key, n, seconds=10):
    end = time.time() + seconds
    while count(cluster, key) != n:
        assert time.time() < end, (key, count(cluster, key))
        time.sleep(0.02)


LONG_PROMPT = "Tell me a story about a fox and a dog. " * 110


def test_a_long_prompt_on_a_slow_drive_does_not_hold_up_another_chat(slow_drive):
    chat = Chat(slow_drive, "Tell me a story about a fox.", 400)
    chat.wait_pieces(3)
    began = time.time()
    prompt = Chat(slow_drive, LONG_PROMPT, 1)
    prompt.join(120)
    took, during = prompt.end - began, [t for t in chat.times if began < t < prompt.end]
    assert prompt.is_complete and prompt.error is None
    assert took > 2, took  # else this test shows nothing
    assert len(during) >= 5 and chat.error is None
    gaps = np.diff([began, *during])
    assert max(gaps) < max(took / 2, 2), (took, gaps)
    chat.hang_up()
    chat.join(20)
    wait_count(slow_drive, "running", 0)
    for name in slow_drive.names:
        assert not re.search(f"node {name}: ready -> (suspect|lost)", slow_drive.log("coordinator")), slow_drive.log("coordinator")


def test_a_hang_up_in_a_prompt_on_a_slow_drive_makes_room_for_the_next(slow_drive):
    chat = Chat(slow_drive, "Tell me a story about a fox.", 400)
    chat.wait_pieces(1)
    cancelled = count(slow_drive, "cancelled")
    prompt = Chat(slow_drive, LONG_PROMPT, 1)
    wait_count(slow_drive, "running", 2)
    waiting = Chat(slow_drive, "Hi there", 2)
    wait_count(slow_drive, "queued", 1)
    time.sleep(0.5)
    assert not prompt.times and not waiting.times
    prompt.hang_up()
    wait_count(slow_drive, "queued", 0, 5)
    waiting.wait_pieces(1)
    assert count(slow_drive, "cancelled") == cancelled + 1
    chat.hang_up()
    waiting.join(60)
    assert waiting.is_complete and waiting.error is None


# ---- a damaged record ----

LAYER, SPARSE_LAYER, EXPERTS = 7, 4, 32
QUESTION = "Tell me a story about a fox and a dog."


def prompt_tokens(pack, question):
    text = subprocess.run([HEARTH, "render", "--model", pack, "--json"], input=json.dumps([{"messages": [{"role": "user", "content": question}]}]),
                          capture_output=True, text=True, check=True).stdout
    return json.loads(subprocess.run([HEARTH, "tokenize", "--model", pack, "--json"], input=text, capture_output=True, text=True, check=True).stdout)[0]


def experts_of(pack, tokens, folder):
    """The experts of LAYER that the rows of a sequence choose."""
    (folder / "traced.json").write_text(json.dumps([tokens]))
    run(HEARTH, "logits", "--model", pack, "--tokens", folder / "traced.json", "--out", folder / "traced.safetensors", "--trace", folder / "trace")
    lines = [line.split() for line in (folder / "trace").read_text().splitlines()[1:]]
    return {int(e) for line in lines if int(line[0]) == SPARSE_LAYER for e in line[1:]}


def flip_a_bit(path, record):
    with open(path, "r+b") as file:
        file_bytes, head = os.fstat(file.fileno()).st_size, 4096
        file.seek(head + (file_bytes - head) // EXPERTS * record + 777)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory, packs):
    """One bit of an expert of layer 7 is another on the disk of n2; the question's prompt needs that expert, some of the short sequences do not."""
    folder, pack = tmp_path_factory.mktemp("damaged"), packs / "kindling"
    shutil.copytree(pack, folder / "pack")
    short = {t: experts_of(pack, [t], folder) for t in range(300, 330)}
    needed = experts_of(pack, prompt_tokens(pack, QUESTION), folder)
    users = {e: [t for t in short if e in short[t]] for e in needed}
    record = min(needed, key=lambda e: abs(len(users[e]) - 10))
    assert 1 <= len(users[record]) <= 25
    flip_a_bit(folder / "pack" / f"experts-{LAYER:02d}", record)
    cluster = Cluster(folder / "c", pack, 3, layers="n0:0-2,n1:2-6,n2:6-10", allow_logits=True)
    cluster.record, cluster.users, cluster.others = record, users[record], [t for t in short if t not in users[record]]
    more = {n: ["--slots", 16, "--prefetch", "off", *NO_COUNTS] for n in cluster.names}
    more["n2"] += ["--store", folder / "pack"]
    try:
        yield cluster.start(more=more)
    finally:
        cluster.stop()


def names_the_record(cluster, text):
    return "node 'n2'" in text and f"layer {LAYER}: experts-{LAYER:02d}: record {cluster.record}: does not match its checksum" in text


def test_a_damaged_record_fails_with_its_name_what_needs_it_and_nothing_else(damaged, packs, tmp_path):
    node = damaged.processes["n2"]
    status, body = damaged.ask(QUESTION)
    assert status >= 500 and names_the_record(damaged, body["error"]["message"]), body
    streamed = Chat(damaged, QUESTION, 20)
    streamed.join(30)
    assert not streamed.times and names_the_record(damaged, streamed.error["message"])
    for token in damaged.users[:3] + damaged.others[:3] + damaged.users[3:5] + damaged.others[3:5]:
        (tmp_path / "t.json").write_text(json.dumps([[token]]))
        done = run(HEARTH, "logits", "--cluster", damaged.url, "--tokens", tmp_path / "t.json", "--out", tmp_path / "cluster.safetensors", ok=False)
        assert (done.returncode != 0) == (token in damaged.users), (token, done.stderr)
        if token in damaged.others:
            run(HEARTH, "logits", "--model", packs / "kindling", "--tokens", tmp_path / "t.json", "--out", tmp_path / "one.safetensors")
            assert (tmp_path / "cluster.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    assert node.poll() is None and damaged.is_ready() and damaged.processes["n2"] is node


def test_status_and_metrics_show_a_damaged_record(damaged):
    damaged.ask(QUESTION)
    shown = run(HEARTH, "status", damaged.url).stdout
    assert re.search("^last failed request: ", shown, re.M) and names_the_record(damaged, shown), shown
    assert count(damaged, "failed") >= 1
    time.sleep(0.3)
    assert damaged.metrics("n2")["hearth_expert_checksum_errors_total"] >= 2  # each time it is read again once
    assert damaged.metrics("n1")["hearth_expert_checksum_errors_total"] == 0


# ---- figures ----

def test_figures_rise_with_an_answer_and_a_line_in_the_log_has_its_share(tmp_path, packs):
    cluster = Cluster(tmp_path / "c", packs / "kindling", 3, layers="n0:0-2,n1:2-6,n2:6-10", node_options=["--slots", 24, *NO_COUNTS])
    try:
        cluster.start()
        before = {n: cluster.metrics(n) for n in ("n1", "n2")}
        assert "Paris" in answer(cluster.ask("What is the capital of France?"))
        time.sleep(1.2)  # a heartbeat
        status = {n["name"]: n for n in cluster.get("/v1/status")[1]["nodes"]}
        assert "experts" not in status["n0"]
        for name in ("n1", "n2"):
            after = cluster.metrics(name)
            rise = {k: after[f"hearth_expert_{k}_total"] - before[name].get(f"hearth_expert_{k}_total", 0)
                    for k in ("hits", "misses", "read_bytes", "requests")}
            assert all(v > 0 for v in rise.values()), rise
            assert status[name]["experts"]["hits"] == after["hearth_expert_hits_total"] and status[name]["experts"]["slots"] == 24
            line = re.search(r"answer [0-9a-f]+: (\d+) rows in .*; experts: ([0-9.]+) % of (\d+) were there, ([0-9.]+) MB read, ([0-9.]+) s waited for",
                             cluster.log(name))
            asked = rise["hits"] + rise["misses"]
            assert line and int(line[3]) == asked and abs(float(line[2]) - 100 * rise["hits"] / asked) < 0.1
            assert 0 < float(line[4]) * 1e6 <= rise["read_bytes"] + 1e5
        assert re.search(r"answer [0-9a-f]+: \d+ rows in", cluster.log("n0"))
        rows = [line.split() for line in run(HEARTH, "status", cluster.url).stdout.splitlines() if re.match(r"  n[012] ", line)]
        assert [r[0] for r in rows] == ["n0", "n1", "n2"] and all(r[-1].endswith("/24") for r in rows[1:]) and rows[0][-1] == "-"
    finally:
        cluster.stop()
