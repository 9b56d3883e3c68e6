# SPDX-License-Identifier: Apache-2.0
"""The client's metadata and data calls."""

from __future__ import annotations

import pickle
import threading
import time

import numpy as np
import pytest
import torch
from tqtest import ragged, rows

import transfer_queue as tq
from transfer_queue.errors import DeadlineError, StaleStoreError, UsageError

pytestmark = pytest.mark.usefixtures("store")


def numbers(cnt, first=0):
    return rows(x=torch.arange(first, first + cnt))


# ---- insert, put, get ------------------------------------------------------------------------


def test_a_put_of_new_rows_describes_them(client, partition):
    meta = client.put(
        rows(
            v=torch.ones(3, 2, dtype=torch.float16),
            s=torch.arange(3),
            n=ragged(2, 3, 1),
            o=["a", "b", "c"],
        ),
        partition_id=partition,
    )
    assert meta.size == 3
    assert all(type(index) is int for index in meta.global_indexes)
    assert meta.partition_ids == [partition] * 3
    assert meta.field_names == ["n", "o", "s", "v"]
    assert meta.is_ready
    assert meta.production_status.tolist() == [1, 1, 1]
    assert meta.custom_meta == [{}, {}, {}]
    assert meta.extra_info == {}
    assert meta.field_schema["v"] == {
        "dtype": torch.float16,
        "shape": torch.Size([2]),
        "is_nested": False,
        "is_non_tensor": False,
    }
    assert meta.field_schema["s"]["shape"] == torch.Size([1])
    assert meta.field_schema["n"]["is_nested"]
    assert meta.get_shapes("n") == [(2,), (3,), (1,)]
    assert meta.field_schema["o"]["is_non_tensor"]


def test_indexes_are_never_used_twice(client, partition):
    first = client.put(numbers(3), partition_id=partition)
    client.clear_samples(first)
    second = client.put(numbers(3), partition_id=partition)
    assert min(second.global_indexes) > max(first.global_indexes)
    with pytest.raises(tq.StorageKeyNotFoundError):
        client.get_data(first)


def test_insert_reserves_rows_that_a_put_fills(client, partition):
    meta = client.get_meta(["x"], 2, partition, mode="insert")
    assert meta.production_status.tolist() == [0, 0]
    assert not meta.is_ready
    assert meta.field_schema["x"] == {
        "dtype": None,
        "shape": None,
        "is_nested": False,
        "is_non_tensor": False,
    }
    assert client.put(numbers(2), metadata=meta) is meta
    assert meta.is_ready
    assert client.get_data(meta)["x"].tolist() == [0, 1]
    known = client.get_meta(["x"], 1, partition, mode="insert")
    assert known.field_schema["x"]["dtype"] == torch.int64
    assert known.field_schema["x"]["shape"] == [1]


def test_insert_of_no_rows_makes_the_partition(client, partition):
    meta = client.get_meta(["x"], 0, partition, mode="insert")
    assert meta.size == 0
    assert partition in client.get_partition_list()


def test_a_put_with_metadata_adds_and_replaces_columns(client, partition):
    meta = client.put(numbers(3), partition_id=partition)
    client.put(rows(y=ragged(1, 2, 3), x=torch.zeros(3)), metadata=meta)
    assert meta.field_names == ["x", "y"]
    data = client.get_data(meta)
    assert data["x"].dtype == torch.float32
    assert [len(row) for row in data["y"].unbind()] == [1, 2, 3]


def test_a_put_without_fields_makes_rows(client, partition):
    from tensordict import TensorDict

    meta = client.put(TensorDict({}, batch_size=[2]), partition_id=partition)
    assert meta.size == 2
    assert meta.field_names == []
    client.put(numbers(2), metadata=meta)
    assert client.get_data(meta)["x"].tolist() == [0, 1]


def test_data_follow_the_order_and_repeats_of_the_metadata(client, partition):
    meta = client.put(rows(x=torch.arange(3), n=ragged(1, 2, 3)), partition_id=partition)
    data = client.get_data(meta.select_samples([2, 0, 2]))
    assert data["x"].tolist() == [2, 0, 2]
    assert [len(row) for row in data["n"].unbind()] == [3, 1, 3]


def test_metadata_across_partitions(client, partition):
    other = partition + "-other"
    a = client.put(rows(x=torch.arange(2), n=ragged(1, 2), o=["a", "b"]), partition_id=partition)
    b = client.put(rows(x=torch.arange(5, 7), n=ragged(4, 3), o=["c", "d"]), partition_id=other)
    both = tq.BatchMeta.concat([a, b]).select_samples([3, 0, 2, 1])
    data = client.get_data(both)
    assert data["x"].tolist() == [6, 0, 5, 1]
    assert [len(row) for row in data["n"].unbind()] == [3, 1, 4, 2]
    assert list(data["o"]) == ["d", "a", "c", "b"]
    client.put(rows(y=torch.arange(4), m=ragged(1, 2, 3, 4), p=list("wxyz")), metadata=both)
    assert client.get_data(a.copy().add_fields(numbers(2)))["x"].tolist() == [0, 1]
    data = client.get_data(both)
    assert data["y"].tolist() == [0, 1, 2, 3]
    assert list(data["p"]) == list("wxyz")
    # Each row is published in its own partition.
    assert client.check_production_status(["y"], partition)
    assert client.check_production_status(["y"], other)
    client.clear_samples(both)
    assert client.get_meta(["x"], 1, other, mode="force_fetch").size == 0


def test_no_rows_or_no_fields_give_an_empty_tensordict(client, partition):
    meta = client.put(numbers(2), partition_id=partition)
    for empty in (tq.BatchMeta.empty(), meta.select_fields([]), tq.BatchMeta()):
        data = client.get_data(empty)
        assert data.batch_size == torch.Size([0])
        assert list(data.keys()) == []


def test_a_field_that_nobody_wrote_or_a_row_lacks(client, partition):
    a = client.put(numbers(1), partition_id=partition)
    b = client.put(rows(y=torch.arange(1)), partition_id=partition)
    a.field_schema = {"nope": {}}
    with pytest.raises(RuntimeError, match="nope"):
        client.get_data(a)
    b.field_schema = {"x": {}}
    with pytest.raises(KeyError, match="x"):
        client.get_data(b)


def test_puts_that_can_not_be(client, partition):
    with pytest.raises(ValueError, match="partition_id must be provided"):
        client.put(numbers(2))
    with pytest.raises(ValueError, match="metadata cannot be none or empty"):
        client.put(numbers(2), metadata=tq.BatchMeta.empty())
    with pytest.raises(ValueError, match="metadata cannot be none or empty"):
        client.put(numbers(0), partition_id=partition)
    meta = client.put(numbers(2), partition_id=partition)
    with pytest.raises(RuntimeError, match="length mismatch"):
        client.put(numbers(3), metadata=meta)
    with pytest.raises(AttributeError):
        client.put({"x": torch.ones(2)}, partition_id=partition)


def test_a_put_into_a_cleared_row_or_partition_is_an_error(client, partition):
    meta = client.put(numbers(2), partition_id=partition)
    client.clear_samples(meta.select_samples([0]))
    with pytest.raises(KeyError):
        client.put(rows(y=torch.arange(2)), metadata=meta)
    assert client.get_production_status(["y"], partition) == (None, None)
    client.clear_partition(partition)
    with pytest.raises(UsageError):
        client.put(rows(y=torch.arange(2)), metadata=meta)
    assert partition not in client.get_partition_list()


def test_metadata_of_another_store_is_stale_for_ever(client, partition):
    meta = pickle.loads(pickle.dumps(client.put(numbers(2), partition_id=partition)))
    assert client.get_data(meta)["x"].tolist() == [0, 1]
    meta._incarnation ^= 1
    for call in (
        lambda: client.get_data(meta),
        lambda: client.put(numbers(2), metadata=meta),
        lambda: client.clear_samples(meta),
        lambda: client.set_custom_meta(meta),
    ):
        with pytest.raises(StaleStoreError):
            call()


# ---- fetch -----------------------------------------------------------------------------------


def test_a_fetch_grants_each_row_once_a_task(client, partition):
    client.put(numbers(5), partition_id=partition)
    first = client.get_meta(["x"], 2, partition, task_name="train")
    second = client.get_meta(["x"], 3, partition, task_name="train")
    assert client.get_data(first)["x"].tolist() == [0, 1]
    assert client.get_data(second)["x"].tolist() == [2, 3, 4]
    other = client.get_meta(["x"], 5, partition, task_name="score")
    assert other.size == 5
    assert other.is_ready


def test_a_fetch_waits_for_rows_and_is_woken(client, partition):
    client.put(numbers(1), partition_id=partition)

    def produce():
        time.sleep(0.2)
        client.put(numbers(2, 1), partition_id=partition)

    producer = threading.Thread(target=produce)
    start = time.monotonic()
    producer.start()
    meta = client.get_meta(["x"], 3, partition, task_name="train")
    waited = time.monotonic() - start
    producer.join()
    assert meta.size == 3
    assert 0.15 < waited < 3


def test_a_fetch_waits_for_all_its_fields(client, partition):
    meta = client.put(numbers(2), partition_id=partition)
    with pytest.raises(DeadlineError):
        client.get_meta(["x", "y"], 2, partition, task_name="train", timeout=0.05)
    client.put(rows(y=torch.arange(2)), metadata=meta)
    assert client.get_meta(["x", "y"], 2, partition, task_name="train").size == 2


def test_too_few_rows_is_a_timeout_that_says_what_is_missing(client, partition):
    client.put(numbers(3), partition_id=partition)
    start = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        client.get_meta(["x"], 10, partition, task_name="train", timeout=0.2)
    assert 0.15 < time.monotonic() - start < 3
    assert isinstance(caught.value, TimeoutError)
    assert (
        "GET_META failed: TimeoutError: Timeout while waiting for sufficient data for task train. "
        "Required: 10, Available: 3" in str(caught.value)
    )
    # Nothing was taken.
    assert client.get_meta(["x"], 3, partition, task_name="train").size == 3


@pytest.mark.parametrize("fields", [["x"], ["nope"]])
def test_an_unknown_partition_or_field_is_not_enough(client, partition, fields):
    if fields == ["nope"]:
        client.put(numbers(1), partition_id=partition)
    with pytest.raises(TimeoutError):
        client.get_meta(fields, 1, partition, task_name="train", timeout=0.05)


def test_a_fetch_that_waits_for_a_partition_gets_its_first_rows(client, partition):
    got = []
    waiting = threading.Thread(
        target=lambda: got.append(client.get_meta(["x"], 2, partition, task_name="train"))
    )
    waiting.start()
    time.sleep(0.1)
    client.put(numbers(2), partition_id=partition)
    waiting.join(10)
    assert got[0].size == 2


def test_fetches_that_can_not_be(client, partition):
    client.put(numbers(3), partition_id=partition)
    for batch_size in (None, -1, 1.5, True, "2"):
        with pytest.raises(RuntimeError):
            client.get_meta(["x"], batch_size, partition, task_name="train")
    with pytest.raises(ValueError, match="must provide batch_size in fetch mode"):
        client.get_meta(["x"], None, partition, task_name="train")
    with pytest.raises(AssertionError, match="task_name"):
        client.get_meta(["x"], 1, partition)
    with pytest.raises(RuntimeError, match="AssertionError:"):
        client.get_meta(["x"], 1, partition)
    with pytest.raises(RuntimeError, match="Sampler returned no samples"):
        client.get_meta(["x"], 0, partition, task_name="train")
    with pytest.raises(ValueError, match="mode"):
        client.get_meta(["x"], 1, partition, mode="nope", task_name="train")
    for fields in (None, "x", [1]):
        with pytest.raises(RuntimeError, match="data_fields"):
            client.get_meta(fields, 1, partition, task_name="train")
    with pytest.raises(ValueError, match="timeout"):
        client.get_meta(["x"], 1, partition, task_name="train", timeout=-1)
    with pytest.raises(UsageError, match="sampling_config"):
        client.get_meta(["x"], 1, partition, task_name="train", sampling_config={"a": object()})
    assert client.get_meta(["x"], np.int64(3), partition, task_name="train").size == 3


def test_the_sequential_sampler_ignores_sampling_config(client, partition):
    client.put(numbers(2), partition_id=partition)
    meta = client.get_meta(
        ["x"], 2, partition, task_name="t", sampling_config={"dp_rank": np.int64(1), "a": "b"}
    )
    assert meta.size == 2


def test_force_fetch_lists_every_row_and_marks_nothing(client, partition):
    a = client.put(rows(x=torch.arange(2), y=torch.arange(2)), partition_id=partition)
    client.put(numbers(1), partition_id=partition)
    client.get_meta(["x"], 1, partition, mode="insert")
    for _ in range(2):
        meta = client.get_meta(["x", "y", "nope"], 1, partition, mode="force_fetch")
        assert meta.global_indexes[:2] == a.global_indexes
        assert meta.production_status.tolist() == [1, 1, 0, 0]
        assert meta.field_names == ["x", "y"]
    with pytest.raises(RuntimeError, match=f"ValueError: Partition {partition}x not found"):
        client.get_meta(["x"], 1, partition + "x", mode="force_fetch")
    client.clear_samples(meta)
    assert client.get_meta(["x"], 1, partition, mode="force_fetch").size == 0


# ---- status ----------------------------------------------------------------------------------


def test_consumption_status(client, partition):
    assert client.get_consumption_status("train", partition) == (None, None)
    assert client.check_consumption_status("train", partition) is False
    meta = client.put(numbers(3), partition_id=partition)
    client.get_meta(["x"], 2, partition, task_name="train")
    indexes, status = client.get_consumption_status("train", partition)
    assert (indexes.dtype, status.dtype) == (torch.int64, torch.int8)
    assert indexes.tolist() == meta.global_indexes
    assert status.tolist() == [1, 1, 0]
    assert client.get_consumption_status("unknown", partition)[1].tolist() == [0, 0, 0]
    assert client.check_consumption_status("train", partition) is False
    client.get_meta(["x"], 1, partition, task_name="train")
    assert client.check_consumption_status("train", partition) is True


def test_overwriting_a_consumed_row_does_not_unconsume_it(client, partition):
    meta = client.put(numbers(2), partition_id=partition)
    client.get_meta(["x"], 2, partition, task_name="train")
    client.put(numbers(2), metadata=meta)
    assert client.check_consumption_status("train", partition) is True


def test_production_status(client, partition):
    assert client.get_production_status(["x"], partition) == (None, None)
    assert client.check_production_status(["x"], partition) is False
    meta = client.put(rows(x=torch.arange(2), y=torch.arange(2)), partition_id=partition)
    client.put(numbers(1), partition_id=partition)
    indexes, status = client.get_production_status(["y", "x"], partition)
    assert (indexes.dtype, status.dtype) == (torch.int64, torch.int8)
    assert status.tolist() == [[1, 1], [1, 1], [0, 1]]
    assert client.get_production_status(["x", "nope"], partition) == (None, None)
    assert client.get_production_status([], partition) == (None, None)
    assert client.check_production_status(["x"], partition) is True
    assert client.check_production_status(["x", "y"], partition) is False
    assert client.check_production_status(["nope"], partition) is False
    client.clear_samples(client.get_meta(["x"], 1, partition, mode="force_fetch"))
    assert client.check_production_status(["x"], partition) is True
    assert client.check_consumption_status("train", partition) is False
    assert meta.size == 2


def test_a_reset_makes_rows_unconsumed_again(client, partition):
    client.put(numbers(2), partition_id=partition)
    for task in ("a", "b"):
        client.get_meta(["x"], 2, partition, task_name=task)
    assert client.reset_consumption(partition, "a") is True
    assert client.get_meta(["x"], 2, partition, task_name="a").size == 2
    assert not client.get_consumption_status("b", partition)[1].tolist().count(0)
    assert client.reset_consumption(partition) is True
    assert client.get_consumption_status("b", partition)[1].tolist() == [0, 0]
    assert client.reset_consumption(partition + "-unknown", "a") is True


# ---- clearing --------------------------------------------------------------------------------


def test_clearing_is_idempotent_and_keeps_the_partition(client, partition):
    meta = client.put(numbers(2), partition_id=partition)
    client.clear_samples(meta)
    client.clear_samples(meta)
    client.clear_samples(tq.BatchMeta.empty())
    assert partition in client.get_partition_list()
    assert tq.kv_list(partition) == {partition: {}}
    client.clear_partition(partition)
    client.clear_partition(partition)
    assert partition not in client.get_partition_list()


def test_cleared_rows_are_not_granted(client, partition):
    meta = client.put(numbers(3), partition_id=partition)
    client.clear_samples(meta.select_samples([1, 1]))
    got = client.get_meta(["x"], 2, partition, task_name="train")
    assert client.get_data(got)["x"].tolist() == [0, 2]


def test_more_rows_than_one_request_takes(client, partition):
    with pytest.raises(UsageError, match="65536") as caught:
        client.put(numbers(65_537), partition_id=partition)
    assert caught.value.status == "E_TOO_LARGE"
    client.put(numbers(40_000), partition_id=partition)
    client.put(numbers(40_000), partition_id=partition)
    meta = client.get_meta(["x"], 1, partition, mode="force_fetch")
    assert meta.size == 80_000
    meta.custom_meta[-1]["last"] = True
    client.set_custom_meta(meta)
    again = client.get_meta(["x"], 1, partition, mode="force_fetch")
    assert again.custom_meta[-1] == {"last": True}
    client.clear_samples(meta)
    assert client.get_meta(["x"], 1, partition, mode="force_fetch").size == 0


def test_more_keys_than_one_request_takes(partition):
    keys = [f"k{i}" for i in range(80_000)]
    for start in range(0, len(keys), 40_000):
        piece = keys[start : start + 40_000]
        tq.kv_batch_put(piece, partition, numbers(len(piece), start))
    assert list(tq.kv_list(partition)[partition]) == keys
    tq.kv_clear(keys, partition)
    assert tq.kv_list(partition) == {partition: {}}


# ---- tags ------------------------------------------------------------------------------------


def tags_of(client, meta):
    return client.get_meta([], 0, meta.partition_ids[0], mode="force_fetch").custom_meta


def test_set_custom_meta_replaces_each_rows_tags(client, partition):
    meta = client.put(numbers(2), partition_id=partition)
    meta.update_custom_meta([{"a": 1}, {"b": 2}])
    client.set_custom_meta(meta)
    meta.custom_meta = [{"c": 3}, {}]
    client.set_custom_meta(meta)
    assert tags_of(client, meta) == [{"c": 3}, {}]
    client.set_custom_meta(tq.BatchMeta.empty())
    unknown = tq.BatchMeta([1], [partition + "-unknown"], custom_meta=[{"a": 1}])
    client.set_custom_meta(unknown)
    assert partition + "-unknown" not in client.get_partition_list()


def test_a_fetch_brings_the_tags(client, partition):
    meta = client.put(numbers(2), partition_id=partition)
    meta.custom_meta = [{"len": 5}, {"len": 7}]
    client.set_custom_meta(meta)
    got = client.get_meta(["x"], 2, partition, task_name="train")
    assert got.custom_meta == [{"len": 5}, {"len": 7}]


def test_a_put_sends_the_tags_that_were_changed(client, partition):
    meta = client.put(numbers(2), partition_id=partition)
    meta.custom_meta[0]["a"] = 1
    client.put(numbers(2), metadata=meta)
    assert tags_of(client, meta) == [{"a": 1}, {}]


def test_a_put_with_stale_metadata_reverts_no_tags(client, partition):
    tq.kv_put("k", partition, {"x": torch.tensor(1)}, {"a": 1})
    held = client.kv_retrieve_meta("k", partition)
    assert held.custom_meta == [{"a": 1}]
    tq.kv_put("k", partition, tag={"a": 2, "b": 3})
    held.custom_meta[0]["c"] = 4
    client.put(rows(y=torch.arange(1)), metadata=held)
    assert tq.kv_list(partition)[partition]["k"] == {"a": 2, "b": 3, "c": 4}


def test_stale_tags_stay_stale_through_every_change_of_metadata(client, partition):
    keys = ["k0", "k1", "k2", "k3"]
    tq.kv_batch_put(keys, partition, rows(x=torch.arange(4)), [{"a": 1}] * 4)
    held = client.kv_retrieve_meta(keys, partition)
    tq.kv_batch_put(keys, partition, tags=[{"a": 2}] * 4)
    held = pickle.loads(pickle.dumps(held))
    held.reorder([3, 2, 1, 0])
    parts = held.chunk(2)
    held = tq.BatchMeta.concat([parts[1], parts[0].select_samples([1, 0])])
    held = held.union(held.copy())
    client.put(rows(y=torch.arange(4)), metadata=held)
    assert tq.kv_list(partition)[partition] == {key: {"a": 2} for key in keys}
    held.custom_meta[0]["a"] = 9
    client.put(rows(y=torch.arange(4)), metadata=held)
    assert sorted(t["a"] for t in tq.kv_list(partition)[partition].values()) == [2, 2, 2, 9]


# ---- keys ------------------------------------------------------------------------------------


def test_retrieving_metadata_of_keys(client, partition):
    tq.kv_batch_put(["a", "b"], partition, rows(x=torch.arange(2)), [{"t": 1}, {"t": 2}])
    tq.kv_put("a", partition, {"only_a": 1})
    meta = client.kv_retrieve_meta(["b", "nope", "a"], partition)
    assert meta.size == 2
    assert meta.field_names == ["x"]
    assert meta.custom_meta == [{"t": 2}, {"t": 1}]
    assert meta.is_ready
    assert client.get_data(meta)["x"].tolist() == [1, 0]
    assert client.kv_retrieve_meta("a", partition).field_names == ["only_a", "x"]
    assert client.kv_retrieve_meta(["a"], partition + "-unknown").size == 0
    assert client.kv_retrieve_meta(["nope"], partition).size == 0


def test_creating_keys(client, partition):
    meta = client.kv_retrieve_meta(["a", "b"], partition, create=True)
    assert meta.size == 2
    assert not meta.is_ready
    assert meta.field_names == []
    again = client.kv_retrieve_meta(["b", "a"], partition, create=True)
    assert again.global_indexes == meta.global_indexes[::-1]
    client.put(numbers(2), metadata=meta)
    assert tq.kv_batch_get(["b", "a"], partition)["x"].tolist() == [1, 0]
    assert tq.kv_list(partition) == {partition: {"a": {}, "b": {}}}


def test_retrieving_keys_of_rows(client, partition):
    tq.kv_batch_put(["a", "b"], partition, rows(x=torch.arange(2)))
    indexes = client.kv_retrieve_meta(["a", "b"], partition).global_indexes
    keyless = client.put(numbers(1), partition_id=partition).global_indexes
    assert client.kv_retrieve_keys(indexes, partition) == ["a", "b"]
    assert client.kv_retrieve_keys(indexes[1], partition) == ["b"]
    unknown = [2**40, -1, 2**63]
    assert client.kv_retrieve_keys([indexes[0], *keyless, *unknown], partition) == [
        "a",
        *[None] * 4,
    ]
    with pytest.raises(RuntimeError, match="not known"):
        client.kv_retrieve_keys(indexes, partition + "-unknown")
    for bad in (np.int64(1), (1,), [np.int64(1)], "1", None, [1.0]):
        with pytest.raises(TypeError):
            client.kv_retrieve_keys(bad, partition)
    with pytest.raises(ValueError, match="empty"):
        client.kv_retrieve_keys([], partition)
    for bad in ([], ()):
        with pytest.raises((ValueError, TypeError)):
            client.kv_retrieve_meta(bad, partition)
