# SPDX-License-Identifier: Apache-2.0
"""Python objects come back as they went in, types included."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import math

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from tqtest import keys_of, put_get

import transfer_queue as tq
from transfer_queue import _core
from transfer_queue._values import Codec
from transfer_queue.errors import DeniedError, UsageError

pytestmark = pytest.mark.usefixtures("store")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    y: list


Pair = collections.namedtuple("Pair", "left right")


class Text(str):
    __slots__ = ()


OBJECTS = [
    None,
    True,
    0,
    -1,
    2**63 - 1,
    2**64 - 1,
    2**64,
    -(2**70),
    1.5,
    math.inf,
    "",
    "text",
    "ünïcode \U0001f600",
    "\ud800 lone surrogate",
    "nul \0 inside",
    b"",
    b"bytes\0",
    bytearray(b"ab"),
    [],
    [1, "a", None, [2.5]],
    {},
    {"a": {"b": [1]}},
    {2: "int key", True: "bool key"},
    {(1, 2): "tuple key"},
    (1, 2),
    [(1, 2)],
    {"t": (1,)},
    {1, 2},
    frozenset({1}),
    Pair(1, 2),
    Point(1, [2]),
    collections.OrderedDict(a=1),
    collections.defaultdict(list, a=[1]),
    Colour.RED,
    Level.HIGH,
    Text("sub"),
    datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    datetime.timedelta(days=1),
    decimal.Decimal("1.10"),
    1 + 2j,
    range(3),
    len,
    int,
    torch.float32,
    np.float64(1.5),
    np.int32(3),
    np.dtype("f4"),
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda v: f"{type(v).__name__}-{v!r:.20}")
def test_an_object_comes_back_as_it_went_in(partition, value):
    tq.kv_put("k", partition, {"x": value})
    [got] = tq.kv_batch_get("k", partition).get("x").tolist()
    assert type(got) is type(value)
    assert got == value
    if isinstance(value, dict):
        assert [(type(k), k) for k in got] == [(type(k), k) for k in value]


def test_nan_comes_back(partition):
    tq.kv_put("k", partition, {"x": float("nan"), "y": [float("nan")]})
    data = tq.kv_batch_get("k", partition)
    assert math.isnan(data.get("x").tolist()[0])
    assert math.isnan(data.get("y").tolist()[0][0])


def test_types_inside_containers_are_kept(partition):
    value = {"a": [(1, 2), Colour.RED], "b": (np.float64(1.0), {3})}
    tq.kv_put("k", partition, {"x": value})
    [got] = tq.kv_batch_get("k", partition).get("x").tolist()
    assert got == value
    assert type(got["a"][0]) is tuple
    assert type(got["b"][0]) is np.float64


def test_arrays_and_tensors_inside_objects(partition):
    value = {"image": np.arange(6).reshape(2, 3), "mask": torch.ones(2)}
    tq.kv_put("k", partition, {"x": [value, value]})
    [got] = tq.kv_batch_get("k", partition).get("x").tolist()
    assert np.array_equal(got[0]["image"], value["image"])
    assert torch.equal(got[1]["mask"], value["mask"])


def test_a_lambda_comes_back(partition):
    tq.kv_put("k", partition, {"x": lambda n: n + 1})
    [got] = tq.kv_batch_get("k", partition).get("x").tolist()
    assert got(1) == 2


def test_numpy_and_python_scalars_of_a_kv_put_stay_objects(partition):
    tq.kv_put("k", partition, {"n": np.float32(1.5), "i": 3, "a": np.ones(2), "l": [1, 2]})
    data = tq.kv_batch_get("k", partition)
    assert type(data.get("n").tolist()[0]) is np.float32
    assert data.get("i").tolist() == [3]
    assert np.array_equal(data.get("a").tolist()[0], np.ones(2))
    assert data.get("l").tolist() == [[1, 2]]


def test_a_column_of_objects_is_a_stack(partition):
    column = put_get(partition, ["a", "b", "b"])
    assert isinstance(column, NonTensorStack)
    assert [item.data for item in column] == ["a", "b", "b"]


@pytest.mark.parametrize("values", [["one"], ["same", "same"]])
def test_one_row_and_equal_rows_stay_a_stack(partition, values):
    keys = keys_of(len(values))
    tq.kv_batch_put(keys, partition, TensorDict({"x": NonTensorStack(*values)}, [len(values)]))
    data = tq.kv_batch_get(keys, partition)
    assert isinstance(data.get("x"), NonTensorStack)
    assert isinstance(dict(data.items())["x"], NonTensorStack)
    assert list(data["x"]) == values
    assert data[0]["x"] == values[0]
    assert data.pop("x").tolist() == values


def test_non_tensor_data_that_holds_a_list_is_one_value_a_row(partition):
    data = TensorDict({"x": NonTensorData(["a", "b"], batch_size=[2])}, batch_size=[2])
    tq.kv_batch_put(["k0", "k1"], partition, data)
    assert list(tq.kv_batch_get(["k0", "k1"], partition)["x"]) == ["a", "b"]


@pytest.mark.parametrize("value", ["ab", 3, {"a": 1}])
def test_non_tensor_data_that_holds_one_value_is_refused(partition, value):
    data = TensorDict({"x": NonTensorData(value, batch_size=[2])}, batch_size=[2])
    with pytest.raises(TypeError, match="'x'"):
        tq.kv_batch_put(["k0", "k1"], partition, data)


def test_object_arrays_are_one_value_a_row(partition):
    data = TensorDict({"x": np.array(["a", {"b": 1}], dtype=object)}, batch_size=[2])
    tq.kv_batch_put(["k0", "k1"], partition, data)
    assert list(tq.kv_batch_get(["k0", "k1"], partition)["x"]) == ["a", {"b": 1}]


@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        (None, _core.MSGPACK),
        ([1, {"a": 2.5}], _core.MSGPACK),
        ((1, 2), _core.PICKLE),
        ([(1, 2)], _core.PICKLE),
        (2**70, _core.PICKLE),
        ({"a": 2**70}, _core.PICKLE),
    ],
)
def test_only_what_msgpack_would_change_is_pickled(value, encoding):
    assert Codec().encode(value)[0] == encoding


def test_without_pickle_only_plain_values_travel():
    strict = Codec(allow_pickle=False)
    assert strict.encode("text") == "text"
    assert strict.encode([1, None])[0] == _core.MSGPACK
    with pytest.raises(DeniedError, match="tuple"):
        strict.encode((1, 2))
    with pytest.raises(DeniedError, match="allow_pickle"):
        strict.decode(*Codec().encode((1, 2)))
    with pytest.raises(DeniedError, match="allow_pickle"):
        strict.decode_tags(Codec().encode_tags({"a": (1, 2)}))
    assert issubclass(DeniedError, PermissionError)


# ---- tags ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, 1, 1.5, "s", b"b", [1], {"a": {"b": 1}}, (1, 2), {1}, 2**70, Colour.RED, np.int64(3)],
    ids=repr,
)
def test_a_tag_comes_back_as_it_went_in(partition, value):
    tq.kv_put("k", partition, tag={"t": value})
    got = tq.kv_list(partition)[partition]["k"]["t"]
    assert type(got) is type(value)
    assert got == value


def test_tag_names_are_str_or_int(partition):
    tq.kv_put("k", partition, tag={"a": 1, 3: 2})
    assert tq.kv_list(partition)[partition]["k"] == {"a": 1, 3: 2}
    for name in (1.5, None, (1,), b"x", True):
        with pytest.raises(UsageError, match="tag names"):
            tq.kv_put("k", partition, tag={name: 1})


def test_nan_in_a_tag_is_kept_and_counts_as_unchanged(partition):
    codec = Codec()
    seen = codec.encode_tags({"loss": math.nan, "n": 1})
    assert codec.changed_tags({"n": 1, "loss": math.nan}, seen) is None
    changed = codec.changed_tags({"n": True, "loss": math.nan}, seen)
    assert codec.decode_tags(changed) == {"n": True}


def test_tags_over_the_limits_are_refused(partition):
    with pytest.raises(UsageError):
        tq.kv_put("k", partition, tag={"big": "x" * 70_000})
    with pytest.raises(UsageError):
        tq.kv_put("k", partition, tag={i: i for i in range(300)})
    assert tq.kv_list(partition).get(partition, {}) == {}
