"""The example files of deploy/: a daemon takes every option that they set or offer."""
import re

import pytest

from harness import COORDINATOR, NODE, ROOT, run


@pytest.mark.parametrize("daemon", [NODE, COORDINATOR], ids=lambda path: path.name)
def test_every_option_of_an_example_is_taken(daemon, tmp_path):
    """Those that are commented out too. What stops the daemon then is that the model is not there."""
    text, n_offered = re.subn(r"^# (?=[a-z-]+ = )", "", (ROOT / f"deploy/{daemon.name}.ini").read_text(), flags=re.M)
    assert n_offered
    (tmp_path / "daemon.ini").write_text(text)
    done = run(daemon, "--config", tmp_path / "daemon.ini", "--model", tmp_path / "none", ok=False, timeout=20)
    assert done.returncode == 1 and f"{tmp_path / 'none'}/config.json" in done.stderr, done.stderr
