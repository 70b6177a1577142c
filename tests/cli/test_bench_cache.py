"""hearth bench cache: what a run records can be replayed, the table holds what it says, and a damaged trace is refused by file and line.

Traces of kindling are recorded by the commands that record them; damaged ones are made by hand."""
import json

import pytest

from hearth_command import ROOT, hearth
from kindling import vendor  # noqa: F401 (fixture)

LINES = ["top_k / 4", "top_k / 2", "top_k", "1/4 of experts", "1/2 of experts"]
POLICIES = ["LRU", "LFU", "ours", "static", "optimum"]


def table(text):
    """{line: {policy: percent}} of a printed table."""
    found = {}
    for line in text.splitlines():
        left, bar, right = line.partition("|")
        if bar and right.split() != POLICIES:
            found[left[:18].strip()] = dict(zip(POLICIES, map(float, right.split())))
    return found


@pytest.fixture(scope="module")
def golden_trace(vendor):
    cases = json.loads((ROOT / "tests/golden/kindling/greedy.json").read_text())
    tokens, trace = vendor.parent / "tokens.json", vendor.parent / "golden.trace"
    tokens.write_text(json.dumps([c["prompt_ids"] + c["answer_ids"] for c in cases]))
    hearth("logits", "--model", vendor, "--tokens", tokens, "--out", vendor.parent / "out", "--trace", trace)
    return trace, sum(len(c["prompt_ids"]) + len(c["answer_ids"]) for c in cases)


def test_every_row_and_layer_is_recorded_and_nothing_is_changed(vendor, golden_trace):
    trace, n_rows = golden_trace
    lines = trace.read_text().splitlines()
    assert lines[0] == "hearth-trace 1 layers=8 experts=32 top_k=4"  # 7 sparse layers and the MTP layer, which had no rows
    assert len(lines) == 1 + 7 * n_rows and {line.split()[0] for line in lines[1:]} == set("0123456")
    tokens = vendor.parent / "tokens.json"
    hearth("logits", "--model", vendor, "--tokens", tokens, "--out", vendor.parent / "plain")
    assert (vendor.parent / "plain").read_bytes() == (vendor.parent / "out").read_bytes()


def test_a_run_is_recorded(vendor, tmp_path):
    done = hearth("run", vendor, "What is the capital of France?", "--temperature", 0, "--trace", tmp_path / "t")
    assert done.stdout == hearth("run", vendor, "What is the capital of France?", "--temperature", 0).stdout
    rows = [line.split()[0] for line in (tmp_path / "t").read_text().splitlines()[1:]]
    assert set(rows) == set("0123456") and len({rows.count(layer) for layer in "0123456"}) == 1 and rows.count("0") > 10
    assert list(table(hearth("bench", "cache", "--trace", tmp_path / "t").stdout)) == LINES


def test_our_policy_keeps_its_promises_on_recorded_rows(golden_trace):
    rates = table(hearth("bench", "cache", "--trace", golden_trace[0]).stdout)
    assert list(rates) == LINES
    for line, rate in rates.items():
        assert rate["LRU"] <= rate["ours"] <= rate["optimum"], line
    for line in LINES[2:]:
        assert rates[line]["ours"] >= rates[line]["static"] - 5, line
    assert rates["top_k"]["ours"] >= rates["top_k"]["LRU"] + 5


def test_skewed_synthetic_rows_keep_the_promises_and_repeat():
    arguments = ["bench", "cache", "--synthetic", 0.12, "--tokens", 1200, "--layers", 6]
    first = hearth(*arguments).stdout
    assert first == hearth(*arguments).stdout != hearth(*arguments, "--seed", 2).stdout
    rates = table(first)
    for line in LINES[2:]:
        assert rates[line]["LRU"] <= rates[line]["ours"] and rates[line]["static"] - 5 <= rates[line]["ours"] <= rates[line]["optimum"]
    assert rates["top_k"]["ours"] >= rates["top_k"]["LRU"] + 5


def test_all_slots_hit_always_and_the_first_rows_can_be_left_out(golden_trace):
    rates = table(hearth("bench", "cache", "--trace", golden_trace[0], "--slots", 8 * 32).stdout)
    assert set(rates["--slots"].values()) == {100.0}
    rates = table(hearth("bench", "cache", "--trace", golden_trace[0], "--slots", 8 * 32, "--warm", 0).stdout)
    assert 99 < rates["--slots"]["LRU"] < 100  # the first use of each is read


def test_a_request_that_takes_its_own_slots_again_hits_more(golden_trace):
    whole, two = (table(hearth("bench", "cache", "--trace", golden_trace[0], "--slots", 14, "--in-flight", n).stdout)["--slots"] for n in (0, 2))
    assert two["ours"] > whole["ours"] and two["optimum"] > whole["optimum"] and two["static"] == whole["static"]


HEAD = "hearth-trace 1 layers=2 experts=8 top_k=2\n"


@pytest.mark.parametrize("text, line, reason", [
    ("", 1, "expected"), ("hearth-trace 2 layers=2 experts=8 top_k=2\n", 1, "expected"), (HEAD[:-1], 1, "expected"), (HEAD[:-1] + " x\n", 1, "expected"),
    ("x" * 5000, 1, "expected"), (HEAD.replace("layers=2", "layers=0"), 1, "at most"), (HEAD.replace("layers=2", "layers=9999"), 1, "at most"),
    (HEAD.replace("layers=2", "layers=99999999999"), 1, "expected"), (HEAD.replace("experts=8", "experts=5000"), 1, "at most"),
    (HEAD.replace("experts=8", "experts=-8"), 1, "expected"), (HEAD.replace("top_k=2", "top_k=9"), 1, "at most"), (HEAD.replace("top_k=2", "top_k=65"), 1, "at most"),
    (HEAD, 1, "no row"), (HEAD + "0 1 2\n2 1 2\n", 3, "layer"), (HEAD + "0 1 2\n\n", 3, "layer"), (HEAD + "-1 1 2\n", 2, "layer"), (HEAD + "0 1\n", 2, "fewer"),
    (HEAD + "0 1 8\n", 2, "no expert"), (HEAD + "0 1 x\n", 2, "no expert"), (HEAD + "0 1 99999\n", 2, "no expert"), (HEAD + "0 3 3\n", 2, "twice"),
    (HEAD + "0 1 2 3\n", 2, "does not end"), (HEAD + "0 1 2", 2, "does not end"), (HEAD + "0 1 2" + " " * 5000 + "\n", 2, "does not end"), (HEAD + "0 1 2\r\n", 2, "does not end"),
])
def test_a_bad_trace_is_refused_by_name_and_line(tmp_path, text, line, reason):
    path = tmp_path / "bad.trace"
    path.write_bytes(text.encode())
    done = hearth("bench", "cache", "--trace", path, code=1)
    assert f"{path}: " in done.stderr and reason in done.stderr
    assert f"line {line}" in done.stderr


def test_mistakes_in_the_call_are_named(tmp_path, vendor):
    assert "cannot open" in hearth("bench", "cache", "--trace", tmp_path / "none", code=1).stderr
    hearth("bench", "cache", code=2)
    hearth("bench", "cache", "--trace", "x", "--synthetic", 0.1, code=2)
    assert "--top-k" in hearth("bench", "cache", "--synthetic", 0.1, "--top-k", 8, "--experts", 4, code=2).stderr
    assert "cannot create" in hearth("run", vendor, "Hi", "--trace", tmp_path / "no/such", code=1).stderr
    assert "/dev/full: cannot write" in hearth("run", vendor, "Hi", "--max-tokens", 5, "--trace", "/dev/full", code=1).stderr
