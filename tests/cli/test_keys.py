"""`hearth keys`: pairs are private and never overwritten, lists grow whole, and every refusal names the thing and the way out."""
import stat

import pytest

from hearth_command import hearth


def keys(*arguments, code=0):
    done = hearth("keys", *arguments, code=code, timeout=30)
    assert code == 0 or (done.stderr and not done.stdout)
    return done.stderr if code else done.stdout


@pytest.fixture()
def pair(tmp_path):
    path = tmp_path / "node.key"
    return path, keys("new", path).strip()


def test_new_makes_a_private_file_and_prints_the_public_key_only(pair):
    path, key = pair
    assert len(key) == 40 and key[0].isalnum()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys("show", path) == key + "\n"
    secret = [line.split()[1] for line in path.read_text().splitlines() if line.startswith("secret")]
    assert len(secret) == 1 and secret[0] not in keys("show", path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["node.key"]


def test_pairs_are_never_overwritten(pair):
    path, key = pair
    before = path.read_bytes()
    assert "never overwritten" in keys("new", path, code=1)
    assert path.read_bytes() == before and sorted(p.name for p in path.parent.iterdir()) == ["node.key"]
    assert "/nowhere/x" in keys("new", "/nowhere/x", code=1)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_secret_that_others_may_read_is_refused(pair, mode):
    path, _ = pair
    path.chmod(mode)
    assert "chmod 600" in keys("show", path, code=1)


def test_what_is_no_pair_is_refused(pair, tmp_path):
    path, key = pair
    other = keys("new", tmp_path / "other.key").strip()
    text = path.read_text()
    for bad, word in [(text.replace(key, other), "not a pair"), ("", "missing"), (text + text, "once each"), (text.replace("secret", "sekret"), "expected"),
                      (text[:-3], "expected"), ("\0" * 30, "not a text file"), ("x" * 70000, "bytes")]:
        path.write_text(bad)
        assert word in keys("show", path, code=1)
    assert "regular file" in keys("show", tmp_path, code=1)
    assert "cannot open" in keys("show", tmp_path / "none", code=1)


def test_trust_adds_each_key_once_and_keeps_what_people_wrote(pair, tmp_path):
    _, key = pair
    other = keys("new", tmp_path / "other.key").strip()
    trusted = tmp_path / "trusted"
    keys("trust", trusted, key, "desktop")
    assert trusted.read_text() == f"{key} desktop\n"
    trusted.write_text(f"# ours\n\n{key} desktop")  # no newline at the end
    keys("trust", trusted, key, "desktop")
    keys("trust", trusted, other, "laptop-2")
    assert trusted.read_text() == f"# ours\n\n{key} desktop\n{other} laptop-2\n"
    assert "another key" in keys("trust", trusted, other[::-1], "laptop-2", code=1)
    assert trusted.read_text().count("\n") == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["node.key", "other.key", "trusted"]


@pytest.mark.parametrize("key, name, word", [("short", "n", "public key"), ("x" * 41, "n", "public key"), ("'" * 40, "n", "public key"), (None, "a b", "name"),
                                             (None, "", "name"), (None, "n" * 65, "name"), (None, "ü", "name")])
def test_wrong_keys_and_names_are_refused(pair, tmp_path, key, name, word):
    assert word in keys("trust", tmp_path / "trusted", key or pair[1], name, code=1)
    assert not (tmp_path / "trusted").exists()


def test_a_damaged_list_is_refused_with_its_line(pair, tmp_path):
    trusted = tmp_path / "trusted"
    trusted.write_text("# fine\nnonsense here\n")
    assert f"{trusted}:2:" in keys("trust", trusted, pair[1], "n", code=1)
    assert trusted.read_text() == "# fine\nnonsense here\n"


@pytest.mark.parametrize("arguments", [["new"], ["show"], ["trust", "a", "b"], ["new", "a", "b"], ["lose", "a"], []])
def test_mistakes_in_the_call_exit_with_2(arguments):
    keys(*arguments, code=2)
