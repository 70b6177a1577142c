"""hearth synth as a person meets it: the pack is one that every other command takes, impossible wishes get one sentence, and a run that does not end leaves nothing that opens."""
import functools
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import hearth_command
from hearth_command import HEARTH, read_safetensors

SMALL = ["--like", "kindling", "--layers", 4, "--dense-layers", 1, "--hidden", 256, "--vocab", 1024]
SLOW = ["--like", "bench", "--layers", 6]  # 1.3 GB: long enough to be caught at work
hearth = functools.partial(hearth_command.hearth, code=None, timeout=300)  # the tests look at every exit code themselves


def synth(target, *args):
    done = hearth("synth", target, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    target = tmp_path_factory.mktemp("synth") / "pack"
    synth(target, *SMALL)
    return target


def test_every_byte_of_it_verifies(pack):
    done = hearth("inspect", pack)
    assert done.returncode == 0, done.stderr
    assert "4: 1 dense, 3 sparse; 3 run their own indexer; 1 MTP" in done.stdout and "DAMAGED" not in done.stdout
    assert done.stdout.count("verified") == 11  # embedding, 5 layers of which 4 have experts, head
    assert not list(pack.glob("*.partial")) and not (pack / "convert.journal").exists()


def test_a_seed_names_one_pack(pack, tmp_path):
    first = json.loads((pack / "manifest.json").read_text())["identity"]
    assert synth(tmp_path / "again", *SMALL, "--threads", 1) == first
    assert synth(tmp_path / "other", *SMALL, "--seed", 2) != first
    assert synth(tmp_path / "int8", *SMALL, "--precision", "int8") != first
    assert synth(tmp_path / "even", *SMALL, "--skew", 0) != first


def test_it_answers(pack):
    done = hearth("run", pack, "What is the house made of?", "--max-tokens", 20)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_its_tokenizer_gives_text_back(pack):
    text = "grüße,\n42 \U0001F525 <|user|> aab"
    ids = hearth("tokenize", "--model", pack, "--json", "--plain", stdin=json.dumps([text]))
    assert ids.returncode == 0, ids.stderr
    assert len(json.loads(ids.stdout)[0]) < len(text.encode())  # " aab" is a token
    back = hearth("tokenize", "--model", pack, "--json", "--decode", stdin=ids.stdout)
    assert json.loads(back.stdout) == [text]


def test_its_logits_are_finite_and_different_at_every_position(pack, tmp_path):
    tokens = np.random.default_rng(3).integers(0, 900, 300).tolist()
    (tmp_path / "tokens.json").write_text(json.dumps([tokens]))
    done = hearth("logits", "--model", pack, "--tokens", tmp_path / "tokens.json", "--out", tmp_path / "out", "--drafts")
    assert done.returncode == 0, done.stderr
    for name, logits in read_safetensors(tmp_path / "out").items():
        assert np.isfinite(logits).all(), name
        assert 0.3 < logits.std() < 3, name
        assert len(set(logits.argmax(1))) > 50, name


def test_like_and_options_reach_the_same_pack(tmp_path):
    same = ["--layers", 2, "--moe-intermediate", 128]
    by_name = synth(tmp_path / "a", "--like", "bench", *same)
    by_options = synth(tmp_path / "b", "--hidden", 2048, "--dense-layers", 1, "--experts", 64, "--top-k", 8, "--skew", 0.12, *same)
    assert by_name == by_options


@pytest.mark.parametrize("args, code, words", [
    ([], 2, "missing argument"),
    (["x", "--like", "glm-9"], 2, "glm-5.2|bench|kindling"),
    (["x", "--precision", "exact"], 2, "int4|int8"),
    (["x", "--experts", "4"], 1, "num_experts_per_tok is 8, but there are only 4 routed experts"),
    (["x", "--layers", "3", "--dense-layers", "4"], 1, "4 dense layers are asked for, but only 3 layers in all"),
    (["x", "--vocab", "200"], 1, "vocabulary of 200 is too small"),
    (["no/such/parent/x"], 1, "no/such/parent/x: cannot create the folder"),
])
def test_impossible_wishes_get_one_sentence_and_leave_nothing(tmp_path, args, code, words):
    done = hearth("synth", *args, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr and done.stdout == ""
    assert code == 2 or done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_more_than_the_disk_holds_is_told_with_both_numbers(tmp_path):
    if shutil.disk_usage(tmp_path).free > 2e13:
        pytest.skip("this disk would hold it")
    done = hearth("synth", tmp_path / "pack", "--like", "glm-5.2", "--layers", 500, "--experts", 4096)
    assert done.returncode == 1
    assert "the pack needs" in done.stderr and "are free" in done.stderr
    assert not (tmp_path / "pack").exists()


@pytest.fixture
def small_disk(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", mount], capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here; tests/model/test_synth.c covers a write that fails")
    yield mount
    subprocess.run(["umount", mount], check=True)


def test_a_full_disk_is_told_before_the_work_and_nothing_is_left(small_disk):
    done = hearth("synth", small_disk / "pack", *SLOW)
    assert done.returncode == 1
    assert "needs 1." in done.stderr and "are free" in done.stderr
    assert not list(small_disk.iterdir())
    assert hearth("synth", small_disk, *SMALL).returncode == 0  # the root of a file system is an empty folder too


def test_a_disk_that_fills_up_meanwhile_is_an_error_and_nothing_is_left(small_disk):
    process = subprocess.Popen([HEARTH, "synth", small_disk / "pack", *map(str, ["--like", "bench", "--layers", 2, "--no-mtp"])],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = process.stderr.readline()
    with open(small_disk / "other", "wb") as other:  # all that is left
        try:
            while True:
                other.write(bytes(1 << 20))
                other.flush()
        except OSError:
            pass
    error = process.communicate(timeout=60)[1]
    assert "embedding written" in first
    if process.returncode == 0:
        pytest.skip("it was faster than the file that should have filled the disk")
    assert "no room for" in error or "No space left" in error
    (small_disk / "other").unlink(missing_ok=True)
    assert not list(small_disk.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_and_nothing_is_left(tmp_path, number):
    process = subprocess.Popen([HEARTH, "synth", tmp_path / "pack", *map(str, SLOW)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = process.stderr.readline()
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert "embedding written" in first
    assert process.returncode == 1
    assert "what was written is removed" in error
    assert not list(tmp_path.iterdir())


def test_killed_at_any_moment_it_leaves_no_pack_and_can_be_run_again(pack, tmp_path):
    begin = time.monotonic()
    synth(tmp_path / "timed", *SMALL)
    duration = time.monotonic() - begin
    target, n_killed = tmp_path / "pack", 0
    for i in range(20):
        process = subprocess.Popen([HEARTH, "synth", target, *map(str, SMALL)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(duration * (i % 10) / 10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            n_killed += 1
        if not (target / "manifest.json").exists():
            opened = hearth("inspect", "--no-verify", target)
            assert opened.returncode == 1 and opened.stdout == ""
        elif not (target / "convert.journal").exists():
            assert hearth("inspect", target).returncode == 0
            shutil.rmtree(target)
    assert n_killed > 5
    if target.exists():
        refused = hearth("synth", target, *SMALL, "--seed", 9)
        assert refused.returncode == 1 and "unfinished" in refused.stderr
    assert synth(target, *SMALL) == json.loads((pack / "manifest.json").read_text())["identity"]
    assert sorted(os.listdir(target)) == sorted(os.listdir(pack))


def test_memory_stays_far_below_the_pack(tmp_path):
    script = f"import resource, subprocess; subprocess.run([{HEARTH!r}, 'synth', {str(tmp_path / 'pack')!r}, '--layers', '4', '--threads', '4'], check=True, stdout=-3, stderr=-3); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run(["python3", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if b"__asan_init" not in Path(HEARTH).read_bytes():
        assert int(done.stdout) * 1024 < 100e6
    assert sum(f.stat().st_size for f in (tmp_path / "pack").iterdir()) > 800e6
