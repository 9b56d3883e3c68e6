# SPDX-License-Identifier: Apache-2.0
"""Daemons and commands as processes, and what tests ask about them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

TQD = os.environ["TQ_TEST_TQD"]
TQ = os.environ["TQ_TEST_TQ"]
CLIENT = os.environ["TQ_TEST_CLIENT"]
# Seconds are multiplied by this: sanitized programs are slower.
FACTOR = int(os.environ.get("TQ_TEST_FACTOR", "1"))

# Nothing of the caller's own store or options reaches what is tested.
ENV = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("TQ_") or name.startswith("TQ_TEST_")
}


def seconds(n):
    return n * FACTOR


class Daemon:
    """A tqd that is ready, or a failed test. Options are flags without their dashes; prefix is
    what stands in front of the command (networks.py)."""

    def __init__(self, folder, *flags, name="tqd", env=None, prefix=(), **options):
        for option, value in options.items():
            flags += (f"--{option.replace('_', '-')}", str(value))
        if "log_level" not in options:
            flags += ("--log-level", "warn")
        self.log = Path(folder) / f"{name}-{time.monotonic_ns()}.log"
        out, into = os.pipe()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, TQD, *flags, "--ready-fd", str(into)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**ENV, **(env or {})},
                pass_fds=[into],
            )
        os.close(into)
        readable, _, _ = select.select([out], [], [], seconds(20))
        self.address = os.read(out, 4096).decode().strip() if readable else ""
        os.close(out)
        if not self.address:
            self.kill()
            raise AssertionError(f"tqd did not start: {self.text()}")

    @property
    def pid(self):
        return self.process.pid

    def text(self):
        return self.log.read_text(errors="replace")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, limit_s):
        """Exit status; a failed test when it takes longer."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"tqd is there after {limit_s} s: {self.text()}") from None

    def stop(self):
        """Asks it to end, which it must do with success, in time and without a complaint."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        status = self.wait(seconds(11))
        assert status == 0, f"exit status {status}: {self.text()}"
        assert "ERROR: " not in self.text()  # of a sanitizer

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def tq(*args, address=None, status=0, limit_s=30, env=None, data=False, prefix=()):
    """Runs tq, which must end with the status; its output (data: as bytes), or what it complained
    of when the status is not 0."""
    where = ["--address", address] if address else []
    done = subprocess.run(
        [*prefix, TQ, *args, *where],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**ENV, **(env or {})},
        timeout=seconds(limit_s),
    )
    said = done.stderr.decode(errors="replace")
    assert done.returncode == status, f"tq {args}: exit status {done.returncode}: {said}"
    if status != 0 and not done.stdout:
        return said
    return done.stdout if data else done.stdout.decode()


def tq_json(*args, **kwargs):
    return json.loads(tq(*args, "--json", **kwargs))


def tq_start(*args, address=None, env=None):
    """tq as a process that goes on."""
    where = ["--address", address] if address else []
    return subprocess.Popen(
        [TQ, *args, *where],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENV, **(env or {})},
    )


class Client:
    """tests/proc/client.c, or a program like it, connected."""

    def __init__(self, mode, address, *args, program=(CLIENT,)):
        self.process = subprocess.Popen(
            [*program, mode, address, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENV,
        )
        self.expect("connected")

    def expect(self, line):
        got = self.process.stdout.readline().strip()
        assert got == line, got

    def end(self):
        """Lets it finish; exit status and what else it printed."""
        try:
            out, _ = self.process.communicate(timeout=seconds(30))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the client does not end") from None
        return self.process.returncode, out.strip()

    def kill(self):
        self.process.kill()
        self.process.communicate()


def workers(address, cnt, large_bytes=300_000):
    """Clients that are at work."""
    started = [Client("work", address, f"work-{i}", large_bytes) for i in range(cnt)]
    for client in started:
        client.expect("working")
    return started


def end_workers(started):
    """Every one of them has worked until now, and met nothing unusual."""
    for client in started:
        status, said = client.end()
        assert status == 0, said
        assert said.startswith("worked ")


def until(what, limit_s, text=""):
    """Asks until what() is true, and returns that."""
    end = time.monotonic() + seconds(limit_s)
    while True:
        got = what()
        if got:
            return got
        assert time.monotonic() < end, f"not within {seconds(limit_s)} s: {text or what}"
        time.sleep(0.02)


def stat(address, env=None):
    return json.loads(tq("stat", address=address, env=env))


def partition(figures, name):
    """The partition's figures, or None."""
    found = [p for p in figures["controller"]["partitions"] if p["name"] == name]
    return found[0] if found else None


def unit_addresses(address, env=None):
    """Where each unit can be reached from other processes."""
    return [
        next(a for a in unit["addresses"].split(",") if not a.startswith("inproc"))
        for unit in stat(address, env)["controller"]["units"]
    ]
