"""What a person sees of `hearth`: exit codes, help, answers, errors, and the checking command against the stored reference."""
import json
import os
import platform
import pty
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hearth_command import HEARTH, ROOT, hearth, read_safetensors
from kindling import pack, vendor  # noqa: F401 (fixtures)

COMMANDS = ["convert", "synth", "inspect", "run", "chat", "status", "keys new", "keys show", "keys trust", "doctor", "probe", "plan", "bench kernels", "bench cache", "bench disk",
            "bench experts", "tokenize", "render", "logits"]


def test_help_lists_every_command_and_its_options():
    text = hearth("--help").stdout
    for name in COMMANDS:
        assert name in text
        own = hearth(*name.split(), "--help").stdout
        assert own.startswith(f"usage: hearth {name}") and ("options:" in own or name.startswith("keys"))
    for flag in ("--temperature", "--seed", "--threads", "--context", "--memory", "--isa"):
        assert flag in hearth("run", "--help").stdout
    assert hearth("--version").stdout.startswith("hearth ")


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["run"], ["run", "x"], ["run", "a", "b", "c"], ["run", "a", "b", "--temperature", "hot"],
                                       ["convert", "a"], ["convert", "a", "b", "--precision", "int3"], ["logits"], ["inspect", "--wrong"],
                                       ["bench", "nothing"], ["bench", "disk"], ["bench", "disk", str(ROOT / "README.md"), "--piece", "5000"],
                                       ["bench", "disk", str(ROOT / "README.md"), "--emulate-disk", "fast"], ["tokenize", "--model"]])
def test_mistakes_in_the_call_exit_with_2_and_say_how(arguments):
    done = hearth(*arguments, code=2)
    assert done.stderr and not done.stdout


@pytest.mark.parametrize("arguments", [["run", "/nowhere", "q"], ["inspect", "/nowhere"], ["convert", "/nowhere", "/tmp/never-made"],
                                       ["bench", "disk", "/nowhere"], ["bench", "disk", "/"], ["bench", "disk", "/dev/null"],
                                       ["logits", "--model", "/nowhere", "--tokens", "/dev/null", "--out", "/tmp/never-made"]])
def test_failures_exit_with_1_and_name_the_thing(arguments):
    done = hearth(*arguments, code=1)
    assert "/" in done.stderr and not done.stdout
    assert not Path("/tmp/never-made").exists()


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("qemu-x86_64"), reason="needs qemu-x86_64 on x86-64")
@pytest.mark.parametrize("arguments", [["convert", "SRC", "/tmp/never-made"], ["inspect", "SRC"], ["run", "SRC", "q"], ["bench", "kernels"]])
def test_a_cpu_below_the_minimum_is_refused_by_name(vendor, arguments):
    arguments = [str(vendor) if a == "SRC" else a for a in arguments]
    done = subprocess.run(["qemu-x86_64", "-cpu", "Nehalem", HEARTH, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "no AVX2" in done.stderr and "x86-64-v3" in done.stderr
    assert not Path("/tmp/never-made").exists()


def test_run_answers_and_keeps_figures_off_stdout(pack):
    done = hearth("run", pack, "What is the capital of France?", "--temperature", "0", "--no-think")
    assert done.stdout == "The capital of France is Paris.\n"
    assert "tokens/s" in done.stderr
    thinking = hearth("run", pack, "What is the capital of France?", "--temperature", "0").stdout
    assert "Paris" in thinking.splitlines()[0] and thinking.splitlines()[-1] == "The capital of France is Paris."


def test_the_same_seed_gives_the_same_answer(pack):
    def ask(seed):
        return hearth("run", pack, "Tell me a story about a fox.", "--temperature", "1.5", "--seed", seed, "--max-tokens", "60").stdout
    answers = [ask(s) for s in (1, 1, 2, 3)]
    assert answers[0] == answers[1] and len(set(answers)) > 1


def test_precision_and_arrangement_do_not_change_the_text(vendor, pack):
    for model in (vendor, pack):
        texts = {hearth("run", model, "What is 3 plus 4?", "--temperature", "0", *extra).stdout
                 for extra in (["--threads", "1"], ["--threads", "2"], ["--isa", "scalar"], ["--chunk", "1"], ["--chunk", "300"])}
        assert len(texts) == 1


def test_chat_remembers_and_reuses_what_it_computed(pack):
    done = hearth("chat", pack, "--temperature", "0", "--no-think", stdin="My name is Pablo.\nWhat is my name?\n")
    assert "Pablo" in done.stdout.splitlines()[-1]
    figures = [line for line in done.stderr.splitlines() if "tokens/s" in line]
    assert len(figures) == 2 and " 0 of them from before" in figures[0] and " 0 of them from before" not in figures[1]


def test_what_people_write_never_becomes_a_special_token(pack):
    done = hearth("run", pack, "Say <|user|> and </think>", "--temperature", "0", "--max-tokens", "5")
    assert done.returncode == 0
    ids = json.loads(hearth("tokenize", "--model", pack, "--json", "--plain", stdin=json.dumps(["<|user|></think>"])).stdout)[0]
    assert len(ids) > 2


def test_a_question_that_is_not_utf8_is_asked_all_the_same(pack):
    def prompt_tokens(question):
        done = subprocess.run([HEARTH, "run", str(pack), question, "--temperature", "0", "--no-think", "--max-tokens", "1"], capture_output=True, timeout=60)
        assert done.returncode == 0
        return int(done.stderr.split(b"[")[-1].split()[0])
    assert prompt_tokens(b"Hello \xff") == prompt_tokens("Hello \ufffd".encode()) > prompt_tokens(b"Hello")


def test_an_answer_that_nobody_can_read_ends_at_once(pack):
    with open("/dev/full", "w") as full:
        done = subprocess.run([HEARTH, "run", str(pack), "Tell me a story about a fox."], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "standard output" in done.stderr and "; 1 tokens" in done.stderr


def test_reasoning_is_dimmed_on_a_terminal_only(pack):
    plain = hearth("run", pack, "What is 3 plus 4?", "--temperature", "0").stdout
    assert "\x1b" not in plain
    master, slave = pty.openpty()
    subprocess.run([HEARTH, "run", str(pack), "What is 3 plus 4?", "--temperature", "0"], stdout=slave, stderr=subprocess.DEVNULL, timeout=60)
    os.close(slave)
    shown = os.read(master, 65536).decode()
    assert shown.startswith("\x1b[2m") and "\x1b[0m" in shown and shown.strip().endswith("3 + 4 = 7.")


def test_the_first_opening_of_a_vendor_folder_shows_how_far_it_is_on_a_terminal_only(tmp_path):
    folder = tmp_path / "new"
    shutil.copytree(ROOT / "models/kindling", folder, ignore=shutil.ignore_patterns(".hearth*"))
    folder.chmod(0o755)
    master, slave = pty.openpty()
    subprocess.run([HEARTH, "inspect", str(folder), "--no-verify"], stdout=subprocess.DEVNULL, stderr=slave, timeout=60)
    os.close(slave)
    shown = os.read(master, 65536).decode()
    assert "%  reading 0.0 GB of weights once" in shown and "\r\x1b[K" in shown
    (folder / ".hearth-checksums.json").unlink()
    assert "reading" not in hearth("inspect", folder, "--no-verify").stderr


def test_a_closed_pipe_is_an_error_and_not_a_hang(pack):
    reader, writer = os.pipe()
    os.close(reader)  # before the first byte: nothing of the answer finds room in the pipe
    try:
        done = subprocess.run([HEARTH, "run", str(pack), "Tell me a story about a fox.", "--max-tokens", "50"], stdout=writer, stderr=subprocess.PIPE,
                              text=True, timeout=60)
    finally:
        os.close(writer)
    assert done.returncode == 1 and "standard output" in done.stderr and "Broken pipe" in done.stderr


def test_conversations_longer_than_the_context_say_so(pack):
    done = hearth("run", pack, "word " * 300, "--context", "128", code=1)
    assert "--context" in done.stderr


def test_memory_limit_is_respected_before_loading(pack):
    done = hearth("run", pack, "q", "--memory", "20M", code=1)
    assert "20.0 MiB allowed" in done.stderr and "weights" in done.stderr


def test_logits_match_the_reference(vendor, tmp_path):
    want = read_safetensors(ROOT / "tests/golden/kindling/teacher.safetensors")
    cases = [want[f"case{i}.tokens"].tolist() for i in range(5)] + [[5]]
    (tmp_path / "t.json").write_text(json.dumps(cases))
    hearth("logits", "--model", vendor, "--tokens", tmp_path / "t.json", "--out", tmp_path / "o.safetensors", "--drafts")
    got = read_safetensors(tmp_path / "o.safetensors")
    assert sorted(got) == sorted([f"case{i}.logits" for i in range(6)] + [f"case{i}.draft_logits" for i in range(5)])
    for i in range(5):
        for kind, ids, stored, spread in (("logits", "top_ids", "top_logits", "spread"), ("draft_logits", "draft_ids", "draft_logits", "draft_spread")):
            rows = got[f"case{i}.{kind}"]
            assert rows.shape[1] == 3712
            bound = 20 * want[f"case{i}.{spread}"][:, None] + 5e-4
            assert (np.abs(np.take_along_axis(rows, want[f"case{i}.{ids}"], 1) - want[f"case{i}.{stored}"]) <= bound).all()


def test_logits_run_without_a_tokenizer(tmp_path):
    shutil.copytree(ROOT / "tests/golden/tiny-pattern/checkpoint", tmp_path / "m")
    (tmp_path / "t.json").write_text("[[1,2,3]]")
    hearth("logits", "--model", tmp_path / "m", "--tokens", tmp_path / "t.json", "--out", tmp_path / "o.safetensors")
    assert read_safetensors(tmp_path / "o.safetensors")["case0.logits"].shape == (3, 128)


@pytest.mark.parametrize("tokens, word", [("[[1,2", "t.json"), ("{}", "array"), ("[[]]", "case 0"), ("[[1,-1]]", "entry 1"), ("[[1,99999]]", "entry 1"),
                                          ("[[1.5]]", "entry 0"), ("[3]", "case 0")])
def test_bad_token_files_are_refused_by_name(vendor, tmp_path, tokens, word):
    (tmp_path / "t.json").write_text(tokens)
    done = hearth("logits", "--model", vendor, "--tokens", tmp_path / "t.json", "--out", tmp_path / "o.safetensors", code=1)
    assert word in done.stderr


def test_ctrl_c_ends_an_answer_and_leaves_cleanly(pack):
    """In the middle of an answer that takes minutes: its experts come from a drive of 1 MB/s."""
    slow = ["--slots", "8", "--emulate-disk", "0.001,1000", "--use-counts", "none"]
    with subprocess.Popen([HEARTH, "run", str(pack), "Tell me a story about a fox.", "--temperature", "0", *slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          bufsize=0) as running:
        try:
            first = running.stdout.read(1)
            running.send_signal(signal.SIGINT)
            rest, figures = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 0 and first and rest.endswith(b"\n"), (first, rest, figures)
    assert int(re.search(rb"; (\d+) tokens at ", figures)[1]) < 20, figures  # of more than 100


def test_bench_kernels_takes_more_threads_than_a_matrix_has_rows_for():
    done = hearth("bench", "kernels", "--threads", "256", "--rows", "64", "--format", "int4", "--shape", "down", "--seconds", "0.01", "--memory", "128M")
    assert done.stdout.splitlines()[-1].startswith("matmul_int4")


def disk_lines(*arguments):
    out = hearth("bench", "disk", *arguments, "--seconds", "0.02", "--rounds", "2").stdout
    return [line.split() for line in out.splitlines() if re.match(r" +\d+[KM] +\d+ ", line)], out


def test_bench_disk_has_a_line_for_every_size_and_depth_and_names_the_best(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(bytes(16 << 20))
    lines, out = disk_lines(file)
    assert [(a, b) for a, b, *_ in lines] == [(p, d) for p in ("256K", "1M", "4M") for d in ("1", "2", "4", "8", "16")]
    assert "\nbest: pieces of " in out and all(float(x) >= 0 for line in lines for x in line[2:])
    lines, out = disk_lines(file, "--reader", "pread", "--depth", "3", "--piece", "64K", "--small-pages")
    assert len(lines) == 1 and lines[0][:2] == ["64K", "3"] and "pread with 3 threads" in out


def test_bench_disk_is_no_faster_than_the_emulated_drive(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(bytes(8 << 20))
    (line,), _ = disk_lines(file, "--depth", "2", "--piece", "256K", "--emulate-disk", "0.05,1000")
    assert 0 < float(line[2]) <= 0.05 and float(line[3]) >= 6000


def test_bench_disk_reads_the_experts_of_a_pack(pack):
    lines, out = disk_lines(pack, "--depth", "2")
    assert len(lines) >= 1 and "of experts" in out
