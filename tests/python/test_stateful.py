# SPDX-License-Identifier: Apache-2.0
"""Any sequence of calls is answered as model.py says: each rule makes one call and compares."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tensordict import NonTensorStack, TensorDict

import transfer_queue as tq
from model import Model

FIELDS = ["dense", "ragged", "object", "any"]
TASKS = ["trainer", "critic"]
PARTITIONS = ["p", "q"]

partitions = st.sampled_from(PARTITIONS)
tasks = st.sampled_from(TASKS)
keys = st.lists(st.sampled_from([f"k{i}" for i in range(6)]), min_size=1, max_size=4, unique=True)
field_sets = st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True)
tags = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9) | st.none(), max_size=2)


class Values:
    """Columns whose every value is another one; one row of them, as a get returns it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def of(self, name, cnt) -> list:
        return [getattr(self, f"_{name}")(next(self._numbers)) for _ in range(cnt)]

    def _dense(self, number):
        return torch.tensor(number)

    def _ragged(self, number):
        return torch.full((number % 4,), number, dtype=torch.float64)

    def _object(self, number):
        return [str(number), (number, None), {"n": number}][number % 3]

    def _any(self, number):
        return [self._dense, self._ragged, self._object][number % 3](number)


def column(values):
    """The values as a column of a TensorDict, in a form that users have them in."""
    if all(isinstance(value, torch.Tensor) for value in values):
        if len({(value.shape, value.dtype) for value in values}) == 1:
            return torch.stack(values)
        if len({(value.ndim, value.dtype) for value in values}) == 1:
            return torch.nested.as_nested_tensor(values, layout=torch.jagged)
    return NonTensorStack(*values)


def rows_of(columns) -> list[dict]:
    """{field: [values]} as one dict a row."""
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def as_data(columns, cnt):
    return TensorDict({name: column(values) for name, values in columns.items()}, batch_size=[cnt])


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return type(left) is type(right) and left == right


def check_data(data, wanted) -> None:
    """data (of a get) has exactly the cells of wanted: dicts, one a row."""
    assert data.batch_size == torch.Size([len(wanted)] if wanted and wanted[0] else [0])
    assert sorted(data.keys()) == sorted(wanted[0]) if wanted else not list(data.keys())
    for name in data.keys():  # noqa: SIM118 a TensorDict iterates over its rows
        got = data.get(name)
        values = got.tolist() if isinstance(got, NonTensorStack) else list(got.unbind())
        for value, row in zip(values, wanted, strict=True):
            assert same(value, row[name]), f"{name}: {value!r} instead of {row[name]!r}"


class Store(RuleBasedStateMachine):
    """The embedded store of this process against the model, in partitions that start empty."""

    def __init__(self) -> None:
        super().__init__()
        self.client = tq.get_client()
        self.model = Model()
        self.values = Values()

    def teardown(self) -> None:
        for name in PARTITIONS:
            self.client.clear_partition(name)

    def _columns(self, names, cnt):
        return {name: self.values.of(name, cnt) for name in names}

    # ---- writing -------------------------------------------------------------------------------

    @rule(name=partitions, keys=keys, names=field_sets | st.just([]), tags=st.none() | tags)
    def kv_batch_put(self, name, keys, names, tags):
        if not names and tags is None:
            with pytest.raises(ValueError):
                tq.kv_batch_put(keys, name)
            return
        columns = self._columns(names, len(keys))
        meta = tq.kv_batch_put(
            keys,
            name,
            as_data(columns, len(keys)) if names else None,
            None if tags is None else [tags] * len(keys),
        )
        new = [key for key in keys if self.model.at(name).index_of(key) is None]
        if new:
            made = self.client.kv_retrieve_meta(new, name).global_indexes
            assert made == sorted(made)
            self.model.add(name, made, new)
        partition = self.model.at(name)
        indexes = partition.found(keys)
        for index, cells in zip(indexes, rows_of(columns) or [{}] * len(keys), strict=True):
            partition.write(index, cells)
            partition.rows[index].tags |= tags or {}
        assert meta.keys == keys
        assert meta.tags == [partition.rows[index].tags for index in indexes]
        assert meta.fields == sorted(partition.common(indexes))

    @rule(name=partitions, cnt=st.integers(1, 4), names=field_sets)
    def put_new_rows(self, name, cnt, names):
        columns = self._columns(names, cnt)
        meta = self.client.put(as_data(columns, cnt), partition_id=name)
        partition = self.model.add(name, meta.global_indexes)
        for index, cells in zip(meta.global_indexes, rows_of(columns), strict=True):
            partition.write(index, cells)

    @rule(name=partitions, cnt=st.integers(1, 3), names=field_sets)
    def reserve(self, name, cnt, names):
        meta = self.client.get_meta(names, cnt, name, mode="insert")
        assert meta.production_status.tolist() == [0] * cnt
        self.model.add(name, meta.global_indexes)

    @rule(name=partitions, names=field_sets, pick=st.randoms(use_true_random=False))
    def put_to_rows(self, name, names, pick):
        partition = self.model.at(name)
        if not partition.rows:
            return
        meta = self.client.get_meta(names, None, name, mode="force_fetch")
        places = pick.sample(range(meta.size), pick.randint(1, meta.size))
        meta = meta.select_samples(places)
        columns = self._columns(names, meta.size)
        self.client.put(as_data(columns, meta.size), metadata=meta)
        for index, cells in zip(meta.global_indexes, rows_of(columns), strict=True):
            partition.write(index, cells)

    @rule(name=partitions, keys=keys, tags=tags)
    def set_custom_meta(self, name, keys, tags):
        meta = self.client.kv_retrieve_meta(keys, name)
        if meta.size:
            meta.update_custom_meta([tags] * meta.size)
            wanted = meta.get_all_custom_meta()
            self.client.set_custom_meta(meta)
            for index, row_tags in zip(meta.global_indexes, wanted, strict=True):
                self.model.at(name).rows[index].tags = row_tags

    @rule(name=partitions, keys=keys)
    def kv_clear(self, name, keys):
        tq.kv_clear(keys, name)
        self.model.clear(name, self.model.at(name).found(keys))

    @rule(name=partitions, pick=st.randoms(use_true_random=False))
    def clear_samples(self, name, pick):
        partition = self.model.at(name)
        if not partition.rows:
            return
        meta = self.client.get_meta(FIELDS, None, name, mode="force_fetch")
        meta = meta.select_samples(pick.sample(range(meta.size), pick.randint(0, meta.size)))
        self.client.clear_samples(meta)
        self.model.clear(name, meta.global_indexes)
        if meta.size and meta.field_names:
            with pytest.raises(tq.StorageKeyNotFoundError):
                self.client.get_data(meta)
        self.client.clear_samples(meta)

    @rule(name=partitions)
    def clear_partition(self, name):
        self.client.clear_partition(name)
        self.model.drop(name)

    # ---- consuming -----------------------------------------------------------------------------

    @rule(name=partitions, task=tasks, names=field_sets, cnt=st.integers(1, 4))
    def fetch(self, name, task, names, cnt):
        partition = self.model.at(name)
        ready = partition.ready(names, task)
        if len(ready) < cnt:
            with pytest.raises(TimeoutError):
                self.client.get_meta(names, cnt, name, task_name=task, timeout=0.001)
            return
        meta = self.client.get_meta(names, cnt, name, task_name=task, timeout=5)
        assert meta.global_indexes == ready[:cnt]
        assert meta.custom_meta == [partition.rows[index].tags for index in ready[:cnt]]
        partition.consumed.setdefault(task, set()).update(meta.global_indexes)
        cells = [partition.rows[index].cells for index in ready[:cnt]]
        wanted = [{field: row[field] for field in names} for row in cells]
        check_data(self.client.get_data(meta), wanted)

    @rule(name=partitions, task=tasks | st.none())
    def reset(self, name, task):
        assert self.client.reset_consumption(name, task) is True
        self.model.reset(name, task)

    # ---- reading -------------------------------------------------------------------------------

    @rule(name=partitions, keys=keys, names=field_sets | st.none(), pick=st.integers(0, 3))
    def kv_batch_get(self, name, keys, names, pick):
        keys = keys + keys[:pick]  # repeats are fine
        partition = self.model.at(name)
        found = partition.found(keys)
        common = partition.common(found)
        if not common:  # no such row included
            with pytest.raises(ValueError):
                tq.kv_batch_get(keys, name, names)
            return
        fields = common if names is None else common & set(names)
        cells = [partition.rows[index].cells for index in found]
        wanted = [{field: row[field] for field in fields} for row in cells]
        check_data(tq.kv_batch_get(keys, name, names), wanted if fields else [])
        if len(found) < len(keys) or not set(names or ()) <= common:
            with pytest.raises((ValueError, KeyError, RuntimeError)):
                tq.kv_batch_get(keys, name, names, strict=True)

    @rule(name=partitions, names=field_sets)
    def force_fetch(self, name, names):
        partition = self.model.partitions.get(name)
        if partition is None:
            with pytest.raises(ValueError):
                self.client.get_meta(names, None, name, mode="force_fetch")
            return
        meta = self.client.get_meta(names, None, name, mode="force_fetch")
        known = [field for field in names if field in partition.fields]
        assert meta.global_indexes == list(partition.rows)
        assert meta.custom_meta == [row.tags for row in partition.rows.values()]
        if partition.rows:
            assert meta.field_names == sorted(known)

    @rule(name=partitions, keys=keys)
    def kv_retrieve(self, name, keys):
        partition = self.model.at(name)
        found = partition.found(keys)
        meta = self.client.kv_retrieve_meta(keys, name)
        assert meta.global_indexes == found
        if found:
            assert meta.field_names == sorted(partition.common(found))
            unknown = max(found) + 1_000_000
            answered = self.client.kv_retrieve_keys([*found, unknown], name)
            assert answered == [*(partition.rows[index].key for index in found), None]

    @rule(name=partitions, names=field_sets)
    def production(self, name, names):
        partition = self.model.partitions.get(name)
        indexes, status = self.client.get_production_status(names, name)
        if partition is None or not set(names) <= partition.fields:
            assert indexes is None and status is None
            assert self.client.check_production_status(names, name) is False
            return
        assert indexes.tolist() == sorted(partition.rows)
        wanted = [[int(f in partition.rows[i].cells) for f in names] for i in indexes.tolist()]
        assert status.tolist() == wanted
        assert self.client.check_production_status(names, name) is all(map(all, wanted))

    @rule(name=partitions, task=tasks)
    def consumption(self, name, task):
        partition = self.model.partitions.get(name)
        indexes, status = self.client.get_consumption_status(task, name)
        if partition is None:
            assert indexes is None and status is None
            return
        taken = partition.consumed.get(task, set())
        assert indexes.tolist() == sorted(partition.rows)
        assert status.tolist() == [int(index in taken) for index in indexes.tolist()]
        wanted = bool(partition.rows) and set(partition.rows) <= taken
        assert self.client.check_consumption_status(task, name) is wanted

    @invariant()
    def lists(self):
        for name in PARTITIONS:
            listed = tq.kv_list(name)
            assert listed == self.model.listed(name)
            if listed:
                assert list(listed[name]) == list(self.model.listed(name)[name])


@pytest.fixture(scope="module", autouse=True)
def _store(store):
    yield


COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck))


class TestStore(Store.TestCase):
    settings = settings(COMMON, max_examples=40, stateful_step_count=30)


@pytest.mark.slow
class TestStoreForLong(Store.TestCase):
    settings = settings(COMMON, max_examples=2000, stateful_step_count=60)
