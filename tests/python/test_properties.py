# SPDX-License-Identifier: Apache-2.0
"""Whatever columns are put, the same rows come back, and the layout is that of the table."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

import transfer_queue as tq
from transfer_queue._columns import assemble
from transfer_queue._values import Codec

pytestmark = pytest.mark.usefixtures("store")

_partitions = (f"property-{number}" for number in itertools.count())

COMMON = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

dtypes = st.sampled_from(
    [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.complex64]
)
dims = st.integers(0, 4)


@st.composite
def tensors(draw, cnt):
    """cnt tensors: of one shape, ragged somewhere, or of any shapes and dtypes."""
    kind = draw(st.sampled_from(["same", "ragged", "any"]))
    if kind == "any":
        return [_filled(draw(st.lists(dims, max_size=3)), draw(dtypes), i) for i in range(cnt)]
    shape, dtype = draw(st.lists(dims, max_size=3)), draw(dtypes)
    made = []
    for i in range(cnt):
        row = list(shape)
        if kind == "ragged" and row:
            row[draw(st.integers(0, len(row) - 1))] = draw(dims)
        made.append(_filled(row, dtype, i))
    return made


def _filled(shape, dtype, number):
    return (torch.arange(int(torch.tensor(shape).prod())) + number).reshape(shape).to(dtype)


objects = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.frozensets(st.integers(), max_size=2),
    lambda inner: st.lists(inner, max_size=3)
    | st.tuples(inner, inner)
    | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def columns(draw):
    """(rows of one column, how it is given)."""
    cnt = draw(st.integers(1, 6))
    if draw(st.booleans()):
        return draw(st.lists(objects, min_size=cnt, max_size=cnt))
    return draw(tensors(cnt))


def same_types(left, right):
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same_types, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same_types(left[k], right[k]) for k in left)
    return left == right


def as_column(rows):
    """A column of these rows in the densest form that torch has for it."""
    if all(isinstance(row, torch.Tensor) for row in rows) and (
        len({(row.shape, row.dtype) for row in rows}) == 1
    ):
        return torch.stack(rows)
    return NonTensorStack(*rows)


@COMMON
@given(columns(), st.randoms(use_true_random=False))
def test_rows_come_back_in_any_order(rows, random):
    partition = next(_partitions)
    keys = [f"k{i}" for i in range(len(rows))]
    tq.kv_batch_put(keys, partition, TensorDict({"x": as_column(rows)}, batch_size=[len(rows)]))
    order = [random.randrange(len(rows)) for _ in rows]
    column = tq.kv_batch_get([keys[i] for i in order], partition).get("x")
    wanted = [rows[i] for i in order]
    got = column.tolist() if isinstance(column, NonTensorStack) else list(column.unbind())
    if all(isinstance(row, torch.Tensor) for row in wanted):
        ndims, types = {row.ndim for row in wanted}, {row.dtype for row in wanted}
        if ndims == {0}:
            assert not isinstance(column, NonTensorStack) and not column.is_nested
            assert torch.equal(column, torch.stack(wanted))
            return
        assert isinstance(column, NonTensorStack) == (len(ndims) > 1 or len(types) > 1)
    for before, after in zip(wanted, got, strict=True):
        if isinstance(before, torch.Tensor):
            assert (before.dtype, before.shape) == (after.dtype, after.shape)
            assert torch.equal(before, after)
        else:
            assert same_types(before, after)
    tq.get_client().clear_partition(partition)


@COMMON
@given(st.data())
def test_a_column_of_a_get_is_what_its_rows_assemble_to(data):
    rows = data.draw(tensors(data.draw(st.integers(1, 5))))
    partition = next(_partitions)
    keys = [f"k{i}" for i in range(len(rows))]
    tq.kv_batch_put(keys, partition, TensorDict({"x": as_column(rows)}, batch_size=[len(rows)]))
    got, wanted = tq.kv_batch_get(keys, partition).get("x"), assemble(rows)
    assert type(got) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert (got.dtype, got.layout, got.is_nested) == (
            wanted.dtype,
            wanted.layout,
            wanted.is_nested,
        )
        if wanted.is_nested and wanted.layout == torch.jagged:
            assert torch.equal(got.values(), wanted.values())
            assert torch.equal(got.offsets(), wanted.offsets())
            assert got._ragged_idx == wanted._ragged_idx
    tq.get_client().clear_partition(partition)


@COMMON
@given(st.dictionaries(st.text(max_size=5) | st.integers(-9, 9), objects, max_size=5))
def test_tags_come_back(tags):
    codec = Codec()
    packed = codec.encode_tags(tags)
    assert same_types(codec.decode_tags(packed), tags)
    assert codec.changed_tags(tags, packed) is None
