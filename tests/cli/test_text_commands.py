"""hearth tokenize and hearth render against the golden cases, and how they behave when called wrongly."""
import json
import subprocess

import pytest

from hearth_command import HEARTH, ROOT

MODEL = str(ROOT / "models/kindling")


def golden(name):
    return json.loads((ROOT / "tests/golden" / name).read_text())


def call(*arguments, stdin=b"[]"):
    return subprocess.run([HEARTH, *arguments], input=stdin, capture_output=True, timeout=120)


def answer(*arguments, value):
    result = call(*arguments, "--model", MODEL, "--json", stdin=json.dumps(value).encode())
    assert result.returncode == 0, result.stderr.decode()
    assert result.stderr == b""
    assert result.stdout.count(b"\n") == 1 and result.stdout.endswith(b"\n")
    result.stdout.decode("ascii")
    return json.loads(result.stdout)


def test_tokenize_gives_the_golden_ids_and_decode_the_texts():
    cases = golden("tokenizer/cases.json")
    assert answer("tokenize", value=[c["text"] for c in cases]) == [c["ids"] for c in cases]
    assert answer("tokenize", "--decode", value=[c["ids"] for c in cases]) == [c["decoded"] for c in cases]


def test_plain_recognises_no_special_token_and_keeps_the_text():
    texts = [c["text"] for c in golden("tokenizer/cases.json")]
    ids = answer("tokenize", "--plain", value=texts)
    assert max(max(row, default=0) for row in ids) < 3600
    assert answer("tokenize", "--decode", value=ids) == texts


def test_render_gives_the_golden_texts():
    cases = golden("template/cases.json")
    shown = [{k: c[k] for k in ("messages", "tools", "options")} for c in cases]
    assert answer("render", value=shown) == [c["text"] for c in cases]


def test_rendered_golden_prompts_tokenize_to_the_golden_ids():
    cases = golden("kindling/greedy.json")
    shown = [{"messages": c["messages"], "tools": c["tools"],
              "options": {"add_generation_prompt": True, "enable_thinking": c["enable_thinking"], "reasoning_effort": c["reasoning_effort"]}} for c in cases]
    assert answer("tokenize", value=answer("render", value=shown)) == [c["prompt_ids"] for c in cases]


def test_a_megabyte_of_one_character_is_quick():
    for text in ("Z" * 1_000_000, " " * 1_000_000, "\n" * 1_000_000, "\u0301" * 500_000):
        ids, = answer("tokenize", "--plain", value=[text])
        assert answer("tokenize", "--decode", value=[ids]) == [text]


@pytest.mark.parametrize("arguments", [
    ["tokenize"], ["tokenize", "--json"], ["tokenize", "--model", MODEL], ["tokenize", "--model", MODEL, "--json", "--what"],
    ["tokenize", "--model", MODEL, "--json", "--plain", "--decode"], ["tokenize", "--model", MODEL, "--json", "surplus"],
    ["render"], ["render", "--json"], ["render", "--model", MODEL],
])
def test_wrong_calls_exit_with_2_and_print_nothing(arguments):
    result = call(*arguments)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr


@pytest.mark.parametrize("arguments, stdin, named", [
    (["tokenize"], b"", "standard input"),
    (["tokenize"], b"{}", "array"),
    (["tokenize"], b"[1]", "[0]"),
    (["tokenize"], b'["a", null]', "[1]"),
    (["tokenize"], b'["\xff"]', "standard input"),
    (["tokenize"], b'["\\ud83d"]', "standard input"),
    (["tokenize"], b"[" * 100_000, "standard input"),
    (["tokenize", "--decode"], b'["a"]', "[0]"),
    (["tokenize", "--decode"], b"[[1], [3636]]", "[1]"),
    (["tokenize", "--decode"], b"[[-1]]", "[0]"),
    (["tokenize", "--decode"], b"[[1.5]]", "[0]"),
    (["tokenize", "--decode"], b"[[99999999999]]", "[0]"),
    (["render"], b"[7]", "[0]"),
    (["render"], b"[{}]", "messages"),
    (["render"], b'[{"messages": [{"role": "user", "content": 7}]}]', "messages[0].content"),
])
def test_wrong_input_exits_with_1_and_names_the_place(arguments, stdin, named):
    result = call(*arguments, "--model", MODEL, "--json", stdin=stdin)
    assert (result.returncode, result.stdout) == (1, b"")
    assert named in result.stderr.decode()


@pytest.mark.parametrize("command, file", [("tokenize", "tokenizer.json"), ("render", "config.json")])
def test_a_folder_that_is_no_model_exits_with_1_and_names_the_file(command, file, tmp_path):
    result = call(command, "--model", str(tmp_path), "--json")
    assert (result.returncode, result.stdout) == (1, b"")
    assert file in result.stderr.decode()
