# SPDX-License-Identifier: Apache-2.0
"""A wall clock that jumps: time that matters is counted by the one that doesn't."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from procs import CLIENT, ENV, Client, end_workers, seconds, stat, tq

JUMPING = {"LD_PRELOAD": os.environ["TQ_TEST_SHIM_CLOCK"]}


def jumping(mode, address, *args):
    return Client(
        mode, address, *args, program=("env", f"LD_PRELOAD={JUMPING['LD_PRELOAD']}", CLIENT)
    )


def test_the_clock_of_these_tests_jumps():
    code = "import time\nfor _ in range(12): print(int(time.time())); time.sleep(0.1)"
    printed = subprocess.run(
        [sys.executable, "-c", code], env={**ENV, **JUMPING}, capture_output=True, text=True
    ).stdout
    times = [int(line) for line in printed.split()]
    assert len(times) == 12
    assert max(times) - min(times) >= 3600


def test_a_wall_clock_that_jumps_changes_nothing(daemons):
    store = daemons.store("tcp", env=JUMPING)
    started = [jumping("work", store.address, f"work-{i}", 300_000) for i in range(3)]
    for worker in started:
        worker.expect("working")
    # A deadline comes when it should: neither at once nor in an hour.
    began = time.monotonic()
    early = jumping("fetch", store.address, "never", "train", 1, 3000, "x")
    status, said = early.end()
    assert status == 1 and said.startswith("E_NOT_READY"), said
    assert 2.9 < time.monotonic() - began < 3 + seconds(3)
    waiting = jumping("fetch", store.address, "p", "train", 1, 60_000, "x")
    time.sleep(7)  # longer than any silence that ends a session
    tq("put", "p", "a", "x=1", address=store.address, env=JUMPING)
    assert waiting.end() == (0, "fetched 1")
    end_workers(started)
    figures = stat(store.address)
    counters = figures["controller"]["counters"]
    # Of the early one: the fetch that failed, and the session that it did not close.
    assert (counters["failed"], counters["sessions_lost"], counters["units_lost"]) == (1, 1, 0)
    assert sum(unit["transfers"]["expired"] for unit in figures["units"]) == 0
    assert "was held up" not in store.text()
