"""The same bytes on another instruction set architecture: hearth cross-compiled for aarch64 (scalar kernels), run under qemu, against the native one."""
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = os.environ.get("HEARTH", str(ROOT / "build/release/cli/hearth"))
ARM = ["qemu-aarch64", str(ROOT / "build/aarch64/cli/hearth")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arm") / "tiny-share"
    shutil.copytree(ROOT / "tests/golden/tiny-share/checkpoint", folder)
    tokens = folder.parent / "tokens.json"
    tokens.write_text(json.dumps([[1, 2, 3], [(7 * i * i + 3) % 256 for i in range(80)], [5]]))
    return folder, tokens


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def logits(binary, folder, tokens, out):
    run(*binary, "logits", "--model", folder, "--tokens", tokens, "--out", out, "--drafts", "--threads", "2")
    return out.read_bytes()


@pytest.mark.parametrize("precision", ["vendor", "int8", "int4"])
def test_logits_are_the_same_bytes(checkpoint, tmp_path, precision):
    folder, tokens = checkpoint
    if precision != "vendor":
        run(NATIVE, "convert", folder, tmp_path / "pack", "--precision", precision)
        folder = tmp_path / "pack"
    want = logits([NATIVE], folder, tokens, tmp_path / "native.safetensors")
    assert logits(ARM, folder, tokens, tmp_path / "arm.safetensors") == want
    assert len(want) > 2 * 80 * 256 * 4


def test_packs_are_the_same_bytes(checkpoint, tmp_path):
    folder, _ = checkpoint
    for name, binary in (("native", [NATIVE]), ("arm", ARM)):
        run(*binary, "convert", folder, tmp_path / name, "--precision", "int4")
    files = sorted(p.name for p in (tmp_path / "native").iterdir())
    assert files == sorted(p.name for p in (tmp_path / "arm").iterdir())
    for name in files:
        assert (tmp_path / "native" / name).read_bytes() == (tmp_path / "arm" / name).read_bytes(), name
