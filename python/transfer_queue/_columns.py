# SPDX-License-Identifier: Apache-2.0
"""Columns: from tensors and Python objects to what a put takes, and from what a get gives back.

In: a dense column goes as one address and a stride, a jagged one as values and offsets. Only what
is neither (strided nested, ragged in a later dimension, Python objects) goes row by row.

Out, by the number of dimensions of the rows and not by chance:

=============================================  ==================================================
rows                                           column
=============================================  ==================================================
0-d                                            dense ``(N,)``; of mixed dtypes: promoted
equal shapes, or ragged in one dimension       jagged, its ragged dimension that one (else 1)
ragged in two dimensions                       strided nested, or NonTensorStack where torch has
                                               no such tensor of the dtype
of mixed dtype or number of dimensions         NonTensorStack of the tensors as they were
other objects, or tensors among them           NonTensorStack
=============================================  ==================================================

A dense or jagged column is the memory that the store was read into; nothing is copied here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, is_tensor_collection
from torch import Tensor

from transfer_queue import _core
from transfer_queue._values import Codec
from transfer_queue.errors import UnsupportedError, UsageError

_nested_view: Callable[..., Tensor] | None
try:
    # What torch.nested.nested_tensor_from_jagged calls, which (in torch 2.13) prints a warning about
    # its own use of is_fx_tracing at the first call in each process.
    from torch.nested._internal.nested_tensor import nested_view_from_values_offsets_lengths

    _nested_view = nested_view_from_values_offsets_lengths
except ImportError:
    _nested_view = None

# What _core.put takes as one column, and what Op.columns gives.
ColumnSpec = tuple[Any, ...]
Column = Tensor | NonTensorStack

_TORCH_NAMES: Final = {
    "bool": "bool",
    "u8": "uint8",
    "i8": "int8",
    "u16": "uint16",
    "i16": "int16",
    "u32": "uint32",
    "i32": "int32",
    "u64": "uint64",
    "i64": "int64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c32": "complex32",
    "c64": "complex64",
    "c128": "complex128",
    "f8_e4m3fn": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2fnuz": "float8_e5m2fnuz",
    "f8_e8m0fnu": "float8_e8m0fnu",
}

TORCH_DTYPES: Final[dict[int, torch.dtype]] = {
    number: getattr(torch, _TORCH_NAMES[name])
    for name, number in _core.DTYPES.items()
    if hasattr(torch, _TORCH_NAMES.get(name, "?"))
}
_DTYPE_NUMBERS: Final[dict[torch.dtype, int]] = {
    dtype: number for number, dtype in TORCH_DTYPES.items()
}


# ---- in --------------------------------------------------------------------------------------


def encode(
    fields: Iterable[tuple[str, Any]], rows_cnt: int, codec: Codec
) -> tuple[list[ColumnSpec], list[object]]:
    """Columns of a put, and what must be kept alive until it has completed.

    ``fields`` gives (name, column) with columns of ``rows_cnt`` rows: tensors of shape
    ``(rows, ...)``, nested tensors, NonTensorStack, NonTensorData that holds a list, or lists.
    UsageError where a column has another number of rows.
    """
    specs: list[ColumnSpec] = []
    keep: list[object] = []
    for name, column in fields:
        if not isinstance(name, str):
            raise UsageError(f"field names must be str, not {type(name).__qualname__}: {name!r}")
        if isinstance(column, Tensor):
            specs.append(_encode_tensor(name, column, rows_cnt, codec, keep))
        else:
            values = rows_of_objects(name, column)
            _check_rows(name, len(values), rows_cnt)
            specs.append(_encode_each(name, values, codec, keep))
    return specs, keep


def rows_of_objects(name: str, column: Any) -> list[Any]:
    """The values of a column that is not a tensor, one a row.

    TypeError for NonTensorData that does not hold a list or array, UsageError for a TensorDict.
    """
    if isinstance(column, list):
        return column
    if isinstance(column, NonTensorStack):
        return column.tolist()
    if isinstance(column, NonTensorData):
        if isinstance(column.data, list | np.ndarray) and len(column.data) > 0:
            return list(column.data)
        raise TypeError(
            f"field {name!r}: NonTensorData must hold a list or array with one value a row, "
            f"not {type(column.data).__qualname__}"
        )
    if is_tensor_collection(column):
        raise UsageError(
            f"field {name!r} is a {type(column).__qualname__}: nested TensorDicts are not columns; "
            "flatten it (td.flatten_keys()) or put its entries as fields"
        )
    raise TypeError(f"field {name!r}: {type(column).__qualname__} is not a column")


def rows_of(name: str, column: Any) -> list[Any]:
    """The rows of a column, one tensor or object each."""
    return list(column.unbind()) if isinstance(column, Tensor) else rows_of_objects(name, column)


def take(name: str, column: Any, positions: Sequence[int]) -> Any:
    """The rows of a column at `positions`, as a column."""
    if isinstance(column, Tensor) and not column.is_nested:
        return column[list(positions)]
    rows = rows_of(name, column)
    return [rows[position] for position in positions]


def _check_rows(name: str, got: int, rows_cnt: int) -> None:
    if got != rows_cnt:
        raise UsageError(f"field {name!r} has {got} rows where {rows_cnt} are put: length mismatch")


def _encode_tensor(
    name: str, column: Tensor, rows_cnt: int, codec: Codec, keep: list[object]
) -> ColumnSpec:
    if column.is_nested:
        return _encode_nested(name, column, rows_cnt, codec, keep)
    _check_layout(name, column)
    if column.ndim == 0:
        raise UsageError(f"field {name!r} is a 0-d tensor: columns have shape (rows, ...)")
    _check_rows(name, column.shape[0], rows_cnt)
    dtype = _DTYPE_NUMBERS.get(column.dtype)
    if dtype is None:
        return _encode_each(name, list(column.unbind()), codec, keep)
    column = _plain_memory(column)
    if not _rows_are_contiguous(column):
        column = column.contiguous()
    keep.append(column)
    return (
        name,
        _core.UNIFORM,
        dtype,
        tuple(column.shape[1:]),
        column.data_ptr(),
        column.stride(0) * column.element_size(),
    )


def _encode_nested(
    name: str, column: Any, rows_cnt: int, codec: Codec, keep: list[object]
) -> ColumnSpec:
    _check_rows(name, column.size(0), rows_cnt)
    if column.layout == torch.jagged and column.lengths() is None and column._ragged_idx == 1:
        values = _plain_memory(column.values()).contiguous()
        offsets = column.offsets().to("cpu", torch.int64).contiguous()
        inner = tuple(values.shape[1:])
        unit_bytes = values.element_size()
        for size in inner:
            unit_bytes *= size
        dtype = _DTYPE_NUMBERS.get(values.dtype)
        if dtype is not None and unit_bytes > 0:
            keep += (values, offsets)
            return (
                name,
                _core.RAGGED,
                dtype,
                (0, *inner),
                values.data_ptr(),
                offsets.data_ptr(),
                unit_bytes,
            )
    return _encode_each(name, list(column.unbind()), codec, keep)


def _encode_each(name: str, values: list[Any], codec: Codec, keep: list[object]) -> ColumnSpec:
    cells: list[Any] = []
    encode_value = codec.encode
    for value in values:
        if isinstance(value, Tensor) and not value.is_nested and value.dtype in _DTYPE_NUMBERS:
            _check_layout(name, value)
            value = _plain_memory(value).contiguous()
            keep.append(value)
            cells.append((_DTYPE_NUMBERS[value.dtype], tuple(value.shape), value.data_ptr()))
        else:
            cells.append(encode_value(value))
    return (name, _core.EACH, cells)


def _check_layout(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided:
        raise UnsupportedError(
            f"field {name!r} has layout {tensor.layout}: sparse tensors are not supported; "
            "put its dense form, or indices and values as fields of their own"
        )
    if tensor.is_meta:
        raise UsageError(f"field {name!r} is a meta tensor: it has no values")


def _plain_memory(tensor: Tensor) -> Tensor:
    """The tensor with its values in this process's memory as they are, no lazy conjugation."""
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _rows_are_contiguous(column: Tensor) -> bool:
    """Whether each row is packed; rows themselves may lie at any distance, 0 included."""
    if column.is_contiguous():
        return True
    expected = 1
    for size, stride in zip(reversed(column.shape[1:]), reversed(column.stride()[1:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


# ---- out -------------------------------------------------------------------------------------


def decode(column: tuple[Any, ...], rows_cnt: int) -> Column:
    """A column of a get by the table above."""
    if column[1] == _core.UNIFORM:
        _, _, buffer, number, shape = column
        dtype = _dtype(column[0], number)
        if not shape:
            return _view(buffer, dtype, (rows_cnt,))
        length = shape[0]
        values = _view(buffer, dtype, (rows_cnt * length, *shape[1:]))
        offsets = torch.arange(rows_cnt + 1, dtype=torch.int64) * length
        return _jagged(values, offsets, 1, length, length)
    if column[1] == _core.RAGGED:
        _, _, buffer, number, inner, steps, shortest, longest = column
        offsets = torch.frombuffer(steps, dtype=torch.int64)
        values = _view(buffer, _dtype(column[0], number), (int(offsets[-1]), *inner))
        return _jagged(values, offsets, 1, shortest, longest)
    return assemble(decode_rows(column, rows_cnt))


def decode_rows(column: tuple[Any, ...], rows_cnt: int) -> list[Any]:
    """The rows of a column of a get, one tensor or object each."""
    if column[1] != _core.EACH:
        return rows_of(column[0], decode(column, rows_cnt))
    name, _, buffer, kinds, values = column
    if kinds.count(_core.TENSOR) == 0:
        return values
    return [
        _cell(name, buffer, value) if kind == _core.TENSOR else value
        for kind, value in zip(kinds, values, strict=True)
    ]


def assemble(rows: list[Any]) -> Column:
    """A column from its rows by the table above, in fresh memory."""
    if not all(isinstance(row, Tensor) for row in rows):
        return _stack(rows)
    ndim = rows[0].ndim
    if any(row.ndim != ndim for row in rows):
        return _stack(rows)
    if any(row.dtype != rows[0].dtype for row in rows):
        return _promoted(rows) if ndim == 0 else _stack(rows)
    if ndim == 0:
        return _cat([row.reshape(1) for row in rows], 0)
    ragged = [d for d in range(ndim) if any(row.shape[d] != rows[0].shape[d] for row in rows)]
    if len(ragged) > 1:
        return _strided_nested(rows)
    dim = ragged[0] if ragged else 0
    lengths = [row.shape[dim] for row in rows]
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int64)
    return _jagged(_cat(rows, dim), offsets, dim + 1, min(lengths), max(lengths))


def _dtype(name: str, number: int) -> torch.dtype:
    dtype = TORCH_DTYPES.get(number)
    if dtype is None:
        raise UnsupportedError(
            f"field {name!r} has dtype number {number}, which torch {torch.__version__} lacks"
        )
    return dtype


def _view(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], start: int = 0) -> Tensor:
    """A tensor over the bytes of a buffer from `start` on, which it keeps alive."""
    cnt = 1
    for size in shape:
        cnt *= size
    if cnt == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=cnt, offset=start).view(shape)


def _cell(name: str, buffer: Any, value: tuple[int, tuple[int, ...], int, int]) -> Tensor:
    number, shape, start, _ = value
    return _view(buffer, _dtype(name, number), shape, start)


def _jagged(
    values: Tensor, offsets: Tensor, ragged_dim: int, shortest: int, longest: int
) -> Tensor:
    if _nested_view is not None:
        return _nested_view(
            values,
            offsets,
            None,
            ragged_idx=ragged_dim,
            min_seqlen=shortest,
            max_seqlen=longest,
        )
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, jagged_dim=ragged_dim, min_seqlen=shortest, max_seqlen=longest
    )


def _cat(rows: list[Tensor], dim: int) -> Tensor:
    if rows[0].element_size() == 1 and rows[0].is_floating_point():
        # torch has no cat for every 8-bit float.
        return torch.cat([row.view(torch.uint8) for row in rows], dim).view(rows[0].dtype)
    return torch.cat(rows, dim)


def _promoted(rows: list[Tensor]) -> Column:
    try:
        return torch.stack(rows)
    except (RuntimeError, TypeError):
        return _stack(rows)


def _strided_nested(rows: list[Tensor]) -> Column:
    try:
        return torch.nested.as_nested_tensor(rows, layout=torch.strided)
    except (RuntimeError, NotImplementedError):
        return _stack(rows)


def _stack(rows: list[Any]) -> NonTensorStack:
    # A tensor here is a view of the whole column's memory: a copy of its own is what a caller
    # can save, or keep when the rest is gone.
    return NonTensorStack(
        *(
            row.clone()
            if isinstance(row, Tensor)
            else NonTensorData(row)
            if isinstance(row, TensorDictBase) or is_tensor_collection(row)
            else row
            for row in rows
        )
    )
