"""One process = three nodes = every legal cut: the same bytes of logits and MTP logits, several sequences at once, after cuts and redone rows."""
import json
import socket

import pytest

from harness import HEARTH, ROOT, Cluster, copy_model, run
from hearth_command import read_safetensors

TEACHER = ROOT / "tests/golden/kindling/teacher.safetensors"


def kindling_tokens(n):
    teacher = read_safetensors(TEACHER)
    return sorted((teacher[f"case{i}.tokens"].tolist() for i in range(40)), key=len)[-n:] + [[5]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    exact = copy_model(ROOT / "models/kindling", folder / "kindling")
    run(HEARTH, "inspect", exact)
    run(HEARTH, "convert", exact, folder / "int4", "--precision", "int4")
    return {"exact": exact, "int4": folder / "int4"}


def one_process(model, tokens, folder):
    (folder / "t.json").write_text(json.dumps(tokens))
    run(HEARTH, "logits", "--model", model, "--tokens", folder / "t.json", "--out", folder / "one.safetensors", "--drafts")
    return (folder / "one.safetensors").read_bytes()


@pytest.mark.parametrize("precision", ["exact", "int4"])
@pytest.mark.parametrize("layers", ["n0:0-1,n1:1-10", "n0:0-2,n1:2-10", "n0:0-6,n1:6-10", "n0:0-1,n1:1-2,n2:2-10", "n0:0-1,n1:1-6,n2:6-10", "n0:0-2,n1:2-6,n2:6-10"])
def test_every_legal_cut_gives_the_bytes_of_one_process(models, tmp_path, precision, layers):
    tokens = kindling_tokens(3)
    want = one_process(models[precision], tokens, tmp_path)
    chunk = {"n0:0-1,n1:1-10": 7, "n0:0-2,n1:2-10": 1}.get(layers, 64)
    cluster = Cluster(tmp_path / "c", models[precision], layers.count(":"), layers=layers, allow_logits=True, chunk=chunk)
    try:
        cluster.start()
        assert cluster.logits(tokens, tmp_path / "cluster.safetensors") == want
        assert len(read_safetensors(tmp_path / "cluster.safetensors")) == 2 * 3 + 1
    finally:
        cluster.stop()


def byte_tokenizer(folder):
    """A tokenizer.json whose 256 tokens are the bytes, for random-weight models with a vocabulary of 256."""
    kindling = json.loads((ROOT / "models/kindling/tokenizer.json").read_text())
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    hidden = [b for b in range(256) if b not in shown]
    chars = {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}
    kindling["model"]["vocab"], kindling["model"]["merges"], kindling["added_tokens"] = {chars[b]: b for b in range(256)}, [], []
    (folder / "tokenizer.json").write_text(json.dumps(kindling))


@pytest.mark.parametrize("name, layers", [("tiny-share", "n0:0-1,n1:1-2,n2:2-8"), ("tiny-share", "n0:0-2,n1:2-6,n2:6-8"), ("tiny-glm5", "n0:0-1,n1:1-3,n2:3-5")])
@pytest.mark.parametrize("precision", ["vendor", "int4"])
def test_random_weights_give_the_bytes_of_one_process(tmp_path, name, layers, precision):
    model = copy_model(ROOT / f"tests/golden/{name}/checkpoint", tmp_path / "m")
    model.chmod(0o755)
    byte_tokenizer(model)
    if precision == "int4":
        run(HEARTH, "convert", model, tmp_path / "pack", "--precision", "int4")
        model = tmp_path / "pack"
    else:
        run(HEARTH, "inspect", model)
    tokens = [[(7 * i * i + 3) % 256 for i in range(90)], [1, 2, 3], [5]]
    want = one_process(model, tokens, tmp_path)
    cluster = Cluster(tmp_path / "c", model, 3, layers=layers, allow_logits=True, context=512, chunk=7)
    try:
        cluster.start()
        assert cluster.logits(tokens, tmp_path / "cluster.safetensors") == want
    finally:
        cluster.stop()


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
        return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
def test_ipv6_gives_the_bytes_of_one_process(models, tmp_path):
    tokens = kindling_tokens(2)
    want = one_process(models["int4"], tokens, tmp_path)
    cluster = Cluster(tmp_path / "c", models["int4"], 2, hosts=dict.fromkeys(["coordinator", "n0", "n1"], ([], "[::1]")), allow_logits=True, advertise="::1")
    try:
        cluster.start_coordinator()
        cluster.start_node("n0")
        cluster.start_node("n1", "--bind", f"tcp://[::]:{cluster.ports['n1']}", "--advertise", "::1")
        cluster.wait_ready()
        assert cluster.logits(tokens, tmp_path / "cluster.safetensors") == want
        assert cluster.metrics("n0")
        assert "without an API key" not in cluster.log("coordinator") and f"http://[::1]:{cluster.http}/v1" in cluster.log("coordinator")
    finally:
        cluster.stop()
