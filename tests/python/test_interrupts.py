# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in every kind of call that waits, and an interpreter that ends in the middle of things."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tqtest import Program, tqd_path

pytestmark = [pytest.mark.usefixtures("no_store"), pytest.mark.timeout(120)]

HEAD = """
import asyncio, os, signal, sys, threading, time
import torch
import transfer_queue as tq
from tensordict import TensorDict

# A shell's background job, and so everything that it starts, ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)

def rows(cnt, width):
    return TensorDict({"x": torch.ones(cnt, width)}, batch_size=[cnt])
"""


class Daemon:
    """A tqd that can be stopped and continued."""

    def __init__(self, capacity="64MiB"):
        ready, theirs = os.pipe()
        self._process = subprocess.Popen(
            [
                *(str(tqd_path()), "--ready-fd", str(theirs), "--log-level", "error"),
                *("--controller-listen", "tcp://127.0.0.1:*", "--unit-capacity", capacity),
            ],
            pass_fds=[theirs],
        )
        os.close(theirs)
        with os.fdopen(ready) as lines:
            self.address = lines.readline().strip()
        assert self.address, "tqd did not start"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def stop(self):
        """Returns when every thread of it has stopped, which takes a moment where CPUs are busy."""
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        while any("State:\tT" not in (task / "status").read_text() for task in tasks.iterdir()):
            time.sleep(0.001)

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)


# Each waits as long as the store is stopped.
STOPPED = {
    "put": 'tq.kv_batch_put(["b", "c"], "p", rows(2, 10))',
    "large put": 'tq.kv_batch_put(["b", "c"], "p", rows(2, 1_000_000))',
    "get": 'tq.kv_batch_get("a", "p")',
    "list": "tq.kv_list()",
    "clear": 'tq.kv_clear(["a"], "p")',
    "tags": 'tq.kv_put("a", "p", tag={"t": 1})',
    "fetch": 'tq.get_client().get_meta(["x"], 1, "p", task_name="t", timeout=60)',
    "status": 'tq.get_client().check_consumption_status("t", "p")',
    "reset": 'tq.get_client().reset_consumption("p")',
    "async": 'asyncio.run(tq.async_kv_batch_get("a", "p"))',
    "another client": "_core.Client(os.environ['ADDRESS'])",
}


def test_an_interrupt_ends_any_call_that_waits_for_a_store(no_store):
    """The store is stopped, so that no call can end by itself for 5 s."""
    calls = "\n".join(f"attempt({name!r}, lambda: {code})" for name, code in STOPPED.items())
    with (
        Daemon() as daemon,
        Program(
            HEAD
            + f"""
from transfer_queue import _core

def attempt(name, call):
    print(name)
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted")
    sys.stdin.readline()

tq.init({{"address": os.environ["ADDRESS"]}})
tq.kv_put("a", "p", {{"x": torch.ones(1_000_000)}})
print("ready")
sys.stdin.readline()
{calls}
tq.kv_put("after", "p", {{"x": torch.ones(3)}})
print(float(tq.kv_batch_get("after", "p")["x"].values().sum()))
""",
            ADDRESS=daemon.address,
        ) as child,
    ):
        assert child.hear() == "ready"
        for name in STOPPED:
            daemon.stop()
            child.say()
            assert child.hear() == name
            time.sleep(0.3)
            began = time.monotonic()
            os.kill(child.pid, signal.SIGINT)
            assert child.hear() == "interrupted", name
            took = time.monotonic() - began
            daemon.go_on()
            assert took < 1.5, f"{name}: {took:.1f} s"
        child.say()
        assert child.hear() == "3.0"


def test_an_interrupt_ends_a_put_that_waits_for_space(no_store):
    with (
        Daemon("32MiB") as daemon,
        Program(
            HEAD
            + """
tq.init({"address": os.environ["ADDRESS"]})
print("filling")
try:
    for i in range(100):
        tq.kv_batch_put([f"k{i}"], "p", rows(1, 500_000))
except KeyboardInterrupt:
    print("interrupted")
keys = list(tq.kv_list("p")["p"])
print(0 < len(keys) < 20)
tq.kv_clear(keys, "p")
tq.kv_put("after", "p", {"x": torch.ones(3)})
print(float(tq.kv_batch_get("after", "p")["x"].values().sum()))
""",
            ADDRESS=daemon.address,
        ) as child,
    ):
        assert child.hear() == "filling"
        time.sleep(2)
        os.kill(child.pid, signal.SIGINT)
        assert [child.hear() for _ in range(3)] == ["interrupted", "True", "3.0"]


# An interpreter ends while threads wait, a put is under way, a task is pending, and results live.
IN_THE_MIDDLE = """
def forever(call):
    def run():
        try:
            while True:
                call()
        except BaseException:
            pass
    threading.Thread(target=run, daemon=True).start()

client = tq.get_client()
tq.kv_batch_put(["a", "b"], "p", rows(2, 1_000_000))
kept = tq.kv_batch_get(["a", "b"], "p")
number = iter(range(10**9))
forever(lambda: client.get_meta(["never"], 1, "p", task_name="t", timeout=60))
forever(lambda: tq.kv_batch_put([f"k{next(number) % 4}"], "q", rows(1, 1_000_000)))
forever(lambda: tq.kv_batch_get(["a", "b"], "p"))
forever(lambda: asyncio.run(client.async_get_meta(["never"], 1, "p", task_name="u", timeout=60)))
loop = asyncio.new_event_loop()
pending = loop.create_task(client.async_get_meta(["never"], 1, "p", task_name="v", timeout=60))
loop.run_until_complete(asyncio.sleep(0.3))
print("ending", flush=True)
"""


@pytest.mark.parametrize("where", ["embedded", "connected"])
def test_an_interpreter_that_ends_in_the_middle_ends_well(no_store, where):
    with Daemon() as daemon:
        how = "" if where == "embedded" else "{'address': os.environ['ADDRESS']}"
        code = f"{HEAD}\ntq.init({how})\n{IN_THE_MIDDLE}"
        with Program(code, is_fresh=True, ADDRESS=daemon.address) as child:
            assert child.hear() == "ending"
            began = time.monotonic()
            status, rest = child.end(60)
        assert (status, rest) == (0, "")
        assert time.monotonic() - began < 20
        with Program(
            HEAD
            + """
tq.init({"address": os.environ["ADDRESS"]})
tq.kv_put("after", "p", {"x": torch.ones(3)})
print(float(tq.kv_batch_get("after", "p")["x"].values().sum()))
""",
            ADDRESS=daemon.address,
        ) as child:
            assert child.hear() == "3.0"
