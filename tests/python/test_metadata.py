# SPDX-License-Identifier: Apache-2.0
"""BatchMeta and KVBatchMeta by themselves: no store is needed."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tqtest import ragged, rows

from transfer_queue import BatchMeta, KVBatchMeta
from transfer_queue.metadata import extract_field_schema

DENSE = {
    "dtype": torch.float32,
    "shape": torch.Size([2]),
    "is_nested": False,
    "is_non_tensor": False,
}
NESTED = {
    "dtype": torch.float32,
    "shape": None,
    "is_nested": True,
    "is_non_tensor": False,
    "per_sample_shapes": [(1,), (2,), (3,)],
}


@pytest.fixture
def meta():
    return BatchMeta(
        [5, 6, 7],
        ["p", "p", "q"],
        {"a": dict(DENSE), "b": copy.deepcopy(NESTED)},
        extra_info={"x": 1},
        custom_meta=[{"i": 0}, {"i": 1}, {"i": 2}],
    )


def one(schema, index=8):
    return BatchMeta([index], ["p"], {"a": schema})


# ---- BatchMeta: what it is -------------------------------------------------------------------


def test_defaults():
    meta = BatchMeta((1, 2), ("p", "p"))
    assert meta.global_indexes == [1, 2]
    assert meta.production_status.dtype == np.int8
    assert meta.production_status.tolist() == [0, 0]
    assert meta.custom_meta == [{}, {}]
    assert meta.extra_info == {}
    assert meta.field_names == []
    assert not meta.is_ready


def test_metadata_of_nothing():
    for empty in (BatchMeta(), BatchMeta.empty()):
        assert (empty.size, len(empty), empty.field_names, empty.is_ready) == (0, 0, [], False)
        assert list(empty) == []
    assert BatchMeta.empty({"a": 1}).extra_info == {"a": 1}


@pytest.mark.parametrize(
    "arguments",
    [
        {"partition_ids": ["p", "q"]},
        {"production_status": np.zeros(3)},
        {"custom_meta": [{}, {}]},
        {"field_schema": {"a": {"per_sample_shapes": [(1,), (2,)]}}},
    ],
    ids=lambda a: next(iter(a)),
)
def test_lengths_that_differ_are_refused(arguments):
    with pytest.raises(ValueError, match="length"):
        BatchMeta(**{"global_indexes": [1], "partition_ids": ["p"], **arguments})


def test_production_status_is_copied_as_int8():
    given = np.ones(1, dtype=np.int8)
    meta = BatchMeta([1], ["p"], {"a": {}}, given)
    assert meta.is_ready
    given[0] = 0
    assert meta.is_ready
    assert BatchMeta([1], ["p"], None, [1]).production_status.dtype == np.int8


def test_it_has_slots_and_no_equality(meta):
    with pytest.raises(AttributeError):
        meta.foo = 1
    with pytest.raises(AttributeError):
        meta.field_names = []
    assert meta != meta.copy()
    meta.extra_info = None
    assert meta.copy().extra_info is None
    assert str(meta).startswith("BatchMeta(size=3, field_names=['a', 'b'], is_ready=False, ")


def test_dtypes_and_shapes_have_one_entry_a_row(meta):
    assert meta.get_dtypes("a") == [torch.float32] * 3
    assert meta.get_shapes("a") == [torch.Size([2])] * 3
    assert meta.get_shapes("b") == [(1,), (2,), (3,)]
    for call in (meta.get_dtypes, meta.get_shapes):
        with pytest.raises(KeyError, match="nope"):
            call("nope")


def test_samples_take_int_indexes(meta):
    assert len(meta.samples) == 3
    assert [sample.global_index for sample in meta.samples] == [5, 6, 7]
    assert meta.samples[-1].partition_id == "q"
    assert meta.samples[np.int64(0)].fields == ["a", "b"]
    assert "global_index=5" in repr(meta.samples[0])
    with pytest.raises(TypeError):
        meta.samples[0:1]
    with pytest.raises(IndexError):
        meta.samples[3]


def test_it_survives_pickling(meta):
    other = pickle.loads(pickle.dumps(meta))
    assert other.global_indexes == meta.global_indexes
    assert other.field_schema == meta.field_schema
    assert other.custom_meta == meta.custom_meta
    assert other.extra_info == meta.extra_info


# ---- BatchMeta: parts and orders -------------------------------------------------------------


def test_chunks_are_larger_first_and_may_be_empty(meta):
    assert [part.global_indexes for part in meta.chunk(2)] == [[5, 6], [7]]
    assert [part.get_shapes("b") for part in meta.chunk(2)] == [[(1,), (2,)], [(3,)]]
    assert [part.size for part in meta.chunk(5)] == [1, 1, 1, 0, 0]
    assert all(part.extra_info == {"x": 1} for part in meta.chunk(2))
    with pytest.raises(ZeroDivisionError):
        meta.chunk(0)


def test_chunks_share_the_values_of_extra_info(meta):
    meta.extra_info["big"] = value = [1]
    assert all(part.extra_info["big"] is value for part in meta.chunk(3))


def test_chunks_by_partition(meta):
    meta.reorder([0, 2, 1])
    assert [(part.global_indexes, part.partition_ids) for part in meta.chunk_by_partition()] == [
        ([5, 6], ["p", "p"]),
        ([7], ["q"]),
    ]


def test_selecting_samples(meta):
    part = meta.select_samples([2, 0, 0])
    assert part.global_indexes == [7, 5, 5]
    assert part.partition_ids == ["q", "p", "p"]
    assert part.get_shapes("b") == [(3,), (1,), (1,)]
    assert [tags["i"] for tags in part.custom_meta] == [2, 0, 0]
    assert meta.select_samples(np.array([1])).global_indexes == [6]
    assert meta.select_samples([]).size == 0
    for bad in ([-1], [3], [0, 9]):
        with pytest.raises(ValueError, match=r"range|in "):
            meta.select_samples(bad)


def test_selecting_fields_ignores_unknown_names(meta):
    part = meta.select_fields(["a", "nope"])
    assert part.field_names == ["a"]
    assert meta.field_names == ["a", "b"]
    assert meta.select_fields("a").field_names == ["a"]
    assert meta.select_fields([]).size == 3


def test_indexing_and_iterating(meta):
    assert [meta[0].global_indexes, meta[-1].global_indexes] == [[5], [7]]
    assert meta[np.int64(1)].global_indexes == [6]
    assert meta[1:].global_indexes == [6, 7]
    assert [row.size for row in meta] == [1, 1, 1]
    for index in (3, -4):
        with pytest.raises(IndexError):
            meta[index]
    for index in ([0], "0", 1.0):
        with pytest.raises(TypeError):
            meta[index]


def test_reordering_in_place(meta):
    assert meta.reorder([2, 0, 1]) is None
    assert meta.global_indexes == [7, 5, 6]
    assert meta.partition_ids == ["q", "p", "p"]
    assert meta.get_shapes("b") == [(3,), (1,), (2,)]
    assert [tags["i"] for tags in meta.custom_meta] == [2, 0, 1]
    for bad in ([0, 1], [0, 0, 1], [-1, 0, 1], [0, 1, 3]):
        with pytest.raises(ValueError):
            meta.reorder(bad)
    assert meta.global_indexes == [7, 5, 6]


def test_a_copy_shares_no_containers(meta):
    other = meta.copy()
    other.global_indexes.append(1)
    other.field_schema["a"]["dtype"] = None
    other.custom_meta[0]["i"] = 9
    other.extra_info["x"] = 9
    other.production_status[0] = 1
    assert meta.global_indexes == [5, 6, 7]
    assert meta.field_schema["a"] == DENSE
    assert meta.custom_meta[0] == {"i": 0}
    assert meta.extra_info == {"x": 1}
    assert meta.production_status[0] == 0


# ---- BatchMeta: together ---------------------------------------------------------------------


def test_concatenating(meta):
    joined = BatchMeta.concat([meta, BatchMeta.empty(), meta.select_samples([0])])
    assert joined.global_indexes == [5, 6, 7, 5]
    assert joined.partition_ids == ["p", "p", "q", "p"]
    assert joined.field_schema["a"] == DENSE
    assert joined.get_shapes("b") == [(1,), (2,), (3,), (1,)]
    assert [tags["i"] for tags in joined.custom_meta] == [0, 1, 2, 0]
    assert BatchMeta.concat([]).size == 0
    assert BatchMeta.concat([meta]) is not meta


def test_concatenating_different_fields(meta):
    other = meta.select_fields(["a"])
    with pytest.raises(ValueError, match="fields"):
        BatchMeta.concat([meta, other])
    joined = BatchMeta.concat([meta, other], validate=False)
    assert joined.field_names == ["a", "b"]
    assert joined.get_shapes("b") == [(1,), (2,), (3,), None, None, None]


def test_concatenating_different_dtypes():
    with pytest.raises(ValueError, match="dtype"):
        BatchMeta.concat([one(DENSE), one({**DENSE, "dtype": torch.int64})])


def test_concatenating_uniform_and_ragged_gives_nested():
    nested = {**NESTED, "per_sample_shapes": [(9,)]}
    schema = BatchMeta.concat([one(DENSE), one(nested)]).field_schema["a"]
    assert schema["is_nested"]
    assert schema["shape"] is None
    assert schema["per_sample_shapes"] == [torch.Size([2]), (9,)]


def test_concatenating_extra_info(meta):
    other = meta.copy()
    other.extra_info = {"y": torch.ones(2)}
    joined = BatchMeta.concat([meta, other, other.copy()])
    assert joined.extra_info["x"] == 1
    assert torch.equal(joined.extra_info["y"], torch.ones(2))
    other.extra_info = {"x": 2}
    with pytest.raises(ValueError, match="'x'"):
        BatchMeta.concat([meta, other])
    other.extra_info = None
    assert BatchMeta.concat([meta, other]).extra_info == {"x": 1}


def test_a_union_has_the_fields_of_both(meta):
    other = BatchMeta(
        [5, 6, 7], ["p", "p", "q"], {"z": DENSE}, np.ones(3), {"x": 2, "k": 3}, [{"i": 9}, {}, {}]
    )
    joined = meta.union(other)
    assert joined.field_names == ["a", "b", "z"]
    assert joined.production_status.tolist() == [0, 0, 0]
    assert joined.extra_info == {"x": 2, "k": 3}
    assert [tags["i"] for tags in joined.custom_meta] == [9, 1, 2]
    assert meta.field_names == ["a", "b"]


def test_a_union_with_nothing_is_a_copy(meta):
    for joined in (meta.union(None), meta.union(BatchMeta()), BatchMeta().union(meta)):
        assert joined.global_indexes == [5, 6, 7]
        assert joined is not meta


def test_a_union_of_different_rows_is_refused(meta):
    other = meta.copy()
    other.partition_ids[0] = "z"
    for bad in (meta.select_samples([1, 0, 2]), meta.select_samples([0]), other):
        with pytest.raises(ValueError, match="union"):
            meta.union(bad)


def test_metadata_of_different_stores_is_not_joined(meta):
    other = meta.copy()
    meta._incarnation, other._incarnation = 1, 2
    for call in (lambda: BatchMeta.concat([meta, other]), lambda: meta.union(other)):
        with pytest.raises(ValueError, match="store"):
            call()


def test_adding_fields(meta):
    data = rows(n=torch.ones(3, 4), g=ragged(1, 2, 3), o=["a", "b", "c"])
    assert meta.add_fields(data, set_all_ready=False) is meta
    assert not meta.is_ready
    assert meta.add_fields(data).is_ready
    assert meta.field_names == ["a", "b", "g", "n", "o"]
    with pytest.raises(ValueError, match="size"):
        meta.add_fields(rows(n=torch.ones(2)))


def test_tags_and_extra_info(meta):
    meta.update_custom_meta([{"a": 1}, {}, {"i": 5}])
    assert meta.custom_meta == [{"i": 0, "a": 1}, {"i": 1}, {"i": 5}]
    meta.update_custom_meta(None)
    with pytest.raises(ValueError, match="length"):
        meta.update_custom_meta([{}])
    tags = meta.get_all_custom_meta()
    meta.clear_custom_meta()
    assert meta.custom_meta == [{}, {}, {}]
    assert tags[2] == {"i": 5}
    meta.set_extra_info("q", 2)
    meta.update_extra_info({"w": 3})
    assert meta.get_extra_info("q") == 2
    assert meta.get_extra_info("nope", 7) == 7
    assert meta.has_extra_info("w")
    assert meta.remove_extra_info("w") == 3
    assert meta.remove_extra_info("w") is None
    assert meta.get_all_extra_info() == {"x": 1, "q": 2}
    meta.clear_extra_info()
    assert meta.extra_info == {}


def test_field_schemas_of_data():
    schema = extract_field_schema(
        rows(v=torch.ones(3, 2), s=torch.arange(3), o=["a", "b", "c"], g=ragged(1, 2, 3))
    )
    assert schema["v"] == DENSE
    assert schema["s"]["shape"] == torch.Size([1])
    assert schema["o"] == {
        "dtype": None,
        "shape": None,
        "is_nested": False,
        "is_non_tensor": True,
    }
    assert schema["g"] == {**NESTED, "shape": torch.Size([1])}


# ---- KVBatchMeta -----------------------------------------------------------------------------


@pytest.fixture
def kv():
    return KVBatchMeta(["a", "b", "c"], [{"x": 1}, {}, {}], "p", ["f", "g"], {"e": 1})


def test_kv_defaults_and_equality(kv):
    assert KVBatchMeta() == KVBatchMeta([], [], None, None, {})
    assert kv == KVBatchMeta(["a", "b", "c"], [{"x": 1}, {}, {}], "p", ["f", "g"], {"e": 1})
    assert (kv.size, len(kv)) == (3, 3)
    assert str(kv) == "KVBatchMeta(size=3, field_names=['f', 'g'], extra_info={'e': 1})"
    with pytest.raises(TypeError):
        kv[0]
    with pytest.raises(TypeError):
        iter(kv)


def test_kv_checks():
    for arguments, message in (
        ((["a", "a"], [{}, {}]), "duplicated keys"),
        ((["a"], [{}], "p", ["f", "f"]), "duplicated fields"),
        ((["a"], []), "tags"),
        ((["a"],), "tags"),
    ):
        with pytest.raises(ValueError, match=message):
            KVBatchMeta(*arguments)


def test_kv_copies_tags_deeply_and_keys_not():
    keys, tags, extra = ["a"], [{"x": [1]}], {"e": [1]}
    meta = KVBatchMeta(keys, tags, extra_info=extra)
    tags[0]["x"].append(2)
    extra["e"].append(2)
    assert meta.keys is keys
    assert meta.tags == [{"x": [1]}]
    assert meta.extra_info == {"e": [1]}


def test_kv_chunks(kv):
    assert [part.keys for part in kv.chunk(2)] == [["a", "b"], ["c"]]
    assert [part.size for part in kv.chunk(5)] == [1, 1, 1, 0, 0]
    assert kv.chunk(2)[1] == KVBatchMeta(["c"], [{}], "p", ["f", "g"], {"e": 1})
    with pytest.raises(ZeroDivisionError):
        kv.chunk(0)


def test_kv_selects_keys(kv):
    assert kv.select_keys(["c", "a"]).tags == [{}, {"x": 1}]
    assert kv.select_keys([]).keys == []
    with pytest.raises(RuntimeError, match="z"):
        kv.select_keys(["z"])
    with pytest.raises(ValueError, match="duplicate"):
        kv.select_keys(["a", "a"])


def test_kv_reorders_in_place(kv):
    assert kv.reorder([-1, 0, 1]) is None
    assert kv.keys == ["c", "a", "b"]
    assert kv.tags == [{}, {"x": 1}, {}]
    for bad, error in (([0], ValueError), ([0, 0, 1], ValueError), ([0, 1, 9], IndexError)):
        with pytest.raises(error):
            kv.reorder(bad)


def test_kv_concatenates():
    def part(key, fields=None, partition="p", extra_info=None):
        return KVBatchMeta([key], [{}], partition, fields, extra_info)

    joined = KVBatchMeta.concat([part("a", ["f", "g"]), KVBatchMeta(), part("b", ["g", "f"])])
    assert (joined.keys, joined.fields, joined.extra_info) == (["a", "b"], ["f", "g"], None)
    assert KVBatchMeta.concat([part("a", ["f"]), part("b")]).fields == ["f"]
    assert KVBatchMeta.concat([]) == KVBatchMeta()
    both = KVBatchMeta.concat(
        [part("a", extra_info={"x": 1}), part("b", extra_info={"x": 1, "y": 2})]
    )
    assert both.extra_info == {"x": 1, "y": 2}
    for bad in (
        [part("a"), part("b", ["f"])],
        [part("a"), part("b", partition="q")],
        [part("a"), part("a")],
        [part("a", extra_info={"x": 1}), part("b", extra_info={"x": 2})],
    ):
        with pytest.raises(ValueError):
            KVBatchMeta.concat(bad)


def test_kv_survives_pickling(kv):
    assert pickle.loads(pickle.dumps(kv)) == kv


def test_an_empty_tensordict_has_no_fields():
    assert extract_field_schema(TensorDict({}, batch_size=[3])) == {}
