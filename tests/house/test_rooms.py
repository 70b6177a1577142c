"""The house rules that are cheap to check: who may include whom (docs/ARCHITECTURE.md, section 2), getenv in one place, no unfinished marks."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["common", "kernels", "model", "proto", "node", "coordinator", "cli"]
MAY_USE = {
    "common": {"common"},
    "kernels": {"kernels", "common"},
    "model": {"model", "kernels", "common"},
    "proto": {"proto", "common"},
    "node": {"node", "model", "kernels", "proto", "common"},
    "coordinator": {"coordinator", "model", "proto", "common"},
    "cli": set(ROOMS),
}
# Libraries that only some rooms may know.
LIBRARIES = {
    "jansson.h": {"common", "model", "cli", "coordinator"},
    "pcre2.h": {"model"},
    "xxhash.h": {"model", "node", "cli"},
    "ini.h": {"common"},
    "omp.h": {"kernels"},
    "immintrin.h": {"kernels"},
    "zmq.h": {"proto"},
    "protobuf-c/protobuf-c.h": {"proto"},
    "microhttpd.h": {"coordinator", "node"},
    "liburing.h": {"node"},
    "cuda_runtime.h": {"kernels", "node"},
}
NEVER_MENTIONS = {  # headers of a room name nothing that belongs to the rooms above it
    "common": r"\b(layer|expert|token|node)s?\b",
    "kernels": r"\b(socket|GLM|fopen)\b",
}


def sources(room):
    return sorted(p for p in (ROOT / room).rglob("*.[ch]")) if (ROOT / room).is_dir() else []


def strip_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


def test_every_include_obeys_the_table_of_rooms():
    wrong, seen = [], 0
    for room in ROOMS:
        for path in sources(room):
            for name in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', path.read_text(), re.M):
                other = name.split("/")[0]
                seen += 1
                if "/" in name and other in ROOMS + ["tests"] and other not in MAY_USE[room]:
                    wrong.append(f"{path.relative_to(ROOT)} includes {name}")
                if name in LIBRARIES and room not in LIBRARIES[name]:
                    wrong.append(f"{path.relative_to(ROOT)} includes <{name}>")
    assert seen > 100
    assert not wrong, "\n".join(wrong)


def test_rooms_do_not_name_what_is_above_them():
    wrong = [f"{p.relative_to(ROOT)}: {m}" for room, words in NEVER_MENTIONS.items() for p in sources(room)
             for m in re.findall(words, strip_comments(p.read_text()))]
    assert not wrong, wrong


def test_getenv_lives_in_one_place():
    wrong = [str(p.relative_to(ROOT)) for room in ROOMS for p in sources(room) if re.search(r"\bgetenv\s*\(", p.read_text()) and p.parent.name != "common"]
    assert not wrong, wrong


def test_nothing_is_marked_unfinished():
    wrong = [f"{p.relative_to(ROOT)}: {m.group(0)}" for room in ROOMS for p in sources(room)
             for m in re.finditer(r"\b(TODO|FIXME|XXX|HACK)\b", p.read_text())]
    assert not wrong, wrong


def test_intrinsics_stay_in_their_isa_folder():
    wrong = [str(p.relative_to(ROOT)) for p in sources("kernels") if "_mm512_" in p.read_text() and p.parent.name != "avx512"]
    wrong += [str(p.relative_to(ROOT)) for p in sources("kernels") if "_mm256_" in p.read_text() and p.parent.name not in ("avx2", "avx512")]
    assert not wrong, wrong
