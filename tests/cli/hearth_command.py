"""The `hearth` program as the tests run it (the variable HEARTH names another build of it), and the arrays that it writes."""
import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
HEARTH = os.environ.get("HEARTH", str(ROOT / "build/release/cli/hearth"))


def hearth(*arguments, code=0, state=None, stdin="", timeout=120, **options):
    """code: what it must exit with, None: anything. state: a folder in the place of ~/.local/state."""
    env = {**os.environ, "XDG_STATE_HOME": str(state)} if state else None
    done = subprocess.run([HEARTH, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=timeout, env=env, **options)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done


def read_safetensors(path):
    data = Path(path).read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    kinds = {"F32": np.float32, "I32": np.int32, "U8": np.uint8}
    return {k: np.frombuffer(data, kinds[v["dtype"]], offset=8 + n + v["data_offsets"][0], count=int(np.prod(v["shape"], dtype=int))).reshape(v["shape"])
            for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}
