# SPDX-License-Identifier: Apache-2.0
"""Python programs on a store that tqd runs, over tcp."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from tqtest import keys_of, ragged, rows, tqd_path

import transfer_queue as tq
from transfer_queue.errors import FatalError, PeerError, StaleStoreError, TransferQueueError

pytestmark = pytest.mark.usefixtures("no_store")

TQD = tqd_path()


class Daemon:
    """A tqd with these options, at `address`; ended with the test."""

    def __init__(self, *options):
        ready, theirs = os.pipe()
        command = [str(TQD), "--ready-fd", str(theirs), "--log-level", "error", *options]
        self.process = subprocess.Popen(command, pass_fds=[theirs])
        os.close(theirs)
        with os.fdopen(ready) as lines:
            self.address = lines.readline().strip()
        assert self.address, "tqd did not start"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def daemon():
    with Daemon("--controller-listen", "tcp://127.0.0.1:*") as running:
        yield running


def test_a_tqd_is_joined_by_its_address(daemon):
    given = {"address": daemon.address}
    assert tq.init(given) is given
    data = rows(x=torch.randn(8, 50_000), n=ragged(*range(8)), o=["text"] * 8)
    meta = tq.kv_batch_put(keys_of(8), "p", data, [{"i": i} for i in range(8)])
    got = tq.kv_batch_get_by_meta(meta)
    assert torch.equal(got["x"].values(), data["x"].reshape(-1))
    assert torch.equal(got["n"].values(), data["n"].values())
    assert list(got["o"]) == ["text"] * 8
    assert tq.get_client().get_meta(["x", "n"], 8, "p", task_name="t").size == 8
    # What close ends is the session: the store lives on.
    tq.close()
    tq.init(given)
    assert len(tq.kv_list("p")["p"]) == 8


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_tqd_that_ends_is_an_error_within_seconds(daemon, how):
    tq.init({"address": daemon.address})
    tq.kv_put("a", "p", {"x": 1})
    daemon.process.send_signal(how)
    daemon.process.wait(15)
    start = time.monotonic()
    with pytest.raises(TransferQueueError) as caught:
        tq.kv_list()
    assert time.monotonic() - start < 8
    assert str(caught.value)


def test_only_who_has_the_public_key_is_served(tmp_path):
    for name in ("server", "other"):
        (tmp_path / name).mkdir()
        subprocess.run([TQD, "--genkey", tmp_path / name], check=True, stdout=subprocess.DEVNULL)
    keys = {
        name: (Path(tmp_path) / name / "tq.pub").read_text().strip() for name in ("server", "other")
    }
    folder = tmp_path / "server"
    with Daemon(
        "--controller-listen",
        "tcp://127.0.0.1:*",
        "--security-secret-key-file",
        str(folder / "tq.key"),
        "--security-public-key-file",
        str(folder / "tq.pub"),
    ) as daemon:

        def init(key):
            tq.init({"address": daemon.address, "security": {"curve_server_key": key}})

        for key in (keys["other"], None):
            start = time.monotonic()
            with pytest.raises(PeerError):
                init(key)
            assert time.monotonic() - start < 8
        with pytest.raises(ValueError, match="key"):
            init("too short")
        init(keys["server"])
        tq.kv_put("a", "p", {"x": torch.ones(100_000)})
        assert float(tq.kv_batch_get("a", "p")["x"].values().sum()) == 100_000


def test_a_store_that_was_replaced_is_stale_once_and_its_metadata_for_ever(tmp_path):
    options = ("--controller-listen", f"ipc://{tmp_path}/tq")
    with Daemon(*options) as daemon:
        address = daemon.address.partition("#")[0]
        tq.init({"address": address})
        client = tq.get_client()
        old = client.put(rows(x=torch.arange(2)), partition_id="p")
    with Daemon(*options):
        stale = []
        # The call that finds out is told, and the next one; the daemon's end may come first.
        for _ in range(50):
            try:
                client.get_partition_list()
                break
            except StaleStoreError as error:
                stale.append(error)
            except TransferQueueError:
                time.sleep(0.2)
        assert 1 <= len(stale) <= 2
        assert client.get_partition_list() == []
        new = client.put(rows(x=torch.arange(5, 7)), partition_id="p")
        assert new.global_indexes == old.global_indexes
        assert client.get_data(new)["x"].tolist() == [5, 6]
        for call in (client.get_data, client.clear_samples, client.set_custom_meta):
            with pytest.raises(StaleStoreError, match="replaced"):
                call(old)


def test_an_address_with_an_incarnation_wants_that_store_alone(tmp_path):
    options = ("--controller-listen", f"ipc://{tmp_path}/tq")
    with Daemon(*options) as daemon:
        address = daemon.address
        assert "#" in address
        tq.init({"address": address})
        client = tq.get_client()
    with Daemon(*options):
        for _ in range(2):
            with pytest.raises(TransferQueueError):
                client.get_partition_list()
        tq.close()
        with pytest.raises(FatalError):
            tq.init({"address": address})
