"""hearth plan: it plans the memory that a run takes, refuses what a run refuses, says where its assumptions come from, and predicts more from more.

Packs are made of kindling. Rates of the machine are never compared with anything: other programs may use it."""
import json
import shutil

import pytest

import hearth_command
from kindling import pack, vendor  # noqa: F401 (fixtures)


def hearth(*arguments, home, code=0):
    """home: use counts and profiles of the person who runs the tests play no part."""
    return hearth_command.hearth(*arguments, state=home, code=code)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def profile(home, tmp_path_factory):
    """Another machine, of round figures."""
    path = tmp_path_factory.mktemp("profile") / "other.json"
    hearth("probe", "--quick", "--output", path, home=home)
    other = json.loads(path.read_text())
    other["memory_bytes"] = 8 << 30
    for m in other["matmul"]:
        m["gb_per_s"] = 40.0
    path.write_text(json.dumps(other))
    return path


def plan(pack, home, *arguments):
    return json.loads(hearth("plan", "--model", pack, "--json", *arguments, home=home).stdout)


@pytest.mark.parametrize("context, how", [(512, ["--slots", 40]), (512, ["--memory", "80M"]), (512, ["--memory", "80M", "--chunk", 512]),
                                          (512, ["--memory", "100M"]), (512, []), (4096, ["--memory", "98M"])])
def test_the_plan_of_memory_is_that_of_a_run(pack, home, context, how):
    said = plan(pack, home, "--context", context, "--use-counts", "none", *how)
    was = json.loads(hearth("bench", "experts", pack, "--context", context, "--use-counts", "none", "--tokens", 1, "--warm", 0, "--json", *how,
                            home=home).stdout)
    assert said["streams"] == (was["slots"] > 0) and said["experts"] == was["experts"]
    assert not said["streams"] or said["slots"] == was["slots"]
    assert said["streams"] == (was["raw_bytes_per_second"] > 0)
    assert sum(said["memory"].values()) == said["memory_bytes"] <= said["memory_limit"]


def test_prompts_are_predicted_in_sets_as_long_as_a_run_makes_them(pack, home, profile, tmp_path):
    def rows(*how):
        return plan(pack, home, "--context", 4096, "--use-counts", "none", "--slots", 40, *how)["set_rows"]

    assert rows() == 1024 and rows("--chunk", 64) == 64 and rows("--memory", "98M") == 256
    fast = json.loads(profile.read_text()) | {"disturbed": False}
    for read in fast["stores"][0]["read"]:
        read["gb_per_s"] = 1000.0
    (tmp_path / "fast.json").write_text(json.dumps(fast))
    assert rows("--profile", tmp_path / "fast.json") == 64
    assert rows("--profile", tmp_path / "fast.json", "--emulate-disk", "0.01,100") == 1024


def test_more_reads_than_a_reader_has_are_shared_out_among_the_drives(pack, home, tmp_path):
    stores = [tmp_path / name for name in "abc"]
    for store in stores:
        shutil.copytree(pack, store)
    how = ["--slots", 40, "--context", 512, "--use-counts", "none", "--store", ",".join(map(str, stores)), "--read-depth", 32]
    for drive in ([], ["--emulate-disk", "0.01,100"]):
        assert plan(pack, home, *how, *drive)["machine"]["drive_bytes_per_second"] > 0
        done = json.loads(hearth("bench", "experts", pack, *how, *drive, "--tokens", 2, "--warm", 0, "--json", home=home).stdout)
        assert done["raw_bytes_per_second"] > 0 and done["bytes_read"] > 0
        reads = 0.03e9 if drive else done["raw_bytes_per_second"]
        assert done["drive_limit"] * done["missed_bytes_per_token"] == pytest.approx(reads, rel=0.01)


def test_what_a_run_refuses_is_refused_in_the_same_words(pack, home):
    for how in (["--memory", "1M"], ["--memory", "70M"], ["--memory", "80M", "--context", 4096], ["--slots", 256, "--memory", "80M"]):
        said, was = hearth("plan", "--model", pack, *how, code=1, home=home), hearth("run", pack, "Hi", *how, code=1, home=home)
        assert said.stderr.split(": ", 1)[1] == was.stderr.split(f"open model {pack}: ", 1)[1]
    assert "free" in hearth("plan", "--model", pack, "--memory", "90000G", code=1, home=home).stderr


def test_assumptions_are_named_and_the_best_known_are_taken(pack, home, profile, tmp_path):
    streams = ["--slots", 40, "--profile", profile]
    assert plan(pack, home, *streams, "--use-counts", "none")["hits_from"] == "zipf"
    trace, counts = tmp_path / "trace", tmp_path / "counts"
    hearth("run", pack, "Tell me a story.", "--temperature", 0, "--max-tokens", 150, "--slots", 40, "--use-counts", counts, "--trace", trace,
           home=home)
    assert plan(pack, home, *streams, "--use-counts", counts)["hits_from"] == "use counts"
    assert plan(pack, home, *streams, "--use-counts", counts, "--trace", trace)["hits_from"] == "trace"
    assert "use counts" not in hearth("plan", "--model", pack, *streams, "--trace", trace, home=home).stdout
    trace.write_text("hearth-trace 1 layers=1 experts=8 top_k=2\n0 1 2\n")
    assert "8 experts, top 2" in hearth("plan", "--model", pack, *streams, "--trace", trace, code=1, home=home).stderr


def test_more_memory_and_faster_drives_are_never_slower(pack, home, profile):
    def rate(slots, drive):
        said = plan(pack, home, "--slots", slots, "--emulate-disk", drive, "--use-counts", "none", "--profile", profile)
        assert said["hit_rate"] <= 1 and all(a["tokens_per_second"] > 0 for a in said["advice"])
        return said["hit_rate"], said["tokens_per_second"]

    points = [rate(slots, "0.01,100") for slots in (8, 64, 128, 256)]
    assert all(a[0] <= b[0] and a[1] < b[1] for a, b in zip(points, points[1:])), points
    assert points[-1][0] == 1
    assert rate(64, "0.001,100")[1] < rate(64, "0.01,100")[1]
    said = plan(pack, home, "--slots", 16, "--emulate-disk", "0.001,100", "--use-counts", "none", "--profile", profile)
    assert said["bound"] == "the drive" and said["advice"][0]["what"] != "memory and cores of twice the speed"


def test_a_profile_of_another_machine_brings_its_memory_and_cores(pack, home, profile, tmp_path):
    assert plan(pack, home, "--profile", profile)["memory_limit"] == (8 << 30) // 10 * 9
    assert plan(pack, home, "--profile", profile, "--memory", "7G")["memory_limit"] == 7 << 30
    assert "has 8.0 GiB" in hearth("plan", "--model", pack, "--profile", profile, "--memory", "9G", code=1, home=home).stderr
    rates, other = [], json.loads(profile.read_text())
    for m in other["matmul"]:
        m["gb_per_s"] = 4000.0
    for cores in (1, 64):
        (tmp_path / "cores.json").write_text(json.dumps(other | {"cores": cores}))
        rates.append(plan(pack, home, "--profile", tmp_path / "cores.json", "--context", 4096)["tokens_per_second_full_context"])
    assert rates[1] > 1.05 * rates[0]  # the kernels are the same, attention's multiply-adds are not
