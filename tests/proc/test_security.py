# SPDX-License-Identifier: Apache-2.0
"""CURVE keys: made, checked, right, wrong and missing."""

from __future__ import annotations

import stat as modes
import subprocess
from pathlib import Path

import pytest
from procs import ENV, TQD, seconds, tq, tq_json


def genkey(folder):
    Path(folder).mkdir(exist_ok=True)
    return subprocess.run(
        [TQD, "--genkey", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENV,
        text=True,
        timeout=seconds(10),
    )


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    done = genkey(folder)
    assert done.returncode == 0, done.stdout
    return folder


def options(keys):
    return {
        "security_secret_key_file": keys / "tq.key",
        "security_public_key_file": keys / "tq.pub",
    }


@pytest.fixture(scope="module")
def secure(keys, module_daemons):
    return module_daemons.store("tcp", **options(keys))


def test_a_key_pair_is_made_once_and_its_secret_is_the_owners(keys):
    assert modes.S_IMODE((keys / "tq.key").stat().st_mode) == 0o600
    assert len((keys / "tq.pub").read_text().strip()) == 40
    before = (keys / "tq.key").read_text()
    done = genkey(keys)
    assert done.returncode != 0
    assert "tq.key" in done.stdout and "exists" in done.stdout
    assert (keys / "tq.key").read_text() == before


def test_a_secret_key_that_others_can_read_is_refused_with_the_remedy(keys, tmp_path):
    open_key = tmp_path / "tq.key"
    open_key.write_text((keys / "tq.key").read_text())
    open_key.chmod(0o640)
    done = subprocess.run(
        [TQD, "--security-secret-key-file", str(open_key)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENV,
        text=True,
        timeout=seconds(10),
    )
    assert done.returncode == 2
    assert f"chmod 600 {open_key}" in done.stdout


@pytest.mark.parametrize("text", ["", "short", "x" * 41, "\\" * 40])
def test_a_file_that_has_no_key_is_refused(keys, tmp_path, text):
    bad = tmp_path / "bad.key"
    bad.write_text(text)
    bad.chmod(0o600)
    for option in ("--security-secret-key-file", "--security-public-key-file"):
        other = {
            "--security-secret-key-file": ["--security-public-key-file", str(keys / "tq.pub")],
            "--security-public-key-file": ["--security-secret-key-file", str(keys / "tq.key")],
        }[option]
        done = subprocess.run(
            [TQD, "--controller-listen", "tcp://127.0.0.1:*", option, str(bad), *other],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ENV,
            text=True,
            timeout=seconds(10),
        )
        assert done.returncode == 2, done.stdout
        assert "key" in done.stdout


def test_one_key_of_the_pair_is_not_enough(keys):
    for option, name in (("secret", "tq.key"), ("public", "tq.pub")):
        done = subprocess.run(
            [
                TQD,
                "--controller-listen",
                "tcp://127.0.0.1:*",
                f"--security-{option}-key-file",
                str(keys / name),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ENV,
            text=True,
            timeout=seconds(10),
        )
        assert done.returncode == 2, done.stdout
        assert "security.secret_key_file" in done.stdout
        assert "security.public_key_file" in done.stdout


def test_the_right_key_opens_the_store_by_option_and_by_environment(secure, keys, tmp_path):
    at = {"address": secure.address}
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    tq("put", "p", "a", f"x=@{tmp_path / 'large'}", "--server-key", str(keys / "tq.pub"), **at)
    env = {"TQ_SERVER_KEY_FILE": str(keys / "tq.pub")}
    assert tq_json("get", "p", "a", env=env, **at)["a"]["x"]["bytes"] == 3_000_000
    checks = tq_json("doctor", env=env, **at)
    assert all(check["ok"] for check in checks), checks


def test_a_wrong_key_is_refused_within_seconds_and_named(secure, keys, tmp_path):
    genkey(tmp_path / "other")
    other = str(tmp_path / "other" / "tq.pub")
    said = tq("ls", "--server-key", other, address=secure.address, status=3, limit_s=6.5)
    assert "key" in said and secure.address.split("#")[0] in said


def test_no_key_is_refused_within_seconds_and_the_remedy_named(secure):
    said = tq("ls", address=secure.address, status=3, limit_s=6.5)
    assert "key" in said and secure.address.split("#")[0] in said


def test_a_key_for_a_store_without_keys_is_refused(daemons, keys):
    store = daemons.store("tcp")
    said = tq(
        "ls", "--server-key", str(keys / "tq.pub"), address=store.address, status=3, limit_s=6.5
    )
    assert "key" in said
    tq("ls", address=store.address)


def test_a_key_file_that_is_none_is_bad_usage(secure, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_text("short\n")
    for name, says in (("empty", "empty"), ("short", "40"), ("missing", "No such file")):
        said = tq("ls", "--server-key", str(tmp_path / name), address=secure.address, status=2)
        assert says in said


def test_units_join_with_the_controllers_key_and_not_without(daemons, keys):
    controller = daemons.controller(**options(keys))
    env = {"TQ_SERVER_KEY_FILE": str(keys / "tq.pub")}
    daemons.unit(controller.address, security_server_key_file=keys / "tq.pub", **options(keys))
    tq("put", "p", "a", "x=1", address=controller.address, env=env)
    with pytest.raises(AssertionError, match=r"did not start.*key"):
        daemons.unit(controller.address)
    assert len(tq_json("stat", address=controller.address, env=env)["units"]) == 1


def test_a_store_on_ipc_needs_no_key(daemons, keys):
    store = daemons.store("ipc", **options(keys))
    tq("put", "p", "a", "x=1", address=store.address)
