# SPDX-License-Identifier: Apache-2.0
"""tools/setup with every outside command replaced by one that writes down how it was called."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "tools" / "setup"


class Machine:
    """A machine with the given Debian packages installed, and its record of calls."""

    def __init__(self, root):
        self.root = root
        self.bin = root / "bin"
        self.log = root / "calls"
        self.log.touch()
        (root / "tools").mkdir()
        shutil.copy(SETUP, root / "tools" / "setup")
        (root / "tools" / "requirements.txt").write_text("one>=1,<2\n# words\ntwo; x\ntwo; y\n")
        self.bin.mkdir()
        for name in "sh dirname mkdir grep sed cat cp env tr uniq xargs echo".split():
            (self.bin / name).symlink_to(shutil.which(name))
        self.command("dpkg-query", 'grep -qx "$4" "$ROOT/installed" && echo installed')
        self.command("apt-get", 'echo "apt-get $*" >>"$ROOT/calls"')
        self.command("id", "echo 0")
        # `python -m venv FOLDER` makes a folder whose python writes its calls down.
        self.command(
            "fake-python",
            """case "$*" in
            --version) echo Python 3.99 ;;
            "-m venv"*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
            "-m pip --version") [ "${0##*/}" = python ] ;;
            "-m pip"*) echo "pip $*" >>"$ROOT/calls" ;;
            esac""",
        )

    def command(self, name, script):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def installed(self, *names):
        (self.root / "installed").write_text("".join(f"{name}\n" for name in names))

    def run(self, *args, **env):
        return subprocess.run(
            [self.root / "tools" / "setup", *args],
            env={"PATH": str(self.bin), "ROOT": str(self.root), "TQ_PYTHON": "fake-python", **env},
            capture_output=True,
            text=True,
        )

    def calls(self):
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def needed():
    """The names that the script asks for when its interpreter brings venv and headers."""
    text = SETUP.read_text()
    names = text.split("printf '%s\\n' ", 1)[1].split("\n    #", 1)[0].replace("\\", " ").split()
    release = platform.freedesktop_os_release()
    of_release = re.findall(rf"'{release['ID']} {release.get('VERSION_ID')}'\) echo (\S+)", text)
    return names + of_release


def test_only_missing_packages_are_installed_and_named(machine):
    machine.installed(*[name for name in needed() if name not in ("clang", "uthash-dev")])
    done = machine.run("apt")
    assert done.returncode == 0, done.stderr
    assert "setup: apt-get install clang uthash-dev" in done.stdout
    assert [call.split()[1] for call in machine.calls()] == ["update", "install"]
    assert machine.calls()[1].split()[-2:] == ["clang", "uthash-dev"]


def test_with_everything_there_it_says_and_does_nothing(machine):
    machine.installed(*needed())
    done = machine.run("apt")
    assert (done.returncode, done.stdout, machine.calls()) == (0, "", [])


def test_without_root_or_sudo_it_names_what_to_install(machine):
    machine.installed(*needed()[1:])
    machine.command("id", "echo 1000")
    done = machine.run("apt")
    assert done.returncode == 1
    assert needed()[0] in done.stdout
    assert machine.calls() == []


def test_sudo_is_used_where_we_are_not_root(machine):
    machine.installed()
    machine.command("id", "echo 1000")
    machine.command("sudo", 'echo "sudo $1" >>"$ROOT/calls"; exec "$@"')
    assert machine.run("apt").returncode == 0
    assert machine.calls()[0] == "sudo apt-get"


def test_the_systems_packages_are_left_alone_when_asked(machine):
    machine.installed()
    done = machine.run("apt", TQ_NO_APT="1")
    assert "missing Debian packages: gcc" in done.stdout
    assert machine.calls() == []


def test_a_second_run_installs_nothing_and_a_changed_list_does(machine):
    machine.installed(*needed())
    first = machine.run()
    assert first.returncode == 0, first.stderr
    assert "pip install into .venv: one two" in first.stdout
    assert len(machine.calls()) == 1
    assert machine.run().stdout == ""
    assert len(machine.calls()) == 1
    (machine.root / "tools" / "requirements.txt").write_text("three\n")
    machine.run()
    assert len(machine.calls()) == 2


def test_a_torch_of_ones_own_replaces_the_listed_one(machine):
    machine.installed(*needed())
    (machine.root / "tools" / "requirements.txt").write_text("one\ntorch>=2\n")
    assert machine.run(TQ_TORCH="torch==9").returncode == 0
    assert machine.calls()[0].endswith("torch==9")
    assert (machine.root / ".venv" / ".wanted").read_text() == "one\n"
