"""Fixtures that several command line tests import: kindling as a vendor folder that may be written to, and the int4 pack of it."""
import shutil

import pytest

from hearth_command import ROOT, hearth


@pytest.fixture(scope="module")
def vendor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "kindling"
    shutil.copytree(ROOT / "models/kindling", folder)
    return folder


@pytest.fixture(scope="module")
def pack(vendor):
    out = vendor.parent / "int4"
    hearth("convert", vendor, out, "--precision", "int4")
    return out
