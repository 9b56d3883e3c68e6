# SPDX-License-Identifier: Apache-2.0
"""Folders with short names (sockets live in them) and daemons that end with the test."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

# What the tests share is the module procs, beside this file.
sys.path.insert(0, str(Path(__file__).parent))

from procs import Daemon


class Daemons:
    """Starts daemons in one folder; stops them in the end, which each must survive well."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tqp-"))
        self.started = []

    def start(self, *flags, **options):
        daemon = Daemon(self.folder, *flags, **options)
        self.started.append(daemon)
        return daemon

    def store(self, transport="ipc", **options):
        """A store of two units, small enough for a busy machine."""
        if transport == "ipc":
            listen = f"ipc://{self.folder}/store-{len(self.started)}"
        else:
            listen = "tcp://127.0.0.1:*"
        options = {"controller_listen": listen, "unit_capacity": "256MiB"} | options
        return self.start(**options)

    def controller(self, **options):
        options = {"controller_listen": "tcp://127.0.0.1:*"} | options
        return self.start(role="controller", name="controller", **options)

    def unit(self, controller, **options):
        options = {"unit_capacity": "128MiB"} | options
        return self.start(role="unit", name="unit", unit_controller=controller, **options)

    def end(self):
        try:
            for daemon in reversed(self.started):
                if daemon.process.poll() is None:
                    daemon.stop()
        finally:
            for daemon in self.started:
                daemon.kill()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def daemons():
    made = Daemons()
    yield made
    made.end()


@pytest.fixture(scope="module")
def module_daemons():
    made = Daemons()
    yield made
    made.end()


@pytest.fixture(scope="module", params=["ipc", "tcp"])
def store(request, module_daemons):
    """A store that the module's tests share, over each transport."""
    return module_daemons.store(request.param)
