"""Fixtures that several command line tests import: kindling as a vendor folder that may be written to, and the int4 pack of it."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEARTH = os.environ.get("HEARTH", str(ROOT / "build/release/cli/hearth"))


@pytest.fixture(scope="module")
def vendor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "kindling"
    shutil.copytree(ROOT / "models/kindling", folder)
    return folder


@pytest.fixture(scope="module")
def pack(vendor):
    out = vendor.parent / "int4"
    subprocess.run([HEARTH, "convert", vendor, out, "--precision", "int4"], check=True, capture_output=True, timeout=120)
    return out
