# SPDX-License-Identifier: Apache-2.0
"""Processes that die, hang or lie, beside others that go on."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time

import pytest
from procs import (
    Client,
    end_workers,
    partition,
    seconds,
    stat,
    tq,
    tq_json,
    tq_start,
    unit_addresses,
    until,
    workers,
)


def connect(address):
    """A plain socket to where a role listens."""
    if address.startswith("ipc://"):
        plain = socket.socket(socket.AF_UNIX)
        plain.connect(address.removeprefix("ipc://"))
    else:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        plain = socket.create_connection((host, int(port)))
    plain.settimeout(2)
    return plain


def listening_ports(pid):
    """TCP ports that the process listens on: those of payload, too, which nobody is told."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = []
    with open("/proc/net/tcp") as lines:
        for line in list(lines)[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.append(int(words[1].split(":")[1], 16))
    return sorted(ports)


# A greeting and READY of ZMTP 3.1 with mechanism NULL, as a DEALER would say it.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
HELLO = GREETING + b"\x04" + bytes([len(READY)]) + READY


def pour(plain, rng, kind):
    """Sends one kind of garbage down a plain socket, however the other end takes it."""
    noise = rng.randbytes(rng.choice([1, 30, 300, 5000]))
    before_hello, after_hello = {
        "noise": (noise, None),
        "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", None),
        "greeting": (GREETING + noise, None),
        # Well-formed frames of ZMTP with any bytes in them.
        "frame": (HELLO, b"\x02" + len(noise).to_bytes(8, "big") + noise),
        "parts": (HELLO, b"\x01\x00" * 50 + b"\x00\x00"),
        "huge": (HELLO, b"\x02" + (1 << 62).to_bytes(8, "big") + noise),
        "nothing": (b"", None),
    }[kind]
    try:
        plain.sendall(before_hello)
        if after_hello:
            # libzmq delivers nothing that came along with the hello.
            said = b""
            while b"READY" not in said:
                got = plain.recv(4096)
                if not got:
                    return
                said += got
            plain.sendall(after_hello)
    except OSError:
        pass


KINDS = ("noise", "http", "greeting", "frame", "parts", "huge", "nothing")


def test_garbage_on_every_socket_disturbs_nobody(daemons):
    store = daemons.store("tcp")
    ports = listening_ports(store.pid)
    assert len(ports) == 5  # the controller's, two units' ctrl and payload
    started = workers(store.address, 2)
    rng = random.Random(7)
    held = []
    for _ in range(6):
        for port in ports:
            for kind in KINDS:
                plain = connect(f"tcp://127.0.0.1:{port}")
                pour(plain, rng, kind)
                if len(held) < 100:
                    held.append(plain)  # left open, in the middle of it
                else:
                    plain.close()
    tq("put", "p", "a", "x=1", address=store.address)
    assert tq_json("get", "p", "a", address=store.address)["a"]["x"]["value"] == "1"
    end_workers(started)

    def counters():
        return stat(store.address)["controller"]["counters"]

    # Of six frames each role was sent, those whose socket stays open can't be missed.
    until(lambda: counters()["malformed"] >= 2, 10, "the garbage was not met")
    for plain in held:
        plain.close()
    assert counters()["failed"] == 0


def test_garbage_on_unix_sockets_disturbs_nobody(daemons):
    store = daemons.store("ipc")
    paths = [str(p) for p in daemons.folder.iterdir() if p.is_socket()]
    assert len(paths) == 5, paths
    started = workers(store.address, 1)
    rng = random.Random(8)
    for _ in range(3):
        for path in paths:
            for kind in KINDS:
                with connect(f"ipc://{path}") as plain:
                    pour(plain, rng, kind)
    end_workers(started)


def test_a_store_that_is_killed_is_told_within_seconds(daemons):
    store = daemons.store("tcp")
    worker = workers(store.address, 1)[0]
    waiting = Client("fetch", store.address, "p", "train", 1, 60_000, "x")
    time.sleep(0.2)
    store.kill()
    began = time.monotonic()
    said = tq("ls", address=store.address, status=3)
    assert store.address.split("#")[0] in said
    for client in (worker, waiting):
        client.process.wait(seconds(12))
        said = client.process.stdout.read()
        assert client.process.returncode == 1, said
        assert said.startswith("E_"), said
    assert time.monotonic() - began < seconds(12)


def test_a_unit_that_is_killed_costs_its_rows_and_nothing_else(daemons):
    controller = daemons.controller(controller_unit_lost="2s")
    at = {"address": controller.address}
    units = [daemons.unit(controller.address) for _ in range(2)]
    for i in range(8):
        tq("put", "p", f"k{i}", f"x={i}", **at)
    rows = tq_json("ls", "p", **at)
    lost = rows[0]["unit"]
    on_lost = [row["key"] for row in rows if row["unit"] == lost]
    on_other = [row["key"] for row in rows if row["unit"] != lost]
    assert on_lost and on_other
    address = unit_addresses(controller.address)[lost - 1]
    dead = next(unit for unit in units if unit.address.split("#")[0] == address)
    dead.kill()
    # What is elsewhere is read all the time; what was there fails with a reason.
    tq("get", "p", *on_other, **at)
    said = tq("get", "p", on_lost[0], "--timeout", "10", status=3, **at)
    assert "unit" in said
    until(
        lambda: any(u["lost"] for u in stat(controller.address)["controller"]["units"]), 8, "LOST"
    )
    assert "E_UNIT_LOST" in tq("get", "p", on_lost[0], "--timeout", "10", status=3, **at)
    assert "LOST" in tq("doctor", status=1, **at)
    tq("put", "p", "after", "x=9", **at)
    tq("get", "p", "after", *on_other, **at)
    end_workers(workers(controller.address, 1))
    # Another process at its place is empty: the cells are gone, and it is said so.
    daemons.unit(controller.address, unit_listen=address)
    until(
        lambda: not any(u["lost"] for u in stat(controller.address)["controller"]["units"]),
        12,
        "the unit again",
    )
    assert "E_NOT_PRODUCED" in tq("get", "p", on_lost[0], "--field", "x", status=1, **at)
    assert stat(controller.address)["controller"]["counters"]["cells_lost"] == len(on_lost)
    tq("put", "p", on_lost[0], "x=again", **at)
    assert tq_json("get", "p", on_lost[0], **at)[on_lost[0]]["x"]["value"] == "again"


def used_bytes(address):
    return sum(unit["used_bytes"] for unit in stat(address)["units"])


def test_a_client_killed_in_the_middle_of_a_big_put_leaves_nothing(daemons, tmp_path):
    store = daemons.store("tcp", unit_capacity="1GiB")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(400 << 20)
    put = tq_start("put", "p", "a", f"f=@{tmp_path / 'huge'}", "small=1", address=store.address)

    def is_under_way():
        units = stat(store.address)["units"]
        assert put.poll() is None, "the put was faster than the question"
        return any(unit["transfers"]["now"]["OPEN"] for unit in units)

    until(is_under_way, 20, "bytes under way")
    put.kill()
    put.communicate()

    def is_clean():
        figures = stat(store.address)
        part = partition(figures, "p")
        return (
            used_bytes(store.address) == 0
            and sum(u["cells_claimed"] + u["cells_staged"] for u in figures["units"]) == 0
            and (part is None or (part["rows"], part["keys"], part["puts_pending"]) == (0, 0, 0))
        )

    until(is_clean, 6.5, "nothing left")
    tq("put", "p", "a", "x=1", address=store.address)


@pytest.mark.parametrize("what", ["store", "controller"])
def test_a_pause_of_three_seconds_is_forgiven(daemons, what):
    if what == "store":
        paused = store = daemons.store("tcp")
    else:
        paused = store = daemons.controller()
        daemons.unit(store.address)
        daemons.unit(store.address)
    started = workers(store.address, 2)
    waiting = Client("fetch", store.address, "p", "train", 1, seconds(30) * 1000, "x")
    before = stat(store.address)["controller"]["counters"]["sessions_lost"]
    paused.signal(signal.SIGSTOP)
    time.sleep(3)
    paused.signal(signal.SIGCONT)
    time.sleep(0.5)
    tq("put", "p", "a", "x=1", address=store.address)
    assert waiting.end() == (0, "fetched 1")
    end_workers(started)
    assert stat(store.address)["controller"]["counters"]["sessions_lost"] == before


def test_a_client_that_hangs_holds_up_nobody(daemons):
    store = daemons.store("tcp")
    hung = workers(store.address, 1, large_bytes=40_000_000)[0]
    hung.process.send_signal(signal.SIGSTOP)
    try:
        end_workers(workers(store.address, 2))
        until(
            lambda: stat(store.address)["controller"]["counters"]["sessions_lost"] >= 1,
            9,
            "its session ended",
        )
    finally:
        hung.process.send_signal(signal.SIGCONT)
        hung.kill()


def test_connections_that_come_and_go_leave_no_descriptors(daemons):
    store = daemons.store("tcp")
    for _ in range(3):
        tq("ls", address=store.address)

    def fds():
        return len(os.listdir(f"/proc/{store.pid}/fd"))

    until(lambda: stat(store.address)["controller"]["sessions_cnt"] == 1, 5)
    before = fds()

    def churn():
        for i in range(10):
            tq("put", "p", f"k{i}", "x=" + "y" * 100_000, address=store.address)

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: fds() <= before + 2, 8, f"{before} descriptors again")
