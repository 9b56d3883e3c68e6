# SPDX-License-Identifier: Apache-2.0
"""Tensor columns: what goes in comes back, in the layout that its number of dimensions decides."""

from __future__ import annotations

import io

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from tqtest import keys_of, put_get, ragged, rows

import transfer_queue as tq

pytestmark = pytest.mark.usefixtures("store")

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def bits(tensor):
    """The bytes of a tensor, so that every dtype and NaN can be compared."""
    tensor = tensor.contiguous()
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)


def random_of(dtype, *shape):
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (*shape, size), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_by_bit(partition, dtype):
    scalars, vectors = random_of(dtype, 5), random_of(dtype, 5, 3)
    keys = keys_of(5)
    tq.kv_batch_put(keys, partition, rows(scalar=scalars, vector=vectors))
    data = tq.kv_batch_get(keys, partition)
    assert same(data["scalar"], scalars)
    assert same(data["vector"].values(), vectors.reshape(-1))


def test_a_column_of_scalars_is_dense(partition):
    column = put_get(partition, torch.arange(4))
    assert not column.is_nested
    assert torch.equal(column, torch.arange(4))


@pytest.mark.parametrize("shape", [(1,), (3,), (0,), (2, 3), (2, 1, 3), (2, 0)], ids=str)
def test_rows_of_one_shape_are_jagged_in_the_first_dimension(partition, shape):
    given = torch.randn(4, *shape)
    column = put_get(partition, given)
    assert column.layout == torch.jagged
    assert column._ragged_idx == 1
    assert column.values().shape == (4 * shape[0], *shape[1:])
    assert torch.equal(column.values(), given.reshape(4 * shape[0], *shape[1:]))
    assert torch.equal(column.offsets().diff(), torch.full((4,), shape[0]))


def test_a_ragged_column_keeps_values_and_offsets(partition):
    given = ragged(2, 0, 5, dtype=torch.int64)
    column = put_get(partition, given)
    assert column.layout == torch.jagged
    assert torch.equal(column.values(), given.values())
    assert torch.equal(column.offsets(), torch.tensor([0, 2, 2, 7]))


def test_a_ragged_column_with_inner_dimensions(partition):
    given = ragged(2, 3, inner=(4, 2))
    column = put_get(partition, given)
    assert torch.equal(column.values(), given.values())
    assert column.values().shape == (5, 4, 2)


def test_a_jagged_column_has_what_callers_use(partition):
    column = put_get(partition, ragged(2, 4))
    assert column.offsets().dtype == torch.int64
    assert column.lengths() is None
    assert (column._get_min_seqlen(), column._get_max_seqlen()) == (2, 4)
    assert column.is_contiguous()
    assert column.device.type == "cpu"
    assert not column.requires_grad
    assert torch.equal(column.sum(dim=1), torch.tensor([0.0, 4.0]))
    assert column.to_padded_tensor(-1.0).shape == (2, 4)
    assert [tuple(row.shape) for row in column] == [(2,), (4,)]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_rows_ragged_in_the_second_dimension_are_jagged_there(partition, layout):
    given = [torch.randn(2, 4), torch.randn(2, 5), torch.randn(2, 2)]
    column = put_get(partition, torch.nested.as_nested_tensor(given, layout=layout))
    assert column.layout == torch.jagged
    assert column._ragged_idx == 2
    assert column.values().shape == (2, 11)
    assert all(torch.equal(a, b) for a, b in zip(column.unbind(), given, strict=True))


def test_rows_ragged_in_two_dimensions_are_strided_nested(partition):
    given = [torch.randn(2, 4), torch.randn(3, 5)]
    column = put_get(partition, torch.nested.as_nested_tensor(given))
    assert column.layout == torch.strided
    assert all(torch.equal(a, b) for a, b in zip(column.unbind(), given, strict=True))


def test_fp8_rows_ragged_in_two_dimensions_are_a_stack(partition):
    given = [random_of(torch.float8_e5m2, 2, 4), random_of(torch.float8_e5m2, 3, 5)]
    column = put_get(partition, list(given))
    got = column.tolist() if isinstance(column, NonTensorStack) else list(column.unbind())
    assert all(same(a, b) for a, b in zip(got, given, strict=True))


def test_rows_of_different_numbers_of_dimensions_are_a_stack(partition):
    given = [torch.tensor(1), torch.tensor([1]), torch.ones(2, 2)]
    column = put_get(partition, given)
    assert isinstance(column, NonTensorStack)
    assert all(same(a, b) for a, b in zip(column.tolist(), given, strict=True))


def test_scalars_of_mixed_dtypes_are_promoted(partition):
    column = put_get(partition, [torch.tensor(1), torch.tensor(1.5)])
    assert same(column, torch.tensor([1.0, 1.5]))


def test_rows_of_mixed_dtypes_stay_as_they_were(partition):
    given = [torch.tensor([1, 2]), torch.tensor([1.5])]
    column = put_get(partition, given)
    assert isinstance(column, NonTensorStack)
    assert all(same(a, b) for a, b in zip(column.tolist(), given, strict=True))


def test_tensors_among_other_objects_are_a_stack(partition):
    column = put_get(partition, [None, torch.ones(3), "x"])
    assert isinstance(column, NonTensorStack)
    none, tensor, text = column.tolist()
    assert none is None
    assert torch.equal(tensor, torch.ones(3))
    assert text == "x"


def test_a_list_of_int_lists_comes_back_jagged(partition):
    # TensorDict itself makes tensors of them on the way in.
    tq.kv_batch_put(["a", "b"], partition, TensorDict({"x": [[1, 2], [3]]}, batch_size=[2]))
    column = tq.kv_batch_get(["a", "b"], partition)["x"]
    assert torch.equal(column.values(), torch.tensor([1, 2, 3]))
    assert torch.equal(column.offsets(), torch.tensor([0, 2, 3]))


def test_any_memory_layout_goes_in(partition):
    base = torch.arange(24.0).reshape(4, 6)
    keys = keys_of(4)
    columns = {
        "transposed": torch.arange(12.0).reshape(3, 4).T,
        "sliced": base[:, 1:4],
        "stepped": base[:, ::2],
        "every_second_row": torch.arange(32.0).reshape(8, 4)[::2],
        "expanded": torch.arange(3.0).expand(4, 3),
        "expanded_scalar": torch.tensor(7).expand(4),
        "flipped": base.flip(0),
        "conjugate": torch.complex(base, base).conj(),
        "negative": torch.complex(base, base).conj().imag,
        "parameter": torch.nn.Parameter(base.clone()),
        "offset": torch.arange(25.0)[1:].reshape(4, 6),
    }
    tq.kv_batch_put(keys, partition, rows(**columns))
    data = tq.kv_batch_get(keys, partition)
    for name, given in columns.items():
        got = data[name].values() if data[name].is_nested else data[name]
        assert torch.equal(got, given.detach().resolve_conj().resolve_neg().reshape(got.shape)), (
            name
        )


def test_the_callers_tensor_keeps_its_gradient(partition):
    weight = torch.ones(2, 3, requires_grad=True)
    column = put_get(partition, weight)
    assert weight.requires_grad
    assert not column.requires_grad


def test_jagged_with_lengths_goes_in(partition):
    values = torch.arange(10)
    holes = torch.nested.nested_tensor_from_jagged(
        values, torch.tensor([0, 5, 10]), lengths=torch.tensor([2, 3])
    )
    column = put_get(partition, holes)
    assert torch.equal(column.values(), torch.tensor([0, 1, 5, 6, 7]))


def test_a_narrowed_jagged_column_goes_in(partition):
    values = torch.arange(10)
    tail = torch.nested.nested_tensor_from_jagged(values, torch.tensor([4, 6, 10]))
    column = put_get(partition, tail)
    assert torch.equal(column.values(), torch.arange(4, 10))


def test_rows_without_elements_keep_their_shapes(partition):
    given = [torch.ones(2, 0), torch.ones(3, 0)]
    column = put_get(partition, list(given))
    assert [tuple(row.shape) for row in column.unbind()] == [(2, 0), (3, 0)]


def test_empty_rows_among_ragged_ones(partition):
    column = put_get(partition, ragged(0, 0, 0))
    assert [len(row) for row in column.unbind()] == [0, 0, 0]
    column = put_get(partition, ragged(0, 3, 0))
    assert [len(row) for row in column.unbind()] == [0, 3, 0]


def test_a_row_of_many_dimensions(partition):
    given = torch.randn(2, *([1] * 15), 3)
    column = put_get(partition, given)
    assert torch.equal(column.values(), given.reshape(2, *([1] * 14), 3))


def test_columns_come_sorted_and_rows_in_the_order_asked(partition):
    keys = keys_of(3)
    tq.kv_batch_put(keys, partition, rows(b=torch.arange(3), a=ragged(1, 2, 3)))
    data = tq.kv_batch_get(["k2", "k0", "k2"], partition)
    assert list(data.keys()) == ["a", "b"]
    assert data["b"].tolist() == [2, 0, 2]
    assert [len(row) for row in data["a"].unbind()] == [3, 1, 3]


def test_the_result_is_an_ordinary_tensordict(partition):
    tq.kv_batch_put(["a"], partition, rows(x=torch.ones(1, 2)))
    data = tq.kv_batch_get(["a"], partition)
    assert data.batch_size == torch.Size([1])
    assert data.device is None
    assert not data.is_locked


def test_a_large_column_is_intact(partition):
    given = torch.randn(64, 50_000)
    column = put_get(partition, given)
    assert torch.equal(column.values(), given.reshape(-1))


def test_a_result_is_the_callers_own(partition):
    keys = keys_of(2)
    tq.kv_batch_put(keys, partition, rows(x=torch.zeros(2, 4)))
    first = tq.kv_batch_get(keys, partition)
    first["x"].values().fill_(9)
    assert torch.equal(tq.kv_batch_get(keys, partition)["x"].values(), torch.zeros(8))


def test_the_source_can_be_changed_after_a_put(partition):
    given = torch.zeros(2, 100_000)
    tq.kv_batch_put(keys_of(2), partition, rows(x=given))
    given.fill_(1)
    assert float(tq.kv_batch_get(keys_of(2), partition)["x"].values().sum()) == 0


def test_a_saved_result_is_no_larger_than_its_data(partition):
    tq.kv_batch_put(keys_of(3), partition, rows(x=[torch.ones(4), torch.ones(2, 2), None]))
    data = tq.kv_batch_get("k0", partition)
    saved = io.BytesIO()
    torch.save(data, saved)
    assert len(saved.getvalue()) < 20_000


def test_a_tensor_in_a_stack_has_memory_of_its_own(partition):
    column = put_get(partition, [torch.ones(4), torch.ones(1000, 1000)])
    assert column.tolist()[0].untyped_storage().nbytes() == 16


@pytest.mark.parametrize("second", [torch.ones(2, 5), torch.ones(2, dtype=torch.int64), "text"])
def test_an_overwrite_reads_back_as_what_was_written(partition, second):
    tq.kv_batch_put(["a", "b"], partition, rows(x=torch.zeros(2, 3)))
    tq.kv_batch_put(
        ["a", "b"], partition, rows(x=[second, second] if isinstance(second, str) else second)
    )
    column = tq.kv_batch_get(["a", "b"], partition).get("x")
    if isinstance(second, str):
        assert column.tolist() == [second, second]
    else:
        got = column.values() if column.is_nested else column
        assert same(got.reshape(second.shape), second)


def test_a_field_can_change_its_type_row_by_row(partition):
    tq.kv_batch_put(["a", "b"], partition, rows(x=torch.zeros(2, 3)))
    tq.kv_put("b", partition, {"x": "text"})
    a, b = tq.kv_batch_get(["a", "b"], partition).get("x").tolist()
    assert torch.equal(a, torch.zeros(3))
    assert b == "text"


def test_clearing_all_rows_forgets_the_type_of_a_field(partition, client):
    tq.kv_batch_put(["a"], partition, rows(x=torch.zeros(1)))
    tq.kv_clear(["a"], partition)
    tq.kv_batch_put(["a"], partition, rows(x=torch.ones(1, 3, dtype=torch.int64)))
    assert same(tq.kv_batch_get("a", partition)["x"].values(), torch.ones(3, dtype=torch.int64))
    assert client.kv_retrieve_meta("a", partition).field_schema["x"]["dtype"] == torch.int64
