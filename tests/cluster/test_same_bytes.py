"""One process = three nodes = every legal cut: the same bytes of logits and MTP logits, several sequences at once, after cuts and redone rows."""
import json

import pytest

from harness import HEARTH, ROOT, Cluster, copy_model, read_safetensors, run

TEACHER = ROOT / "tests/golden/kindling/teacher.safetensors"


def kindling_tokens(n):
    import struct
    import numpy as np
    data = TEACHER.read_bytes()
    h = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + h])
    out = []
    for i in range(40):
        v = header[f"case{i}.tokens"]
        out.append(np.frombuffer(data, np.int32, offset=8 + h + v["data_offsets"][0], count=v["shape"][0]).tolist())
    return sorted(out, key=len)[-n:] + [[5]]


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
