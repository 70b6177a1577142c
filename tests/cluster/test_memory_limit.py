"""Memory never exceeds the budget: in a memory cgroup of the budget and 64 MiB a long prompt, a long answer and four chats at once are never killed, and the most memory
that was ever resident is not above the budget. One process, and three nodes each in a group of its own."""
import contextlib
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

from harness import HEARTH, Cluster, run

MIB = 1 << 20
BESIDES = 64 * MIB  # the group also counts the page cache and what the kernel keeps for the process


def find_groups():
    """(folder of our own group, name of its limit's file) of cgroup version 2 or 1; (None, None)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, limit = Path("/sys/fs/cgroup" + path), "memory.max"
        elif "memory" in controllers.split(","):
            folder, limit = Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        else:
            continue
        try:
            probe = folder / f"hearth-probe-{os.getpid()}"
            probe.mkdir()
            has_limit = (probe / limit).exists()
            probe.rmdir()
            if has_limit:
                return folder, limit
        except OSError:
            pass
    return None, None


GROUPS, LIMIT = find_groups()
pytestmark = pytest.mark.skipif(GROUPS is None, reason="no memory cgroup can be made here: run as root, or in a group that is delegated with its memory controller")


class Group:
    """As a context: removed at its end, when its processes have ended."""

    def __init__(self, name, limit_bytes):
        self.folder = GROUPS / f"hearth-{os.getpid()}-{name}"
        self.folder.mkdir()
        try:
            self.limit(limit_bytes)
        except OSError:
            self.remove()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def limit(self, limit_bytes):
        (self.folder / LIMIT).write_text(str(limit_bytes))
        for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):  # nothing may hide in swap
            if (self.folder / swap).exists():
                (self.folder / swap).write_text("0" if swap == "memory.swap.max" else str(limit_bytes))

    def prefix(self):
        return ["sh", "-c", f'echo $$ >"{self.folder}/cgroup.procs" && exec "$@"', "sh"]

    def kills(self):
        file = self.folder / ("memory.events" if LIMIT == "memory.max" else "memory.oom_control")
        return int(re.search(r"^oom_kill (\d+)$", file.read_text(), re.M)[1])

    def remove(self):
        """The kernel may still count a process that has been waited for."""
        for _ in range(40):
            with contextlib.suppress(OSError):
                return self.folder.rmdir()
            time.sleep(0.05)
        self.folder.rmdir()


def high_water_bytes(pid):
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)[1]) * 1024


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """320 MB of experts in five layers and the MTP layer, 40 MB of the rest."""
    folder = tmp_path_factory.mktemp("pack") / "pack"
    run(HEARTH, "synth", folder, "--layers", 6, "--hidden", 512, "--moe-intermediate", 1024, "--vocab", 2048)
    return folder


BUDGETS = {"n0": 112 * MIB, "n1": 112 * MIB, "n2": 152 * MIB}
PROMPT = "The quick brown fox jumps over the lazy dog. " * 40  # its tokens are bytes


@pytest.mark.parametrize("question, new_tokens", [(PROMPT, 20), ("Hi", 400)], ids=["long prompt", "long answer"])
def test_one_process_stays_within_a_third_of_the_model(pack, question, new_tokens):
    budget = 160 * MIB
    with Group("one", budget + BESIDES) as group:
        command = group.prefix() + [str(HEARTH), "run", str(pack), question, "--memory", str(budget), "--context", "2560", "--use-counts", "none",
                                    "--max-tokens", str(new_tokens), "--temperature", "0.8", "--seed", "1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        peaks = []

        def watch():
            while process.poll() is None:
                try:
                    peaks.append(high_water_bytes(process.pid))
                except (OSError, TypeError):
                    return
                try:
                    process.wait(0.02)
                except subprocess.TimeoutExpired:
                    pass
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            _, errors = process.communicate(timeout=300)
        finally:  # one that has not ended in time keeps its group
            process.kill()
            process.wait()
            watcher.join()
        assert process.returncode == 0 and group.kills() == 0, errors
        print(f"budget {budget / MIB:.0f} MiB, peak {max(peaks) / MIB:.1f} MiB; {errors.splitlines()[-1]}")
        assert 64 * MIB < max(peaks) <= budget


@pytest.fixture
def groups():
    with contextlib.ExitStack() as stack:
        yield {n: stack.enter_context(Group(n, b + BESIDES)) for n, b in BUDGETS.items()}


def test_three_nodes_stay_within_their_budgets(pack, groups, tmp_path):
    """64 MiB of each budget are for the program itself; what is left is about a third of the node's weights and caches."""
    names = list(BUDGETS)
    hosts = {"coordinator": ([], "127.0.0.1"), **{n: (g.prefix(), "127.0.0.1") for n, g in groups.items()}}
    cluster = Cluster(tmp_path / "c", pack, names, hosts=hosts, layers="n0:0-2,n1:2-4,n2:4-6", context=4096, node_options=["--use-counts", "none"])
    try:
        cluster.start(more={n: ["--memory", b] for n, b in BUDGETS.items()})
        pids = {n: cluster.processes[n].pid for n in names}
        assert cluster.ask(PROMPT, max_tokens=4)[0] == 200
        assert cluster.ask("Hi", max_tokens=300, temperature=0.8, seed=1)[0] == 200
        results = [None] * 4

        def ask(i):
            results[i] = cluster.ask(f"{i} " + PROMPT[:400], max_tokens=60, temperature=0.8, seed=i)
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        [t.start() for t in threads], [t.join(120) for t in threads]
        assert [r[0] for r in results] == [200] * 4, results
        for name in names:
            budget, peak, figures = BUDGETS[name], high_water_bytes(pids[name]), cluster.metrics(name)
            print(f"{name}: budget {budget / MIB:.0f} MiB, peak {peak / MIB:.1f} MiB, {figures['hearth_expert_slots']:.0f} slots")
            assert cluster.processes[name].poll() is None and groups[name].kills() == 0
            assert figures["hearth_expert_evictions_total"] > 0  # it wants more than fits
            assert peak <= budget == figures["hearth_node_memory_limit_bytes"]
    finally:
        cluster.stop()
