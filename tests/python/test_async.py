# SPDX-License-Identifier: Apache-2.0
"""The async_ calls: any loop, several at once, cancellation."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
import torch
from tqtest import keys_of, ragged, rows

import transfer_queue as tq
from transfer_queue.errors import UsageError

pytestmark = pytest.mark.usefixtures("store")


def test_every_kv_call_has_an_async_form(partition):
    async def program():
        meta = await tq.async_kv_batch_put(
            ["a", "b"], partition, rows(x=torch.arange(2), n=ragged(1, 2)), [{"t": 1}, {}]
        )
        one = await tq.async_kv_put("a", partition, tag={"u": 2})
        data = await tq.async_kv_batch_get(["b", "a"], partition)
        same = await tq.async_kv_batch_get_by_meta(meta, "x")
        listed = await tq.async_kv_list(partition)
        await tq.async_kv_clear("a", partition)
        return one, data, same, listed, await tq.async_kv_list()

    one, data, same, listed, everything = asyncio.run(program())
    assert one.tags == [{"t": 1, "u": 2}]
    assert data["x"].tolist() == [1, 0]
    assert same["x"].tolist() == [0, 1]
    assert listed == {partition: {"a": {"t": 1, "u": 2}, "b": {}}}
    assert list(everything[partition]) == ["b"]


def test_every_client_call_has_an_async_form(client, partition):
    async def program():
        meta = await client.async_get_meta(["x"], 2, partition, mode="insert")
        await client.async_put(rows(x=torch.arange(2)), metadata=meta)
        assert await client.async_check_production_status(["x"], partition)
        got = await client.async_get_meta(["x"], 2, partition, task_name="t", timeout=1)
        assert await client.async_check_consumption_status("t", partition)
        assert (await client.async_get_data(got))["x"].tolist() == [0, 1]
        _, status = await client.async_get_consumption_status("t", partition)
        assert status.tolist() == [1, 1]
        assert await client.async_reset_consumption(partition, "t") is True
        _, status = await client.async_get_production_status(["x"], partition)
        assert status.tolist() == [[1], [1]]
        meta.update_custom_meta([{"a": 1}, {}])
        await client.async_set_custom_meta(meta)
        created = await client.async_kv_retrieve_meta("k", partition, create=True)
        assert await client.async_kv_retrieve_keys(created.global_indexes, partition) == ["k"]
        assert partition in await client.async_get_partition_list()
        await client.async_clear_samples(meta)
        await client.async_clear_partition(partition)
        assert partition not in await client.async_get_partition_list()

    asyncio.run(program())


def test_errors_reach_the_coroutine(partition):
    async def program():
        with pytest.raises(ValueError, match="keys or partition were not found!"):
            await tq.async_kv_batch_get(["a"], partition)
        with pytest.raises(TypeError):
            await tq.async_kv_batch_get(3, partition)

    asyncio.run(program())


def test_many_calls_at_once(partition):
    async def program():
        keys = keys_of(200)
        await asyncio.gather(
            *(tq.async_kv_put(key, partition, {"x": torch.tensor(i)}) for i, key in enumerate(keys))
        )
        got = await asyncio.gather(*(tq.async_kv_batch_get(key, partition) for key in keys))
        assert [int(data["x"]) for data in got] == list(range(200))

    asyncio.run(program())


def test_one_client_on_several_loops_at_once(partition):
    failures = []

    def loop(number):
        async def program():
            for i in range(20):
                key = f"{number}-{i}"
                await tq.async_kv_put(key, partition, {"x": torch.tensor(i)})
                assert int((await tq.async_kv_batch_get(key, partition))["x"]) == i

        try:
            asyncio.run(program())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(tq.kv_list(partition)[partition]) == 80


def test_one_loop_after_another_leaves_no_queues(client, partition):
    for i in range(10):
        asyncio.run(tq.async_kv_put(str(i), partition, tag={}))
    gc.collect()
    asyncio.run(tq.async_kv_list(partition))
    assert len(client._session._loops) <= 2


def test_a_waiting_fetch_does_not_hold_the_loop(client, partition):
    async def program():
        fetch = asyncio.create_task(client.async_get_meta(["x"], 2, partition, task_name="t"))
        ticks = 0
        while not fetch.done() and ticks < 1000:
            await asyncio.sleep(0.005)
            ticks += 1
            if ticks == 10:
                await client.async_put(rows(x=torch.arange(2)), partition_id=partition)
        assert (await fetch).size == 2
        assert 10 <= ticks < 1000

    asyncio.run(program())


def test_blocking_calls_work_beside_a_loop(client, partition):
    async def program():
        fetch = asyncio.create_task(client.async_get_meta(["x"], 2, partition, task_name="t"))
        await asyncio.sleep(0.02)
        client.put(rows(x=torch.arange(2)), partition_id=partition)
        return await fetch

    assert asyncio.run(program()).size == 2


def test_a_cancelled_fetch_takes_nothing(client, partition):
    async def program():
        fetch = asyncio.create_task(
            client.async_get_meta(["x"], 2, partition, task_name="t", timeout=30)
        )
        await asyncio.sleep(0.05)
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        await client.async_put(rows(x=torch.arange(2)), partition_id=partition)
        meta = await client.async_get_meta(["x"], 2, partition, task_name="t", timeout=5)
        assert meta.size == 2

    asyncio.run(program())


def test_a_timeout_of_asyncio_cancels(client, partition):
    async def program():
        start = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(
                client.async_get_meta(["x"], 2, partition, task_name="t", timeout=30), 0.1
            )
        assert time.monotonic() - start < 2

    asyncio.run(program())


def test_a_cancelled_put_keeps_its_memory_until_it_has_ended(client, partition):
    async def program():
        for _ in range(10):
            put = asyncio.create_task(
                tq.async_kv_batch_put(keys_of(64), partition, rows(x=torch.ones(64, 4096)))
            )
            await asyncio.sleep(0)
            put.cancel()
            with pytest.raises(asyncio.CancelledError):
                await put

    asyncio.run(program())
    gc.collect()
    tq.kv_batch_put(keys_of(64), partition, rows(x=torch.zeros(64, 4)))
    assert float(tq.kv_batch_get(keys_of(64), partition)["x"].values().sum()) == 0


def test_closing_a_client_ends_its_calls_under_way(partition):
    client = tq.TransferQueueClient("second")
    started = threading.Event()
    failures = []

    def loop():
        async def program():
            fetch = asyncio.create_task(
                client.async_get_meta(["x"], 1, partition, task_name="t", timeout=30)
            )
            await asyncio.sleep(0.05)
            started.set()
            try:
                await fetch
            except UsageError as error:
                failures.append(error)

        asyncio.run(program())

    thread = threading.Thread(target=loop)
    thread.start()
    assert started.wait(10)
    start = time.monotonic()
    client.close()
    thread.join(15)
    assert not thread.is_alive()
    assert time.monotonic() - start < 10
    assert [error.status for error in failures] == ["E_CLOSED"]
    with pytest.raises(UsageError, match="closed"):
        client.get_partition_list()


def test_closing_a_client_ends_its_waiting_threads(partition):
    client = tq.TransferQueueClient("second")
    failures = []

    def wait():
        try:
            client.get_meta(["x"], 1, partition, task_name="t", timeout=30)
        except UsageError as error:
            failures.append(error.status)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    client.close()
    thread.join(15)
    assert not thread.is_alive()
    assert failures == ["E_CLOSED"]
