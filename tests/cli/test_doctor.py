"""`hearth doctor` and `hearth probe`: every check answers once, exit codes tell problems from warnings, a profile is whole or not there."""
import json
import os
import resource
import shutil
import signal
import subprocess
import time

import pytest

import hearth_command
from hearth_command import HEARTH
from kindling import pack, vendor  # noqa: F401 (fixtures)

MACHINE = ["cpu", "cpu governor", "memory", "memory cgroup", "locked memory", "huge pages", "swap", "io_uring", "open files", "clock", "state directory"]
DRIVE = ["O_DIRECT", "file system", "drive", "drive rate"]


@pytest.fixture()
def state(tmp_path):
    return tmp_path / "state"


def hearth(*arguments, state, **options):
    return hearth_command.hearth(*arguments, state=state, **options)


def names(stdout):
    return [line[9:25].strip() for line in stdout.splitlines() if line.startswith(("OK ", "warning ", "problem "))]


def test_every_check_answers_once(pack, state):
    assert names(hearth("doctor", state=state).stdout) == MACHINE
    text = hearth("doctor", "--model", pack, state=state).stdout
    assert names(text) == MACHINE + DRIVE
    assert "GB/s" in text and text.splitlines()[-1].endswith("0 problems")
    assert not state.exists()  # it only looks


def test_json_holds_the_same(pack, state):
    answer = json.loads(hearth("doctor", "--json", "--model", pack, state=state).stdout)
    assert [c["name"] for c in answer["checks"]] == MACHINE + DRIVE
    assert all(c["level"] in ("OK", "warning", "problem") and c["found"] for c in answer["checks"])
    assert answer["problems"] == 0
    assert answer["warnings"] == sum(c["level"] == "warning" for c in answer["checks"])


def test_a_vendor_folder_is_measured_without_reading_all_of_it(vendor, state):
    before = sorted(vendor.iterdir())
    assert names(hearth("doctor", "--model", vendor, state=state).stdout) == MACHINE + DRIVE
    assert sorted(vendor.iterdir()) == before  # no checksums were made
    assert "only packs have stores" in hearth("doctor", "--model", vendor, "--store", vendor, state=state, code=1).stderr


def test_stores_are_looked_at_one_by_one(pack, state, tmp_path):
    one, two, none = tmp_path / "one", tmp_path / "two", tmp_path / "none"
    for folder in (one, two, none):
        folder.mkdir()
    experts = sorted(p for p in pack.iterdir() if p.name.startswith("experts-"))
    for i, path in enumerate(experts):
        shutil.copy(path, (one, two)[i % 2])
    answer = json.loads(hearth("doctor", "--json", "--model", pack, "--store", f"{one},{two}", state=state).stdout)
    found = {c["name"]: c["found"] for c in answer["checks"]}
    for name in DRIVE:
        assert f"{one}: " in found[name] and f"{two}: " in found[name]
    error = hearth("doctor", "--model", pack, "--store", f"{one},{none}", state=state, code=1).stderr
    assert str(none) in error and "experts" in error


def test_a_folder_whose_name_is_not_utf8_is_still_json(pack, state, tmp_path):
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    shutil.copytree(os.fsencode(pack), odd)
    done = subprocess.run([HEARTH.encode(), b"doctor", b"--json", b"--model", odd], capture_output=True, timeout=60,
                          env={**os.environ, "XDG_STATE_HOME": str(state)})
    assert done.returncode == 0, done.stderr
    assert "/??: " in {c["name"]: c["found"] for c in json.loads(done.stdout)["checks"]}["O_DIRECT"]


def test_a_problem_is_exit_code_1_and_named(state):
    def few_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    done = hearth("doctor", state=state, code=1, preexec_fn=few_files)
    assert "open files" in done.stderr and "LimitNOFILE" in done.stdout
    assert names(done.stdout) == MACHINE
    assert json.loads(hearth("doctor", "--json", state=state, code=1, preexec_fn=few_files).stdout)["problems"] == 1


@pytest.mark.parametrize("command", [["doctor"], ["probe", "--quick"]])
def test_what_is_no_model_is_named(command, state, tmp_path):
    assert str(tmp_path) in hearth(*command, "--model", tmp_path, state=state, code=1).stderr
    assert "/nowhere/x" in hearth(*command, "--model", "/nowhere/x", state=state, code=1).stderr
    assert "--store needs --model" in hearth(*command, "--store", tmp_path, state=state, code=2).stderr
    assert not state.exists()


def check(profile):
    assert profile["profile_version"] == 1 and profile["cores"] >= 1 and profile["memory_bytes"] > 1 << 20
    assert profile["memory_gb_per_s"] > 0 and profile["cpu"] and profile["reader"] and profile["date"].endswith("Z")
    assert [(m["format"], m["rows"]) for m in profile["matmul"]] == [("int4", 1), ("int4", 8), ("int8", 1), ("int8", 8)]
    assert all(m["gb_per_s"] > 0 for m in profile["matmul"])
    for store in profile["stores"]:
        assert [r["depth"] for r in store["read"]] == [1, 2, 4, 8, 16]
        assert all(r["gb_per_s"] > 0 for r in store["read"]) and store["latency_4k_us_p50"] > 0


def test_probe_keeps_what_it_measured(pack, state, tmp_path):
    shown = json.loads(hearth("probe", "--quick", "--json", "--model", pack, state=state).stdout)
    check(shown)
    assert shown["stores"][0]["dir"] == str(pack) and not shown["stores"][0]["temporary_file"]
    assert sorted(p.name for p in (state / "hearth").iterdir()) == ["profile.json"]
    assert json.loads((state / "hearth/profile.json").read_text()) == shown
    other = tmp_path / "other.json"
    text = hearth("probe", "--quick", "--model", pack, "--reader", "pread", "--output", other, state=state).stdout
    assert "GB/s at depth 16" in text
    again = json.loads(other.read_text())
    check(again)
    assert "pread" in again["reader"]
    assert json.loads((state / "hearth/profile.json").read_text()) == shown  # left alone
    assert "/nowhere" in hearth("probe", "--quick", "--model", pack, "--output", "/nowhere/x", state=state, code=1).stderr


def test_probe_without_a_model_reads_a_file_of_its_own_and_leaves_nothing(state):
    profile = json.loads(hearth("probe", "--quick", "--json", state=state).stdout)
    check(profile)
    assert profile["stores"][0]["temporary_file"] and profile["stores"][0]["dir"] == str(state / "hearth")
    assert sorted(p.name for p in (state / "hearth").iterdir()) == ["profile.json"]


@pytest.mark.parametrize("old", [None, '{"an": "older one"}\n'])
def test_probe_killed_at_any_moment_leaves_no_broken_profile(old, pack, state):
    folder = state / "hearth"
    folder.mkdir(parents=True)
    if old:
        (folder / "profile.json").write_text(old)
    for moment in (0.0, 0.02, 0.3, 1.0, 2.0):
        process = subprocess.Popen([HEARTH, "probe", "--quick", *(["--model", pack] if moment == 2.0 else [])], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env={**os.environ, "XDG_STATE_HOME": str(state)})
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = {p.name: p.read_text() for p in folder.iterdir()}
        assert all(name == "profile.json" for name in left), left.keys()
        assert left.get("profile.json") == old  # every moment lies before the end of five seconds
    check(json.loads(hearth("probe", "--quick", "--json", "--model", pack, state=state).stdout))
    check(json.loads((folder / "profile.json").read_text()))
