# SPDX-License-Identifier: Apache-2.0
"""A soak: memory and descriptors of daemons and clients stay where they are, and so do the bytes.

TQ_SOAK_MINUTES makes it longer (`make soak MINUTES=30`); TQ_SOAK_PYTHON, an interpreter that has the
package, runs four of the sixteen clients; TQ_SOAK_CSV names a file for all samples.
"""

from __future__ import annotations

import csv
import os
import statistics
import time
from pathlib import Path

from procs import Client, stat

MINUTES = float(os.environ.get("TQ_SOAK_MINUTES", "0.5"))
IS_LONG = MINUTES >= 10
# From the third quarter to the last, of the least and of the median that a process has, whichever
# grew less: what is under way just then comes on top. A short soak still warms up in the third one: caches of buffers and
# of freed memory fill by what sizes happen to come. So it may grow by 2 MiB: 2 KiB for each batch of
# rows at a daemon, 14 KiB at a client.
GROWTH = 0.01
GROWTH_BYTES = 0 if IS_LONG else 2 << 20
SOAK = os.environ["TQ_TEST_SOAK"]
PYTHON = os.environ.get("TQ_SOAK_PYTHON")
# Between a producer's batches: a soak is about time, and leaves a machine to others meanwhile.
PACE_MS = 100
PAIRS = 8
PYTHON_PAIRS = 2 if PYTHON else 0


def rss_bytes(pid):
    """What it has in memory; in a short soak without shared memory, which is the rows that happen to
    lie in a unit just then."""
    words = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    kib = {word[0]: int(word[1]) for word in words if word[0] in ("VmRSS:", "RssShmem:")}
    return (kib["VmRSS:"] - (0 if IS_LONG else kib["RssShmem:"])) << 10


def fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def client(side, address, pair):
    """One of a pair that has a partition to itself."""
    program = [SOAK]
    if pair < PYTHON_PAIRS:
        program = [PYTHON, "-W", "ignore", str(Path(__file__).with_name("soak_client.py"))]
    return Client(side, address, f"pair-{pair}", PACE_MS, program=program)


class Samples:
    """Memory and descriptors of processes, by name, over time."""

    def __init__(self, pids):
        self.pids = pids
        self.taken = []  # (seconds, {name: (bytes, descriptors)})

    def take(self, at):
        self.taken.append((at, {name: (rss_bytes(p), fds(p)) for name, p in self.pids.items()}))

    def last(self, name, part, of):
        """(bytes, descriptors) of the part-th piece of `of`, from the end backwards."""
        size = len(self.taken) // of
        end = len(self.taken) - (part - 1) * size
        return [figures[name] for _, figures in self.taken[end - size : end]]

    def growth(self, name):
        """From the third quarter to the last, of the least and of the median, in parts; and the
        last median."""
        third, last = ([rss for rss, _ in self.last(name, part, 4)] for part in (2, 1))
        least, middle = ((of(last) - of(third)) / of(third) for of in (min, statistics.median))
        return least, middle, statistics.median(last)

    def write(self, path):
        with open(path, "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["seconds", "process", "rss_bytes", "descriptors"])
            for at, figures in self.taken:
                for name, (rss, cnt) in figures.items():
                    table.writerow([f"{at:.0f}", name, rss, cnt])


def test_memory_and_descriptors_stay_where_they_are(daemons):
    controller = daemons.controller()
    units = [daemons.unit(controller.address, unit_capacity="256MiB") for _ in range(2)]
    pids = {"controller": controller.pid, "unit-0": units[0].pid, "unit-1": units[1].pid}
    clients = {
        f"{side}-{i}": client(side, controller.address, i)
        for i in range(PAIRS)
        for side in ("produce", "consume")
    }
    for started in clients.values():
        started.expect("working")
    pids |= {name: started.process.pid for name, started in clients.items()}

    samples = Samples(pids)
    began = time.monotonic()
    every = max(0.5, MINUTES * 60 / 600)
    while time.monotonic() - began < MINUTES * 60:
        for name, started in clients.items():
            assert started.process.poll() is None, f"{name}: {started.end()}"
        samples.take(time.monotonic() - began)
        time.sleep(every)
    worked = 0
    for started in clients.values():
        status, said = started.end()
        assert status == 0, said
        worked += int(said.removeprefix("worked "))
    figures = stat(controller.address)
    if "TQ_SOAK_CSV" in os.environ:
        samples.write(os.environ["TQ_SOAK_CSV"])

    moved = sum(unit["put_bytes"] + unit["get_bytes"] for unit in figures["units"])
    print(f"\n{worked} batches, {moved / 1e9:.1f} GB in {MINUTES:g} minutes")
    grown = {}
    for name in pids:
        growth, middle, rss = samples.growth(name)
        counts = sorted({cnt for _, cnt in samples.last(name, 1, 2)})
        print(
            f"{name:12} {rss / 2**20:8.1f} MiB  least {growth:+.2%}  median {middle:+.2%}  "
            f"descriptors {counts}"
        )
        # A leak raises both: the least is that of one moment, the median that of what was under way.
        if min(growth, middle) > max(GROWTH, GROWTH_BYTES / rss) or len(counts) > 1:
            grown[name] = (growth, counts)
    assert not grown
    counters = figures["controller"]["counters"]
    assert counters["sessions_lost"] == 0
    assert counters["units_lost"] == 0
    assert counters["puts_failed"] == 0
