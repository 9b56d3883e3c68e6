# SPDX-License-Identifier: Apache-2.0
"""Thousands of clients of one controller, a few of which work (`make clients N=8192`).

What an idle one costs is nearly all libzmq's, so a connection that says nothing is measured beside.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from pathlib import Path

from procs import ENV, stat, until

MANY = os.environ["TQ_TEST_MANY"]
CLIENTS = int(os.environ.get("TQ_MANY_CLIENTS", "256"))
PROCESSES = 4 if CLIENTS > 1024 else 2
WORKING = max(PROCESSES, CLIENTS // 32)
WORK_MS = 3000 if CLIENTS > 1024 else 1000
IDLE_BYTES_MAX = 32 << 10
# libzmq has a slot for each message in each of a connection's two queues, and begins to touch new ones
# with every message, PINGs included, until it has used two blocks of 256 of each.
SLOT_BYTES = 64


class Many:
    """tests/proc/many.c in several processes, which share what they are told to do."""

    def __init__(self, address):
        def all_files():
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

        self.processes = [
            subprocess.Popen(
                [MANY, address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=ENV,
                preexec_fn=all_files,
            )
            for _ in range(PROCESSES)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def do(self, what, *numbers):
        """Every process does it; the words that each answers after the first."""
        began = time.monotonic()
        for process in self.processes:
            print(what, *numbers, file=process.stdin, flush=True)
        answers = [process.stdout.readline().split() for process in self.processes]
        for answer in answers:
            assert answer and answer[0].startswith(what[:4]), " ".join(answer)
        print(f"{what} {numbers}: {time.monotonic() - began:.1f} s, {answers}")
        return [answer[1:] for answer in answers]


def memory_bytes(pid):
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1]) << 10


def files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def of_each(cnt):
    return cnt // PROCESSES


def a_store(daemons):
    # Thousands of clients that share few cores with whoever else is there are slower than real ones.
    controller = daemons.controller(controller_silence="30s")
    for _ in range(2):
        daemons.unit(controller.address)
    return controller


def test_a_connection_that_says_nothing_costs_what_libzmq_takes(daemons):
    controller = a_store(daemons)
    with Many(controller.address) as many:
        before, files_before = memory_bytes(controller.pid), files(controller.pid)
        many.do("bare", of_each(CLIENTS))
        until(lambda: files(controller.pid) >= files_before + CLIENTS, 60)
        each = (memory_bytes(controller.pid) - before) / CLIENTS
        print(f"{each:.0f} bytes of the controller for a connection of libzmq")
        assert each < IDLE_BYTES_MAX
        many.do("drop")
        until(lambda: files(controller.pid) <= files_before + 2, 60)


def test_many_clients_of_which_some_work(daemons):
    controller = a_store(daemons)
    limit = resource.prlimit(controller.pid, resource.RLIMIT_NOFILE)[0]
    assert limit > 2 * CLIENTS + 100, f"raise the hard limit of open files, {limit} (ulimit -Hn)"
    with Many(controller.address) as many:
        before, files_before = memory_bytes(controller.pid), files(controller.pid)
        many.do("open", of_each(CLIENTS))
        each = (memory_bytes(controller.pid) - before) / CLIENTS
        messages = stat(controller.address)["controller"]["counters"]["messages"] / CLIENTS
        print(f"{each:.0f} bytes of the controller for a client, after {messages:.1f} messages")
        assert each - 2 * SLOT_BYTES * messages < IDLE_BYTES_MAX
        # Some work hard while the others only are there; then every one of them does, at once. A call
        # that fails, or bytes that differ, end the process that met them.
        for working, ms in ((WORKING, WORK_MS), (CLIENTS, 1)):
            rounds = sum(int(answer[0]) for answer in many.do("work", of_each(working), ms))
            assert rounds >= working

        def sessions():
            return stat(controller.address)["controller"]["sessions_cnt"]

        assert sessions() > CLIENTS
        figures = stat(controller.address)["controller"]
        assert figures["counters"]["failed"] == 0
        assert figures["counters"]["busy"] == 0
        assert sum(part["rows"] for part in figures["partitions"]) == 0
        many.do("close")
        until(lambda: sessions() == 1, 60)  # a client that dialled twice has left a second one
        until(lambda: files(controller.pid) <= files_before + 2, 60)
