# SPDX-License-Identifier: Apache-2.0
"""The kv_ functions: a key is a row; fields, tags, or both."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
from tensordict import TensorDict
from tqtest import keys_of, ragged, rows

import transfer_queue as tq
from transfer_queue.errors import StorageKeyNotFoundError, UsageError

pytestmark = pytest.mark.usefixtures("store")


def test_a_put_answers_keys_merged_tags_and_common_fields(partition):
    tq.kv_put("a", partition, {"x": torch.ones(2), "only_a": 1}, {"s": 1, "t": {"deep": 1}})
    keys = ["a", "b"]
    meta = tq.kv_batch_put(
        keys, partition, rows(x=torch.ones(2, 2), n=ragged(1, 2)), [{"t": {"new": 2}}, {}]
    )
    assert meta.keys is keys
    assert meta.tags == [{"s": 1, "t": {"new": 2}}, {}]
    assert meta.partition_id == partition
    assert meta.fields == ["n", "x"]
    assert meta.extra_info == {}


def test_fields_alone_and_tags_alone_leave_the_other(partition):
    tq.kv_put("a", partition, {"x": torch.ones(2)}, {"s": 1})
    assert tq.kv_put("a", partition, tag={"t": None}).fields == ["x"]
    assert tq.kv_put("a", partition, {"y": 1}).tags == [{"s": 1, "t": None}]
    assert tq.kv_put("b", partition, tag={}).fields == []


def test_the_status_idiom_keeps_the_other_tags(partition):
    tq.kv_put(key="a", partition_id=partition, tag={"uid": "u", "status": "new"})
    tq.kv_put(key="a", partition_id=partition, tag={"status": "done"})
    assert tq.kv_list(partition_id=partition) == {partition: {"a": {"uid": "u", "status": "done"}}}


def test_concurrent_tag_writes_are_all_kept(partition):
    tq.kv_put("a", partition, tag={})

    def write(writer):
        for i in range(8):
            tq.kv_put("a", partition, tag={f"{writer}-{i}": i})

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tq.kv_list(partition)[partition]["a"]) == 64


def test_a_dict_gets_the_batch_dimension(partition):
    tq.kv_put("a", partition, {"s": torch.tensor(3), "v": torch.arange(4), "o": "text"})
    data = tq.kv_batch_get("a", partition)
    assert data["s"].tolist() == [3]
    assert data["v"].shape[0] == 1
    assert list(data["o"]) == ["text"]


def test_a_tensordict_of_one_row_is_taken_as_it_is(partition):
    tq.kv_put("a", partition, TensorDict({"v": torch.ones(1, 4)}, batch_size=[1]))
    assert tq.kv_batch_get("a", partition)["v"].values().shape == (4,)
    with pytest.raises(IndexError):
        tq.kv_put("a", partition, TensorDict({"v": torch.ones(4)}, batch_size=[]))
    with pytest.raises(ValueError, match="batch_size"):
        tq.kv_put("a", partition, TensorDict({"v": torch.ones(2, 4)}, batch_size=[2]))


def test_an_empty_tensordict_makes_a_row_without_fields(partition):
    assert tq.kv_batch_put(["a"], partition, TensorDict({}, batch_size=[1])).fields == []
    assert tq.kv_list(partition) == {partition: {"a": {}}}


@pytest.mark.parametrize("key", ["", "ключ \U0001f511", "a\0b", " ", "k" * 1024])
def test_any_text_can_be_a_key(partition, key):
    tq.kv_put(key, partition, {"x": 1}, {"t": 1})
    assert tq.kv_list(partition) == {partition: {key: {"t": 1}}}
    assert list(tq.kv_batch_get([key], partition)["x"]) == [1]
    tq.kv_clear(key, partition)
    assert tq.kv_list(partition) == {partition: {}}


@pytest.mark.parametrize("make", [lambda n: n, lambda n: (n, "x"), lambda n: -n])
def test_a_partition_id_need_not_be_a_str(partition, make):
    number = int(partition.rpartition("-")[2]) + 1
    partition_id = make(number)
    assert tq.kv_put("a", partition_id, tag={"t": 1}).partition_id == partition_id
    assert tq.kv_list(partition_id) == {partition_id: {"a": {"t": 1}}}
    assert partition_id in tq.kv_list()
    assert tq.kv_list(str(partition_id)) == {}


# ---- reading ---------------------------------------------------------------------------------


def test_unknown_keys_are_left_out_with_a_counted_warning(partition, client, caplog):
    tq.kv_batch_put(["a", "b"], partition, rows(x=torch.arange(2)))
    client._session.skipped_keys_cnt = 0
    with caplog.at_level(logging.WARNING, "transfer_queue"):
        for _ in range(16):
            data = tq.kv_batch_get(["b", "nope", "a"], partition)
    assert data["x"].tolist() == [1, 0]
    assert client._session.skipped_keys_cnt == 16
    # At 1, 2, 4, 8 and 16: a loop that skips keys does not flood the log.
    assert len(caplog.records) == 5
    assert "1 of 3 keys" in caplog.text


def test_strict_names_unknown_keys(partition):
    tq.kv_batch_put(["a", "b"], partition, rows(x=torch.arange(2)))
    with pytest.raises(UsageError, match="nope"):
        tq.kv_batch_get(["a", "nope"], partition, strict=True)
    assert tq.kv_batch_get(["a", "b"], partition, strict=True)["x"].tolist() == [0, 1]


def test_no_known_key_is_an_error(partition):
    with pytest.raises(ValueError, match="keys or partition were not found!"):
        tq.kv_batch_get(["a"], partition)
    tq.kv_put("b", partition, {"x": 1})
    with pytest.raises(ValueError, match="keys or partition were not found!"):
        tq.kv_batch_get(["a"], partition)


def test_rows_without_a_common_field_are_an_error(partition):
    tq.kv_put("a", partition, {"x": 1})
    tq.kv_put("b", partition, {"y": 1})
    tq.kv_put("t", partition, tag={"t": 1})
    message = "Some fields are not ready in all the requested keys!"
    for keys, fields in ((["a", "b"], None), (["t"], None), (["t"], ["x"]), (["t"], [])):
        with pytest.raises(ValueError, match=message):
            tq.kv_batch_get(keys, partition, fields)


def test_selected_fields_that_are_missing_are_dropped(partition):
    tq.kv_put("a", partition, {"x": torch.ones(2), "y": 1})
    tq.kv_put("b", partition, {"x": torch.ones(3)})
    assert list(tq.kv_batch_get(["a", "b"], partition, ["y", "x", "z"]).keys()) == ["x"]
    assert list(tq.kv_batch_get(["a"], partition, "y").keys()) == ["y"]
    for selected in (["y"], ["nope"], [], ""):
        data = tq.kv_batch_get(["a", "b"], partition, selected)
        assert data.batch_size == torch.Size([0])
        assert list(data.keys()) == []
    assert "y" not in tq.kv_batch_get(["a", "b"], partition, ["x", "y"])


def test_strict_names_missing_fields(partition):
    tq.kv_put("a", partition, {"x": torch.ones(2), "y": 1})
    tq.kv_put("b", partition, {"x": torch.ones(3)})
    with pytest.raises(StorageKeyNotFoundError, match="y"):
        tq.kv_batch_get(["a", "b"], partition, ["x", "y"], strict=True)
    with pytest.raises(UsageError, match="nope"):
        tq.kv_batch_get(["a", "b"], partition, ["nope"], strict=True)


def test_reading_by_metadata(partition):
    meta = tq.kv_batch_put(["a", "b"], partition, rows(x=torch.arange(2), y=ragged(1, 2)))
    assert list(tq.kv_batch_get_by_meta(meta).keys()) == ["x", "y"]
    assert list(tq.kv_batch_get_by_meta(meta, "x").keys()) == ["x"]
    with pytest.raises(ValueError, match=r"select_fields.*not found"):
        tq.kv_batch_get_by_meta(meta, ["x", "z"])
    bare = tq.KVBatchMeta(["b"], [{}], partition)
    assert list(tq.kv_batch_get_by_meta(bare).keys()) == ["x", "y"]
    with pytest.raises(ValueError, match="partition_id"):
        tq.kv_batch_get_by_meta(tq.KVBatchMeta(["b"], [{}]))


def test_metadata_with_fields_reads_those_only(partition):
    meta = tq.kv_batch_put(["a"], partition, rows(x=torch.arange(1)))
    tq.kv_put("a", partition, {"later": 1})
    assert list(tq.kv_batch_get_by_meta(meta).keys()) == ["x"]


# ---- listing and clearing --------------------------------------------------------------------


def test_a_list_has_keys_in_insertion_order(partition, client):
    tq.kv_batch_put(["z", "a"], partition, tags=[{"i": 0}, {"i": 1}])
    client.put(rows(x=torch.ones(2)), partition_id=partition)
    tq.kv_put("m", partition, {"x": 1})
    listed = tq.kv_list(partition)[partition]
    assert list(listed.items()) == [("z", {"i": 0}), ("a", {"i": 1}), ("m", {})]


def test_lists_of_unknown_and_keyless_partitions(partition, client):
    assert tq.kv_list(partition) == {}
    client.put(rows(x=torch.ones(2)), partition_id=partition)
    assert tq.kv_list(partition) == {partition: {}}
    assert tq.kv_list()[partition] == {}


def test_a_clear_takes_existing_missing_and_repeated_keys(partition):
    tq.kv_batch_put(["a", "b"], partition, rows(x=torch.arange(2)))
    tq.kv_put("t", partition, tag={"t": 1})
    tq.kv_clear(["a", "nope", "a", "t"], partition)
    assert list(tq.kv_list(partition)[partition]) == ["b"]
    tq.kv_clear("b", partition)
    assert tq.kv_list(partition) == {partition: {}}
    tq.kv_clear(["a"], partition + "-unknown")


def test_a_cleared_key_can_be_written_again(partition, client):
    tq.kv_put("a", partition, {"x": 1}, {"old": 1})
    before = client.kv_retrieve_meta("a", partition).global_indexes
    tq.kv_clear("a", partition)
    meta = tq.kv_put("a", partition, {"y": 2}, {"new": 1})
    assert (meta.fields, meta.tags) == (["y"], [{"new": 1}])
    assert client.kv_retrieve_meta("a", partition).global_indexes != before


def test_reads_beside_clears_skip_what_is_gone(partition):
    tq.kv_put("stays", partition, {"x": torch.tensor(1)})
    ended = threading.Event()

    def churn():
        while not ended.is_set():
            tq.kv_put("goes", partition, {"x": torch.tensor(2)})
            tq.kv_clear("goes", partition)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            got = tq.kv_batch_get(["stays", "goes"], partition)["x"].tolist()
            assert got in ([1], [1, 2])
    finally:
        ended.set()
        thread.join()


# ---- bad arguments ---------------------------------------------------------------------------


def test_keys_must_be_a_list_of_str(partition):
    for bad in (("a",), {"a"}, 3, None, [1], ["a", None], [b"a"]):
        for call in (
            lambda keys: tq.kv_batch_put(keys, partition, tags=[{}]),
            lambda keys: tq.kv_batch_get(keys, partition),
            lambda keys: tq.kv_clear(keys, partition),
        ):
            with pytest.raises(TypeError, match="keys"):
                call(bad)
    for call in (tq.kv_batch_get, tq.kv_clear, tq.kv_batch_put):
        with pytest.raises(ValueError, match="empty"):
            call([], partition)
    with pytest.raises(TypeError):
        tq.kv_batch_put("abc", partition, tags=[{}] * 3)
    with pytest.raises(TypeError):
        tq.kv_put(1, partition, tag={})


def test_a_key_twice_is_refused_before_anything_is_written(partition, client):
    with pytest.raises(ValueError, match=r"Got duplicated keys\."):
        tq.kv_batch_put(["a", "a"], partition, rows(x=torch.arange(2)))
    assert tq.kv_list(partition) == {}
    assert partition not in client.get_partition_list()


def test_lengths_must_match(partition):
    with pytest.raises(ValueError, match="match"):
        tq.kv_batch_put(["a", "b"], partition, rows(x=torch.arange(3)))
    with pytest.raises(ValueError, match="match"):
        tq.kv_batch_put(["a", "b"], partition, tags=[{}])
    with pytest.raises(ValueError, match="at least one"):
        tq.kv_batch_put(["a"], partition)
    with pytest.raises(ValueError, match="at least one"):
        tq.kv_put("a", partition)
    assert tq.kv_list(partition) == {}


def test_what_is_no_column_is_refused_by_name(partition):
    nested = torch.nested.as_nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    with pytest.raises(ValueError, match=r"'x'.*kv_batch_put"):
        tq.kv_put("a", partition, {"x": nested})
    with pytest.raises(ValueError, match="dict or TensorDict"):
        tq.kv_put("a", partition, "text")
    with pytest.raises(AttributeError):
        tq.kv_batch_put(["a"], partition, {"x": torch.ones(1)})
    inner = TensorDict({"y": torch.ones(2)}, batch_size=[2])
    with pytest.raises(RuntimeError, match=r"'x'.*flatten"):
        tq.kv_batch_put(["a", "b"], partition, TensorDict({"x": inner}, batch_size=[2]))
    with pytest.raises(NotImplementedError, match=r"'x'.*sparse"):
        tq.kv_batch_put(["a", "b"], partition, rows(x=torch.eye(2).to_sparse()))
    with pytest.raises(UsageError, match=r"'x'.*meta"):
        tq.kv_batch_put(["a", "b"], partition, rows(x=torch.ones(2, 2, device="meta")))
    with pytest.raises(ValueError, match="17 dimensions"):
        tq.kv_batch_put(["a"], partition, rows(x=torch.ones(*([1] * 18))))
    with pytest.raises(UsageError, match="tags"):
        tq.kv_batch_put(["a"], partition, tags=["text"])
    assert tq.kv_list(partition) == {}


def test_a_name_that_is_none_or_too_long_is_refused(partition):
    with pytest.raises(TypeError, match="partition_id"):
        tq.kv_put("a", None, tag={})
    with pytest.raises(TypeError, match="partition_id"):
        tq.kv_put("a", object(), tag={})
    with pytest.raises(ValueError):
        tq.kv_put("a", "p\0q", tag={})
    with pytest.raises(UsageError):
        tq.kv_put("a", "p" * 1025, tag={})
    with pytest.raises(UsageError):
        tq.kv_put("k" * 1025, partition, tag={})
    with pytest.raises(UsageError):
        tq.kv_put("a", partition, {"f" * 1025: 1})
    with pytest.raises(UsageError):
        tq.kv_put("a", partition, {"": 1})
    assert tq.kv_list(partition).get(partition, {}) == {}


# ---- data_parser -----------------------------------------------------------------------------


def test_a_parser_changes_what_is_written(partition):
    def parse(columns):
        return {"x": columns["x"] * 2, "urls": [url.upper() for url in columns["urls"]]}

    tq.kv_batch_put(
        keys_of(2), partition, rows(x=torch.arange(2), urls=["a", "b"]), data_parser=parse
    )
    data = tq.kv_batch_get(keys_of(2), partition)
    assert data["x"].tolist() == [0, 2]
    assert list(data["urls"]) == ["A", "B"]


@pytest.mark.parametrize(
    ("parser", "message"),
    [
        (lambda columns: {}, "keys"),
        (lambda columns: None, "NoneType"),
        (lambda columns: {"x": columns["x"][:1]}, "rows"),
        (lambda columns: 1 / 0, "division by zero"),
        (3, "callable"),
    ],
)
def test_a_parser_that_breaks_its_word_fails_the_put(partition, parser, message):
    with pytest.raises(RuntimeError, match=message):
        tq.kv_batch_put(keys_of(2), partition, rows(x=torch.arange(2)), data_parser=parser)
    assert tq.kv_list(partition) == {}
