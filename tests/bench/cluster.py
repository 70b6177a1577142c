"""Figures for docs/PERFORMANCE.md, "Cluster": tokens a second in one process, on one node and on three, what a hop and CURVE cost, messages and bytes a token,
first token of a 2,000-token prompt. Not a test. usage: python tests/bench/cluster.py   (HEARTH_BUILD names the build, default build/release)"""
import json
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))
from harness import HEARTH, ROOT, Cluster, run  # noqa: E402

STORY, ROUNDS = "Tell me a story about a fox.", 5
LONG = "The coordinator gives each node a range of layers. " * 198


def stream(cluster, text, **more):
    """Times of the chunks that carry text, from sending the request on."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "stream": True, **more}
    request = urllib.request.Request(cluster.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    began, times = time.perf_counter(), []
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            if line.startswith(b"data: {") and (b'"reasoning_content":"' in line or b'"content":"' in line) and b'"role"' not in line:
                times.append(time.perf_counter() - began)
    return times


def measure(cluster):
    stream(cluster, STORY)
    rates, gaps, firsts = [], [], []
    for _ in range(ROUNDS):
        t = stream(cluster, STORY)
        rates.append((len(t) - 1) / (t[-1] - t[0]))
        gaps += [b - a for a, b in zip(t, t[1:])]
        firsts.append(stream(cluster, LONG + str(_), max_tokens=2)[0])
    gaps.sort()
    return statistics.median(rates), gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100], statistics.median(firsts)


def one_process(pack):
    rates, firsts = [], []
    for _ in range(ROUNDS):
        line = run(HEARTH, "run", pack, STORY, "--temperature", 0, "--threads", 1).stderr
        rates.append(float(re.search(r"at ([\d.]+) tokens/s", line).group(1)))
        line = run(HEARTH, "run", pack, LONG + str(_), "--temperature", 0, "--threads", 1, "--max-tokens", 2).stderr
        firsts.append(float(re.search(r"in ([\d.]+) ms", line).group(1)) / 1e3)
        tokens = int(re.search(r"\[(\d+) prompt", line).group(1))
    return statistics.median(rates), statistics.median(firsts), tokens


def main():
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "int4"
        run(HEARTH, "convert", ROOT / "models/kindling", pack, "--precision", "int4")
        rate, first, tokens = one_process(pack)
        print(f"one process: {rate:.0f} tokens/s, first token of {tokens} tokens {first * 1e3:.0f} ms")
        medians = {}
        for nodes, plaintext in ((1, False), (3, False), (1, True), (3, True)):
            cluster = Cluster(Path(folder) / f"c{nodes}{plaintext}", pack, nodes, plaintext=plaintext)
            try:
                cluster.start()
                rate, p50, p99, first = measure(cluster)
            finally:
                cluster.stop()
            medians[nodes, plaintext] = p50
            kind = "plaintext" if plaintext else "CURVE"
            print(f"{nodes} node(s), {kind}: {rate:.0f} tokens/s, between tokens p50 {p50 * 1e6:.0f} us, p99 {p99 * 1e6:.0f} us, first token {first * 1e3:.0f} ms")
            for name in ["coordinator"] + cluster.names:
                print("   ", name, re.findall(r"control: .*", cluster.log(name))[-1])
        for plaintext in (False, True):
            hop = (medians[3, plaintext] - medians[1, plaintext]) / 2
            print(f"a hop ({'plaintext' if plaintext else 'CURVE'}): {hop * 1e6:.0f} us")


if __name__ == "__main__":
    main()
