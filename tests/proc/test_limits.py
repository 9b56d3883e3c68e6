# SPDX-License-Identifier: Apache-2.0
"""Limits of the kernel: each is an error that names it and the remedy, and harms nobody else."""

from __future__ import annotations

import os
import resource
import subprocess
import time

import pytest
from procs import (
    CLIENT,
    ENV,
    TQD,
    Client,
    end_workers,
    seconds,
    stat,
    tq,
    tq_json,
    until,
    workers,
)

SHIM = os.environ["TQ_TEST_SHIM_THREADS"]


def limited(daemon, limit, soft):
    """Gives a process that runs another soft limit."""
    resource.prlimit(daemon.pid, limit, (soft, resource.prlimit(daemon.pid, limit)[1]))


def run_client(address, limit=None, value=0, env=None):
    """A client that works for a moment under a limit: its exit status and what it said last."""

    def lower():
        if limit is not None:
            resource.setrlimit(limit, (value, value))

    process = subprocess.Popen(
        [CLIENT, "work", address, "p", "300000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**ENV, **(env or {})},
        text=True,
        preexec_fn=lower,
    )
    time.sleep(0.02)
    said, _ = process.communicate(timeout=seconds(20))
    return process.returncode, said.strip().splitlines()[-1] if said.strip() else ""


# ---- descriptors -------------------------------------------------------------------------------


def test_tqd_takes_all_the_files_that_it_may_have(daemons):
    store = daemons.store()
    soft, hard = resource.prlimit(store.pid, resource.RLIMIT_NOFILE)
    assert soft == hard


def test_tqd_says_at_the_start_when_it_may_have_few_files(tmp_path):
    process = subprocess.Popen(
        [TQD, "--controller-listen", f"ipc://{tmp_path}/s", "--unit-capacity", "64MiB"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENV,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
    )
    until(lambda: (tmp_path / "s").exists(), 10)
    process.terminate()
    said, _ = process.communicate(timeout=seconds(15))
    assert process.returncode == 0, said
    assert "may have 256 files open" in said
    assert "ulimit -Hn" in said


def test_a_client_too_many_is_told_which_limit_and_nobody_else_notices(daemons):
    store = daemons.store("tcp")
    limited(store, resource.RLIMIT_NOFILE, 90)
    started = workers(store.address, 3)
    with pytest.raises(AssertionError) as refused:
        started += workers(store.address, 30)
    text = str(refused.value)
    assert text.startswith("E_BUSY"), text
    assert "may have 90 files open" in text and "ulimit -n" in text
    # tq is a client as well.
    assert "ulimit -n" in tq("stat", address=store.address, status=4)
    limited(store, resource.RLIMIT_NOFILE, 1024)
    started += workers(store.address, 10)
    end_workers(started)
    assert stat(store.address)["controller"]["counters"]["puts_failed"] == 0


def test_files_that_run_out_under_connections_without_a_session_are_reported(daemons):
    import socket

    store = daemons.store("tcp")
    started = workers(store.address, 2)
    limited(store, resource.RLIMIT_NOFILE, 100)
    host, _, port = store.address.split("#")[0].removeprefix("tcp://").rpartition(":")
    held = [socket.create_connection((host, int(port))) for _ in range(150)]
    until(lambda: "files that this process may have open" in store.text(), 10)
    for plain in held:
        plain.close()
    until(lambda: "files can be opened again" in store.text(), 10)
    tq("put", "p", "a", "x=1", address=store.address)
    end_workers(started)


def test_a_client_with_too_few_files_says_so_whatever_it_lacks_them_for(daemons):
    store = daemons.store("ipc")
    results = {cnt: run_client(store.address, resource.RLIMIT_NOFILE, cnt) for cnt in range(4, 18)}
    for status, said in results.values():
        assert status in (0, 1), said
        if status == 1:
            assert said.startswith("E_SYSTEM") and "ulimit -n" in said, said
    assert results[4][0] == 1
    assert run_client(store.address)[0] == 0


def test_a_program_that_gets_descriptors_again_goes_on(daemons):
    store = daemons.store("tcp")
    worker = Client("work", store.address, "p", 300_000)
    limited(worker.process, resource.RLIMIT_NOFILE, 16)  # it needs more for the units
    time.sleep(0.3)
    limited(worker.process, resource.RLIMIT_NOFILE, 1024)
    worker.expect("working")
    end_workers([worker])


# ---- threads -----------------------------------------------------------------------------------


def test_missing_threads_are_an_error_that_names_the_limit(daemons):
    store = daemons.store("ipc")
    ended = []
    # tqd has two of libzmq's and one a role; a client one more for copying.
    for cnt in range(5):
        env = {"LD_PRELOAD": SHIM, "TQ_TEST_THREADS": str(cnt)}
        status, said = run_client(store.address, env=env)
        ended.append(status)
        assert status in (0, 1), said
        if status == 1:
            assert said.startswith("E_SYSTEM") and "ulimit -u" in said, said
        done = subprocess.run(
            [TQD, "--role", "store", "--controller-listen", f"ipc://{daemons.folder}/t{cnt}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**ENV, **env},
            timeout=seconds(20),
            text=True,
        )
        assert done.returncode == 1, done.stderr
        assert "ulimit -u" in done.stderr
    assert ended[0] == 1 and ended[-1] == 0


# ---- memory ------------------------------------------------------------------------------------


def vm_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def test_a_store_without_addresses_left_refuses_what_is_large_and_serves_the_rest(daemons):
    store = daemons.store("ipc", unit_capacity="4GiB")
    started = workers(store.address, 2)
    limited(store, resource.RLIMIT_AS, vm_bytes(store.pid) + (160 << 20))
    big = daemons.folder / "big"
    with big.open("wb") as file:
        file.truncate(500 << 20)
    said = tq("put", "p", "a", f"f=@{big}", "--timeout", "20", address=store.address, status=5)
    assert "E_NO_MEMORY" in said and "ulimit -v" in said, said
    tq("put", "p", "b", "x=1", address=store.address)
    limited(store, resource.RLIMIT_AS, resource.RLIM_INFINITY)
    tq("put", "p", "a", f"f=@{big}", address=store.address)
    assert len(tq_json("ls", "p", address=store.address)) == 2
    end_workers(started)


def test_a_limit_of_file_sizes_does_not_end_a_store(daemons):
    store = daemons.store("ipc")
    limited(store, resource.RLIMIT_FSIZE, 1 << 20)
    said = tq(
        "put", "p", "a", "x=" + "y" * 100_000, "--timeout", "10", address=store.address, status=5
    )
    assert "E_SYSTEM" in said and "ulimit -f" in said, said
    limited(store, resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    tq("put", "p", "a", "x=" + "y" * 100_000, address=store.address)


# ---- disks -------------------------------------------------------------------------------------


def test_a_log_that_takes_nothing_does_not_end_a_store(tmp_path):
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(
            [TQD, "--controller-listen", f"ipc://{tmp_path}/s", "--log-level", "debug"],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=full,
            env=ENV,
        )
    try:
        until(lambda: (tmp_path / "s").exists(), 10)
        tq("put", "p", "a", "x=1", address=f"ipc://{tmp_path}/s")
        process.terminate()
        assert process.wait(seconds(15)) == 0
    finally:
        process.kill()
        process.wait()


def test_values_that_do_not_fit_on_the_disk_are_an_error_with_the_path(daemons):
    store = daemons.store("ipc")
    tq("put", "p", "full", "x=" + "y" * 10_000, address=store.address)
    (daemons.folder / "out").mkdir()
    (daemons.folder / "out" / "full.x").symlink_to("/dev/full")
    said = tq(
        "get", "p", "full", "-o", str(daemons.folder / "out"), address=store.address, status=5
    )
    assert "full.x" in said and "No space left" in said, said
