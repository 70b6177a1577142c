"""A coordinator that comes back with another --context: a node that has its weights already plans its memory anew, and stays within its limit."""
import time

import pytest

from harness import HEARTH, ROOT, Cluster, copy_model, run


@pytest.fixture
def pack(tmp_path):
    run(HEARTH, "convert", copy_model(ROOT / "models/kindling", tmp_path / "kindling"), tmp_path / "int4", "--precision", "int4")
    return tmp_path / "int4"


def test_experts_that_no_longer_fit_beside_longer_caches_are_streamed(tmp_path, pack):
    cluster = Cluster(tmp_path / "c", pack, 2, layers="n0:0-6,n1:6-10", context=512, sequences=1, node_options=["--use-counts", "none"])

    def answer():
        reply = cluster.ask("What is the capital of France?")
        assert reply[0] == 200, reply
        return reply[1]["choices"][0]["message"]["content"]

    try:
        cluster.start(more={"n0": ["--memory", "85M"]})
        first = answer()
        assert "hearth_expert_slots" not in cluster.metrics("n0")  # everything fits
        for context, streams in (4096, True), (4096, True), (512, True):  # what streams goes on doing so
            cluster.kill("coordinator")
            cluster.options["context"] = context
            cluster.start_coordinator()
            cluster.wait_not_ready(5)
            cluster.wait_ready()
            assert answer() == first
            end = time.time() + 5
            while ("hearth_expert_slots" in (now := cluster.metrics("n0"))) != streams:  # published ten times a second
                assert time.time() < end, now
            accounts = sum(value for name, value in now.items() if name.startswith("hearth_node_memory_bytes"))
            assert accounts <= now["hearth_node_memory_limit_bytes"] == 85 << 20
    finally:
        cluster.stop()
