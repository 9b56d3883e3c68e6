# SPDX-License-Identifier: Apache-2.0
"""tqd as a process: what it reads, what it says, how it starts and ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

import pytest
from procs import (
    ENV,
    TQD,
    Client,
    end_workers,
    seconds,
    stat,
    tq,
    tq_json,
    tq_start,
    until,
    workers,
)

USAGE, ADDRESS, CONTROLLER = 2, 3, 4

# What a client may be told by a store that goes.
GOING = {
    "E_CLOSING",
    "E_UNREACHABLE",
    "E_PEER_LOST",
    "E_SESSION_EXPIRED",
    "E_OUTCOME_UNKNOWN",
    "E_STORE_GONE",
    "E_UNIT_LOST",
}


def tqd(*args, status=0, env=None, limit_s=10):
    """Runs a tqd that ends by itself; all that it said."""
    done = subprocess.run(
        [TQD, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**ENV, **(env or {})},
        timeout=seconds(limit_s),
        text=True,
    )
    assert done.returncode == status, f"exit status {done.returncode}: {done.stdout}"
    return done.stdout


def test_an_unknown_yaml_key_is_told_with_its_line_and_the_nearest(tmp_path):
    (tmp_path / "tq.yaml").write_text("role: store\nunit:\n  capasity: 1GiB\n")
    said = tqd("--config", str(tmp_path / "tq.yaml"), status=USAGE)
    assert f"{tmp_path / 'tq.yaml'}:3: no option 'unit.capasity'" in said
    assert "did you mean 'unit.capacity'?" in said


def test_what_is_printed_is_a_file_that_it_reads(tmp_path):
    printed = tqd("--print-config", "--unit-capacity", "1 GiB", env={"TQ_ROLE": "unit"})
    assert "capacity: '1 GiB'  # --unit-capacity" in printed
    assert "role: 'unit'  # TQ_ROLE" in printed
    (tmp_path / "tq.yaml").write_text(printed)
    assert "good" in tqd("--check-config", "--config", str(tmp_path / "tq.yaml"))
    again = tqd("--print-config", "--config", str(tmp_path / "tq.yaml"))
    assert [line.split("  #")[0] for line in again.splitlines()] == [
        line.split("  #")[0] for line in printed.splitlines()
    ]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--frobnicate"], "unknown argument '--frobnicate'"),
        (["--unit-capacity", "lots"], "--unit-capacity: unit.capacity: 'lots' is not bytes"),
        (["--role", "master"], "store, controller or unit"),
        (["--config", "/no/such/file"], "/no/such/file: No such file"),
        (["--config"], "--config"),
        (["--ready-fd", "seven"], "--ready-fd"),
        (["--controller-listen", "nonsense"], "'nonsense' is no address"),
        (["--controller-listen", "tcp://127.0.0.1:*", "--controller-sampler", "Best"], "'Best'"),
        (["--security-secret-key-file", "/no/key"], "/no/key"),
    ],
)
def test_bad_usage_ends_with_2_and_says_which(args, says):
    assert says in tqd(*args, status=USAGE)


def test_help_names_every_option():
    text = tqd("--help")
    for flag in ("--config", "--role", "--unit-capacity", "--security-secret-key-file"):
        assert flag in text


def test_a_port_in_use_is_named_with_the_option_to_change():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        said = tqd("--controller-listen", address, status=ADDRESS)
        assert address in said
        assert "in use" in said
        assert "controller.listen" in said


def test_an_ipc_path_in_use_or_in_no_folder_is_named(daemons):
    store = daemons.store()
    path = store.address.split("#")[0]
    said = tqd("--controller-listen", path, status=ADDRESS)
    assert path in said and "in use" in said
    tq("ls", address=store.address)  # whose socket is still there
    said = tqd("--controller-listen", "ipc:///no/such/folder/s", status=ADDRESS)
    assert "/no/such/folder/s" in said


def test_an_ipc_path_that_a_dead_daemon_left_is_taken_over(daemons):
    store = daemons.store()
    store.kill()
    again = daemons.start(controller_listen=store.address.split("#")[0], unit_capacity="64MiB")
    tq("put", "p", "a", "x=1", address=again.address)
    assert "E_STORE_GONE" in tq("ls", address=store.address, status=3)


def test_a_unit_without_its_controller_ends_with_4_within_seconds():
    said = tqd("--role", "unit", "--unit-controller", "tcp://127.0.0.1:1", status=CONTROLLER)
    assert "tcp://127.0.0.1:1" in said


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_controller_and_units_as_processes_are_a_store(daemons, transport):
    where = f"ipc://{daemons.folder}/c" if transport == "ipc" else "tcp://127.0.0.1:*"
    controller = daemons.controller(controller_listen=where)
    # Without a unit there is nowhere to put: that waits, and says so in the end.
    began = time.monotonic()
    said = tq("put", "p", "a", "x=1", "--timeout", "1", address=controller.address, status=4)
    assert "no storage unit is there" in said
    assert time.monotonic() - began >= 0.9
    early = tq_start("put", "p", "early", "x=1", address=controller.address)
    time.sleep(0.3)
    for i in range(2):
        where = f"ipc://{daemons.folder}/u{i}" if transport == "ipc" else "tcp://127.0.0.1:*"
        daemons.unit(controller.address, unit_listen=where)
    assert early.wait(seconds(10)) == 0, early.communicate()[1]
    for i in range(8):
        tq("put", "p", f"k{i}", f"x={i}", address=controller.address)
    rows = tq_json("ls", "p", address=controller.address)
    assert {row["unit"] for row in rows} == {1, 2}  # both are used
    got = tq_json("get", "p", *[f"k{i}" for i in range(8)], address=controller.address)
    assert [got[f"k{i}"]["x"]["value"] for i in range(8)] == [str(i) for i in range(8)]
    end_workers(workers(controller.address, 2))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_ends_it_with_success_and_clients_with_a_reason(daemons, number):
    store = daemons.store("tcp")
    started = workers(store.address, 3)
    waiting = Client("fetch", store.address, "p", "train", 2, 60_000, "x")
    time.sleep(0.3)
    began = time.monotonic()
    store.signal(number)
    assert store.wait(seconds(10)) == 0
    ended = time.monotonic() - began
    for client in (*started, waiting):
        client.process.stdin.flush()
        client.process.wait(seconds(1.5))  # told by the store, they need no silence to notice
        said = client.process.stdout.read().strip()
        assert client.process.returncode == 1, said
        assert said.split(":")[0] in GOING, said
    assert ended < seconds(10)


def test_an_idle_store_ends_at_once(daemons):
    store = daemons.store()
    tq("put", "p", "a", "x=1", address=store.address)
    began = time.monotonic()
    store.signal(signal.SIGTERM)
    assert store.wait(seconds(10)) == 0
    assert time.monotonic() - began < seconds(2)
    assert "ERROR" not in store.text().upper().replace("E_", "")
    assert not os.path.exists(store.address.split("#")[0].removeprefix("ipc://"))


def test_a_second_signal_ends_it_at_once(daemons):
    store = daemons.store("tcp")
    started = workers(store.address, 1, large_bytes=50_000_000)
    # The put in hand keeps the first one waiting: its client is stopped in the middle.
    started[0].process.send_signal(signal.SIGSTOP)
    store.signal(signal.SIGTERM)
    time.sleep(0.5)
    if store.process.poll() is None:
        store.signal(signal.SIGTERM)
        assert store.wait(seconds(2)) in (-signal.SIGTERM, 0)
    started[0].process.send_signal(signal.SIGCONT)
    started[0].kill()


def test_a_controller_that_ends_leaves_units_that_wait_for_the_next(daemons):
    controller = daemons.controller()
    unit = daemons.unit(controller.address)
    tq("put", "p", "a", "x=1", address=controller.address)
    controller.stop()
    time.sleep(0.5)
    assert unit.process.poll() is None
    again = daemons.controller(controller_listen=controller.address.split("#")[0])
    until(lambda: stat(again.address)["units"], 10, "the unit with the new controller")
    tq("put", "p", "b", "x=2", address=again.address)
    assert [row["key"] for row in tq_json("ls", "p", address=again.address)] == ["b"]
    (figures,) = stat(again.address)["units"]
    assert figures["cells_published"] == 1  # what the old store had is gone
