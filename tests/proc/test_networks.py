# SPDX-License-Identifier: Apache-2.0
"""Stores over several hosts: where daemons listen, and what clients elsewhere are told to dial."""

from __future__ import annotations

import subprocess

import pytest
from networks import Cable
from procs import ENV, TQD, seconds, tq, tq_json, unit_addresses

USAGE = 2


@pytest.fixture
def cable():
    made = Cable()
    yield made
    made.end()


def put_and_get(tmp_path, address, prefix):
    """One row whose value is too large for a message, so that payload has to find its way too."""
    value = bytes(range(256)) * 2048
    (tmp_path / "value").write_bytes(value)
    tq("put", "p", "k", f"x=@{tmp_path / 'value'}", address=address, prefix=prefix)
    tq("get", "p", "k", "-o", str(tmp_path / "out"), address=address, prefix=prefix)
    assert (tmp_path / "out" / "k.x").read_bytes() == value


def test_units_on_every_address_are_reached_from_another_host(daemons, cable, tmp_path):
    controller = daemons.controller(controller_listen="tcp://0.0.0.0:7300", prefix=cable.a.enter)
    assert controller.address.startswith("tcp://10.91.0.1:7300")
    # The unit's address is the one of its way to the controller.
    daemons.unit("tcp://10.91.0.1:7300", unit_listen="tcp://0.0.0.0:*", prefix=cable.b.enter)
    put_and_get(tmp_path, "tcp://10.91.0.1:7300", cable.a.enter)
    checks = {
        c["check"]: c
        for c in tq_json("doctor", address="tcp://10.91.0.1:7300", prefix=cable.a.enter)
    }
    assert checks["unit 1"]["ok"]
    assert checks["unit 1"]["text"].startswith("tcp://10.91.0.2:")


def test_a_store_on_every_address_is_reached_from_another_host(daemons, cable, tmp_path):
    store = daemons.store(controller_listen="tcp://*:0", prefix=cable.a.enter)
    assert store.address.startswith("tcp://10.91.0.1:")
    put_and_get(tmp_path, store.address, cable.b.enter)


def test_several_addresses_want_one_to_be_named(daemons, cable, tmp_path):
    cable.a.ip("address", "add", "10.91.1.1/24", "dev", "cable")
    done = subprocess.run(
        [*cable.a.enter, TQD, "--controller-listen", "tcp://0.0.0.0:*"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENV,
        timeout=seconds(10),
        text=True,
    )
    assert done.returncode == USAGE
    for said in ("10.91.0.1", "10.91.1.1", "controller.advertise"):
        assert said in done.stdout
    store = daemons.store(
        controller_listen="tcp://0.0.0.0:*", controller_advertise="10.91.0.1", prefix=cable.a.enter
    )
    assert store.address.startswith("tcp://10.91.0.1:")
    put_and_get(tmp_path, store.address, cable.b.enter)


def test_doctor_says_that_a_unit_is_out_of_reach_of_other_hosts(daemons, cable):
    daemons.controller(controller_listen="tcp://0.0.0.0:7300", prefix=cable.a.enter)
    daemons.unit("tcp://10.91.0.1:7300", prefix=cable.a.enter)
    checks = {
        c["check"]: c
        for c in tq_json("doctor", address="tcp://10.91.0.1:7300", prefix=cable.a.enter, status=1)
    }
    assert not checks["unit 1"]["ok"]
    assert "unit.advertise" in checks["unit 1"]["text"]


def test_clients_dial_what_is_advertised(daemons):
    """Without a second host: the loopback network has many addresses."""
    controller = daemons.controller()
    daemons.unit(controller.address, unit_listen="tcp://0.0.0.0:*", unit_advertise="127.0.0.9")
    tq("put", "p", "k", "x=1", address=controller.address)
    (where,) = unit_addresses(controller.address)
    assert where.startswith("tcp://127.0.0.9:")
