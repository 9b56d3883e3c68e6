# SPDX-License-Identifier: Apache-2.0
"""Several processes on one store: children that join, forks, and processes that die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
import torch
from tqtest import Program, keys_of, rows

import transfer_queue as tq

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.timeout(120)]

HEAD = """
import os, signal, sys, time
import torch
import transfer_queue as tq
from tensordict import TensorDict
"""


def forked(function, *args):
    """Runs function(*args) in a forked child and returns what it returned, or raised."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def main():
        try:
            theirs.send((function(*args), None))
        except BaseException as error:
            theirs.send((None, error))

    process = context.Process(target=main)
    process.start()
    theirs.close()
    assert ours.poll(60), "the child hangs"
    result, error = ours.recv()
    process.join(30)
    assert process.exitcode == 0
    if error is not None:
        raise error
    return result


def test_a_child_joins_by_the_environment(partition):
    tq.kv_batch_put(keys_of(2), partition, rows(x=torch.arange(2)))
    with Program(
        HEAD
        + f"""
assert tq.init() is None
data = tq.kv_batch_get(["k1", "k0"], {partition!r})
print(data["x"].tolist())
tq.kv_put("child", {partition!r}, {{"x": torch.arange(3)}}, {{"from": "child"}})
tq.close()
"""
    ) as child:
        status, output = child.end()
    assert (status, output) == (0, "[1, 0]")
    assert tq.kv_list(partition)[partition]["child"] == {"from": "child"}
    assert tq.kv_batch_get("child", partition)["x"].values().tolist() == [0, 1, 2]


def test_a_child_attaches_without_init(partition):
    with Program(HEAD + f"""tq.kv_put("a", {partition!r}, tag={{"t": 1}})""") as child:
        assert child.end()[0] == 0
    assert tq.kv_list(partition) == {partition: {"a": {"t": 1}}}


def test_metadata_of_one_process_serves_another(client, partition):
    client.put(rows(x=torch.arange(4)), partition_id=partition)
    with Program(
        HEAD
        + f"""
import pickle
tq.init()
client = tq.get_client()
meta = client.get_meta(["x"], 3, {partition!r}, task_name="t")
client.put(TensorDict({{"y": torch.ones(3, 2)}}, batch_size=[3]), metadata=meta)
print(pickle.dumps(meta).hex())
"""
    ) as child:
        import pickle

        status, output = child.end()
        assert status == 0
        meta = pickle.loads(bytes.fromhex(output))
    data = client.get_data(meta)
    assert data["x"].tolist() == [0, 1, 2]
    assert data["y"].values().shape == (6,)


def test_a_waiting_process_is_woken_by_another(client, partition):
    with Program(
        HEAD
        + f"""
tq.init()
print("waiting")
meta = tq.get_client().get_meta(["x"], 2, {partition!r}, task_name="t", timeout=30)
print(time.monotonic())
"""
    ) as child:
        assert child.hear() == "waiting"
        time.sleep(0.3)
        start = time.monotonic()
        client.put(rows(x=torch.arange(2)), partition_id=partition)
        assert float(child.hear()) - start < 1


def test_rows_of_a_killed_waiter_go_to_another(client, partition):
    with Program(
        HEAD
        + f"""
tq.init()
print("waiting")
tq.get_client().get_meta(["x"], 2, {partition!r}, task_name="t", timeout=60)
print("got")
sys.stdin.read()
"""
    ) as child:
        assert child.hear() == "waiting"
        time.sleep(0.3)
        child.kill()
        client.put(rows(x=torch.arange(2)), partition_id=partition)
        assert client.get_meta(["x"], 2, partition, task_name="t", timeout=20).size == 2


def test_a_killed_producer_harms_nobody(client, partition):
    with Program(
        HEAD
        + f"""
tq.init()
print("ready")
while True:
    tq.kv_batch_put(["a", "b"], {partition!r},
                    TensorDict({{"x": torch.ones(2, 20000)}}, batch_size=[2]))
"""
    ) as child:
        assert child.hear() == "ready"
        time.sleep(0.5)
        child.kill()
    tq.kv_batch_put(["a", "b"], partition, rows(x=torch.zeros(2, 4)))
    assert float(tq.kv_batch_get(["a", "b"], partition)["x"].values().sum()) == 0


def test_closing_where_one_only_joined_leaves_the_store_alive(partition):
    with Program(HEAD + """tq.init(); tq.close(); tq.close()""") as child:
        assert child.end()[0] == 0
    assert tq.kv_put("a", partition, tag={}).keys == ["a"]


def test_a_creator_gone_without_close_is_an_error_within_seconds(partition, tmp_path):
    creator = Program(
        HEAD
        + """
os.environ.pop("TQ_ADDRESS", None)
tq.init()
tq.kv_put("a", "p", {"x": 1})
print(os.environ["TQ_ADDRESS"])
sys.stdin.read()
"""
    )
    with creator:
        address = creator.hear()
        with Program(
            HEAD
            + """
tq.init()
print(tq.kv_list())
sys.stdin.readline()
start = time.monotonic()
try:
    tq.kv_list()
except tq.errors.TransferQueueError as error:
    print(time.monotonic() - start < 8, isinstance(error, ConnectionError), len(str(error)) > 10)
""",
            TQ_ADDRESS=address,
        ) as joined:
            assert joined.hear() == "{'p': {'a': {}}}"
            creator.kill()
            joined.say()
            assert joined.hear() == "True True True"


def test_a_creator_that_ends_without_close_cleans_up():
    with Program(
        HEAD
        + """
os.environ.pop("TQ_ADDRESS", None)
tq.init()
print(os.environ["TQ_ADDRESS"])
""",
        is_fresh=True,
    ) as creator:
        status, address = creator.end()
    assert status == 0
    path = address.removeprefix("ipc://").partition("#")[0]
    assert path.startswith("/")
    assert not os.path.exists(path)


# ---- fork ------------------------------------------------------------------------------------


def test_a_forked_child_has_a_session_of_its_own(client, partition):
    tq.kv_batch_put(keys_of(2), partition, rows(x=torch.arange(2)))

    def child():
        assert tq.init() is None
        got = tq.kv_batch_get(keys_of(2), partition)["x"].tolist()
        tq.kv_put("child", partition, tag={"t": 1})
        meta = client.get_meta(["x"], 1, partition, task_name="t")
        tq.close()
        return got, meta.size

    assert forked(child) == ([0, 1], 1)
    assert tq.kv_list(partition)[partition]["child"] == {"t": 1}
    assert tq.kv_batch_get("k0", partition)["x"].tolist() == [0]


def test_a_forked_child_may_do_nothing(partition):
    assert forked(lambda: "nothing") == "nothing"
    assert tq.kv_put("a", partition, tag={}).keys == ["a"]


def test_forked_children_of_forked_children(partition):
    def child():
        tq.kv_put("child", partition, tag={})
        return forked(lambda: tq.kv_put("grandchild", partition, tag={}).keys)

    assert forked(child) == ["grandchild"]
    assert sorted(tq.kv_list(partition)[partition]) == ["child", "grandchild"]


def test_results_can_be_read_in_a_forked_child(partition):
    tq.kv_batch_put(keys_of(4), partition, rows(x=torch.ones(4, 50_000)))
    data = tq.kv_batch_get(keys_of(4), partition)
    # Not a sum: torch's threads do not survive a fork.
    assert forked(lambda: data["x"].values().numpy().min()) == 1


def test_a_child_forked_while_others_wait(client, partition):
    import threading

    got = []
    waiting = threading.Thread(
        target=lambda: got.append(
            client.get_meta(["x"], 1, partition, task_name="t", timeout=60).size
        )
    )
    waiting.start()
    time.sleep(0.1)
    keys = forked(lambda: tq.kv_put("a", partition, {"x": torch.tensor(1)}).keys)
    waiting.join(30)
    assert keys == ["a"]
    assert got == [1]


def test_async_calls_in_a_forked_child(partition):
    import asyncio

    asyncio.run(tq.async_kv_put("parent", partition, tag={}))

    def child():
        asyncio.run(tq.async_kv_put("child", partition, tag={}))
        return sorted(asyncio.run(tq.async_kv_list(partition))[partition])

    assert forked(child) == ["child", "parent"]
    assert sorted(asyncio.run(tq.async_kv_list(partition))[partition]) == ["child", "parent"]


def test_many_forked_children_at_once(partition):
    context = multiprocessing.get_context("fork")

    def main(rank):
        for i in range(5):
            tq.kv_put(f"{rank}-{i}", partition, {"x": torch.tensor(rank)})
        os._exit(0 if tq.kv_batch_get(f"{rank}-0", partition)["x"].tolist() == [rank] else 1)

    processes = [context.Process(target=main, args=(rank,)) for rank in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 6
    assert len(tq.kv_list(partition)[partition]) == 30


# ---- signals ---------------------------------------------------------------------------------


def test_an_interrupt_ends_a_waiting_fetch(partition):
    with Program(
        HEAD
        + f"""
# A shell's background job, and so everything that it starts, ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
tq.init()
client = tq.get_client()
print("waiting")
try:
    client.get_meta(["x"], 1, {partition!r}, task_name="t", timeout=60)
except KeyboardInterrupt:
    print("interrupted")
client.put(TensorDict({{"x": torch.arange(1)}}, batch_size=[1]), partition_id={partition!r})
print(client.get_meta(["x"], 1, {partition!r}, task_name="t", timeout=5).size)
"""
    ) as child:
        assert child.hear() == "waiting"
        time.sleep(0.3)
        os.kill(child.pid, signal.SIGINT)
        assert child.hear() == "interrupted"
        assert child.hear() == "1"


def test_nothing_is_said_about_a_read():
    """torch prints a warning of its own at the first jagged tensor made the documented way."""
    code = """
        import torch, transfer_queue as tq
        tq.init()
        tq.kv_put("k", "p", {"x": torch.arange(6.0)})
        column = tq.kv_batch_get(["k"], "p").get("x")
        assert column.is_nested and column._max_seqlen == 6 and column._min_seqlen == 6
        assert column.unbind()[0].tolist() == [0, 1, 2, 3, 4, 5]
        tq.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_folder_of_a_store_that_was_killed_goes_with_the_next():
    # Sockets' paths have 107 bytes: pytest's own folders are too long.
    base = Path(tempfile.mkdtemp(prefix="tqr-"))
    env = {"XDG_RUNTIME_DIR": str(base)}
    code = """
        import sys, transfer_queue as tq
        tq.init({"runtime": "embedded"})
        print("ready")
        sys.stdin.readline()
        tq.close()
    """
    with Program(code, **env) as killed:
        assert killed.hear() == "ready"
        (left,) = base.iterdir()
        killed.kill()
    assert left.exists()
    with Program(code, **env) as other:
        assert other.hear() == "ready"
        assert not left.exists()
        assert len(list(base.iterdir())) == 1
        other.say()
        assert other.end()[0] == 0
    base.rmdir()
