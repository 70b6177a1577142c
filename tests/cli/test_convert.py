"""hearth convert and hearth inspect as a person meets them: killed at random moments, on a full disk, on a terminal, on wrong input."""
import filecmp
import functools
import os
import pty
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import hearth_command
from hearth_command import HEARTH, ROOT

KINDLING = ROOT / "models/kindling"
TINY = ROOT / "tests/golden/tiny-fp8/checkpoint"
SEED = 20241107
hearth = functools.partial(hearth_command.hearth, code=None, timeout=300)  # the tests look at every exit code themselves


def same(a, b):
    names = sorted(os.listdir(a))
    return names == sorted(os.listdir(b)) and filecmp.cmpfiles(a, b, names, shallow=False)[0] == names


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed int4 pack of kindling."""
    target = tmp_path_factory.mktemp("whole") / "pack"
    done = hearth("convert", KINDLING, target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def quick_folder(tmp_path):
    """In memory where there is room: a killed process loses nothing there that it would keep on a disk, and 150 conversions need not wait for fsync."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shutil.disk_usage(shm).free < 200e6:
        yield tmp_path
        return
    folder = shm / f"hearth-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def test_killed_at_50_random_moments_the_next_run_finishes_the_same_pack(whole, quick_folder):
    rng = random.Random(SEED)
    begin = time.monotonic()
    assert hearth("convert", KINDLING, quick_folder / "timed").returncode == 0
    duration = time.monotonic() - begin
    print(f"seed {SEED}, {duration:.2f} s for a whole run")
    killed = went_on = moment = 0
    while killed < 50:
        moment += 1
        assert moment < 300, "most runs end before they can be killed"
        target = quick_folder / f"pack-{moment}"
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            begin = time.monotonic()
            process = subprocess.Popen([HEARTH, "convert", KINDLING, target], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(rng.uniform(0, duration))
                duration = min(duration, time.monotonic() - begin)  # the first one was slow: aim earlier
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed += 1
            if target.is_dir() and not (target / "manifest.json").exists():
                opened = hearth("inspect", "--no-verify", target)
                assert opened.returncode == 1, f"seed {SEED}, moment {moment}: an unfinished conversion opened as a model\n{opened.stdout}"
        if (target / "manifest.json").exists():  # complete but for the removal of the journal
            assert hearth("inspect", target).returncode == 0
        done = hearth("convert", KINDLING, target)
        assert done.returncode == 0, f"seed {SEED}, moment {moment}: {done.stderr}"
        went_on += " kept" in done.stderr
        assert same(whole, target), f"seed {SEED}, moment {moment}: other bytes"
        shutil.rmtree(target)
    print(f"{killed} runs killed, {went_on} conversions went on from finished files")
    assert went_on >= 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_with_a_sentence_and_nothing_half_done(whole, tmp_path, number):
    target = tmp_path / "pack"
    process = subprocess.Popen([HEARTH, "convert", KINDLING, target, "--threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = process.stderr.readline()  # a line per finished part: it is at work
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert "embedding written" in first
    assert process.returncode == 1
    assert "finished files are kept" in error
    assert not list(target.glob("*.partial")) and not (target / "manifest.json").exists()
    assert hearth("convert", KINDLING, target).returncode == 0
    assert same(whole, target)


def test_under_nohup_a_closed_terminal_does_not_stop_it(whole, tmp_path):
    process = subprocess.Popen(["nohup", HEARTH, "convert", KINDLING, tmp_path / "pack", "--threads", "1"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert "embedding written" in process.stderr.readline()
    process.send_signal(signal.SIGHUP)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 0, error
    assert same(whole, tmp_path / "pack")


def test_one_and_two_threads_write_the_same_bytes(whole, tmp_path):
    for threads in (1, 2):
        assert hearth("convert", KINDLING, tmp_path / str(threads), "--threads", threads).returncode == 0
        assert same(whole, tmp_path / str(threads))


def test_a_file_size_limit_is_an_error_that_names_the_file(tmp_path):
    done = hearth("convert", KINDLING, tmp_path / "pack", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500000, 500000)))
    assert done.returncode == 1
    assert "File too large" in done.stderr and str(tmp_path / "pack") in done.stderr
    assert not list((tmp_path / "pack").glob("*.partial"))


def test_a_full_file_system_is_told_before_anything_is_written(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", mount], capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here; the limit on file sizes covers the writing side")
    try:
        done = hearth("convert", KINDLING, mount / "pack")
        assert done.returncode == 1
        assert "needs 0.02 GB" in done.stderr and "are free" in done.stderr
        assert not list((mount / "pack").glob("dense-*"))
    finally:
        subprocess.run(["umount", mount], check=True)


def test_memory_stays_far_below_the_model(tmp_path):
    """40 MB would not hold the 70 MB that the exact pack has."""
    script = f"import resource, subprocess; subprocess.run([{HEARTH!r}, 'convert', {str(KINDLING)!r}, {str(tmp_path / 'pack')!r}, '--precision', 'exact', '--threads', '1'], check=True, stderr=-3); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run(["python3", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.split()[-1]) * 1024
    if b"__asan_init" not in Path(HEARTH).read_bytes():
        assert peak < 40e6, peak
    assert sum(f.stat().st_size for f in (tmp_path / "pack").iterdir()) > 60e6


def test_on_a_terminal_one_line_is_rewritten(tmp_path):
    outer, inner = pty.openpty()
    process = subprocess.Popen([HEARTH, "convert", KINDLING, tmp_path / "pack"], stdout=subprocess.DEVNULL, stderr=inner)
    os.close(inner)
    shown = b""
    while True:
        try:
            piece = os.read(outer, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert process.wait() == 0
    os.close(outer)
    assert shown.count(b"\n") == 0 and b"\r" in shown


def test_inspect_tells_sizes_and_verifies(whole):
    done = hearth("inspect", whole)
    assert done.returncode == 0
    for words in ("pack, int4", "10: 3 dense, 7 sparse; 4 run their own indexer; 1 MTP", "experts-10", "int4", "verified", "expert record 36864 bytes", "a token reads"):
        assert words in done.stdout
    assert done.stdout.count("verified") == 21
    quiet = hearth("inspect", "--no-verify", whole)
    assert quiet.returncode == 0 and "verified" not in quiet.stdout


def test_inspect_names_the_damaged_file_and_record(whole, tmp_path):
    target = tmp_path / "pack"
    shutil.copytree(whole, target)
    with open(target / "experts-07", "r+b") as f:
        f.seek(4096 + 5 * 36864 + 100)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 1]))
    done = hearth("inspect", target)
    assert done.returncode == 1
    assert "experts-07: record 5 does not match its checksum" in done.stderr
    assert done.stdout.count("DAMAGED") == 1 and done.stdout.count("verified") == 20


def test_inspect_of_a_vendor_folder_writes_checksums_and_then_holds_it_to_them(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    os.chmod(folder, 0o755)
    first = hearth("inspect", folder)
    assert first.returncode == 0 and "trusting these weights on first use" in first.stderr and (folder / ".hearth-checksums.json").exists()
    second = hearth("inspect", folder)
    assert second.returncode == 0 and "trusting" not in second.stderr and second.stdout == first.stdout
    shard = folder / "model-00001-of-00003.safetensors"
    os.chmod(shard, 0o644)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    third = hearth("inspect", folder)
    assert third.returncode == 1 and "model-00001-of-00003.safetensors: tensor" in third.stderr and "checksum" in third.stderr


def test_a_folder_that_may_not_be_written_to_has_its_checksums_in_the_state_directory(tmp_path):
    """Not even by root, who could."""
    folder, state = tmp_path / "model", tmp_path / "state"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns(".hearth*"))
    before = sorted(os.listdir(folder))
    folder.chmod(0o555)
    try:
        first, second = (hearth("inspect", "--no-verify", folder, state=state) for _ in range(2))
    finally:
        folder.chmod(0o755)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "trusting these weights on first use" in first.stderr and "trusting" not in second.stderr
    assert sorted(os.listdir(folder)) == before and len(list((state / "hearth").glob("*.json"))) == 1


@pytest.mark.parametrize("args, code, words", [
    (["convert"], 2, "missing argument"),
    (["convert", KINDLING], 2, "missing argument"),
    (["convert", KINDLING, "/tmp/x", "--precision", "int3"], 2, "int4|int8|exact"),
    (["convert", KINDLING, "/tmp/x", "--threads", "-1"], 2, "--threads"),
    (["convert", "/nonexistent", "/tmp/hearth-never"], 1, "/nonexistent/config.json"),
    (["inspect"], 2, "missing argument"),
    (["inspect", "/nonexistent"], 1, "/nonexistent"),
    (["inspect", "/etc"], 1, "/etc/config.json"),
])
def test_wrong_calls_say_what_is_wrong(args, code, words):
    done = hearth(*args)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout == ""
