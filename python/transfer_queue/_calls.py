# SPDX-License-Identifier: Apache-2.0
"""The operations, each as the steps of :mod:`transfer_queue._session`.

What a caller must know of each is said at the method or function of the same name in client.py
and interface.py.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from transfer_queue import _columns, _core
from transfer_queue._columns import TORCH_DTYPES
from transfer_queue._session import Request, Session, Steps, timeout_ms
from transfer_queue._values import EMPTY_TAGS, SeenTags, encode_sampling
from transfer_queue.errors import (
    DeadlineError,
    StorageKeyNotFoundError,
    TaskNameError,
    TransferQueueError,
    UsageError,
)
from transfer_queue.metadata import BatchMeta, FieldSchema, KVBatchMeta, extract_field_schema

logger = logging.getLogger("transfer_queue")

_T = TypeVar("_T")

DataParser = Callable[[dict[str, Any]], dict[str, Any]]

# Names of partitions that are not str go as this mark and their repr.
_NOT_STR: Final = "\x01"

_NOT_FOUND: Final = _core.STATUSES["E_NOT_FOUND"][0]

# How often a read looks again because a clear came between.
_CLEAR_RACES_MAX: Final = 4

# Requests of one call that are under way together.
_TOGETHER_MAX: Final = 64


# ---- names -----------------------------------------------------------------------------------


def partition_name(partition_id: Any) -> str:
    """The store's name of a partition. TypeError for what can't be a name."""
    if isinstance(partition_id, str):
        return partition_id
    if partition_id is None:
        raise TypeError("partition_id must be provided")
    name = _NOT_STR + repr(partition_id)
    try:
        if _partition_id(name) == partition_id:
            return name
    except (ValueError, SyntaxError):
        pass
    raise TypeError(
        f"partition_id must be str, int or a tuple of them, not {type(partition_id).__qualname__}"
    )


def _partition_id(name: str) -> Any:
    return ast.literal_eval(name[1:]) if name.startswith(_NOT_STR) else name


def check_keys(keys: Any) -> list[str]:
    """The keys as a list: the same object, or the one str in one."""
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, list):
        raise TypeError(f"keys must be str or list[str], not {type(keys).__qualname__}")
    if not keys:
        raise UsageError("keys is an empty list")
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"keys must hold str only, not {type(key).__qualname__}: {key!r}")
    return keys


def _check_fields(fields: Any, what: str = "data_fields") -> list[str]:
    if fields is None or isinstance(fields, str):
        raise UsageError(f"{what} must be a list of names, not {fields!r}")
    names = list(fields)
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{what} must hold str only, not {type(name).__qualname__}")
    return names


def _check_selected(fields: Any) -> list[str] | None:
    if fields is None or isinstance(fields, str):
        return None if fields is None else [fields]
    if not isinstance(fields, Iterable):
        raise TypeError(f"select_fields must be str or list[str], not {type(fields).__qualname__}")
    return _check_fields(fields, "select_fields")


# ---- answers ---------------------------------------------------------------------------------


def _schemas(op: _core.Op) -> dict[str, FieldSchema]:
    return {name: _schema(*schema) for name, schema in zip(op.fields, op.schemas, strict=True)}


def _schema(encoding: int, dtype: int, is_nested: bool, shape: tuple[int, ...]) -> FieldSchema:
    is_tensor = encoding == _core.TENSOR
    known_shape = is_tensor and not is_nested
    return {
        "dtype": TORCH_DTYPES.get(dtype) if is_tensor else None,
        # A (N,) column has shape [1], as in the metadata of a put.
        "shape": (list(shape) or [1]) if known_shape else None,
        "is_nested": is_tensor and is_nested,
        "is_non_tensor": encoding not in (0, _core.TENSOR),
    }


def _meta(
    session: Session,
    op: _core.Op,
    partition_id: Any,
    rows: list[int],
    schemas: dict[str, FieldSchema],
    status: np.ndarray | None,
    tags: list[bytes] | None = None,
) -> BatchMeta:
    seen: list[SeenTags] = list(tags) if tags else [EMPTY_TAGS] * len(rows)
    decode = session.codec.decode_tags
    return BatchMeta._of_store(
        op.incarnation or session.core.incarnation,
        rows,
        [partition_id] * len(rows),
        schemas,
        status,
        [decode(packed) for packed in tags] if tags else None,
        seen,
    )


def _rows(op: _core.Op) -> list[int]:
    """The rows of an answer that names no unknown ones."""
    return op.rows  # type: ignore[return-value]


def _pieces(items: list[_T]) -> Iterator[list[_T]]:
    """Items in pieces that one request takes; [] has none."""
    for start in range(0, len(items), _core.REQUEST_ROWS_MAX):
        yield items[start : start + _core.REQUEST_ROWS_MAX]


def _has_status(error: TransferQueueError, *names: str) -> bool:
    return error.status in names


# ---- metadata --------------------------------------------------------------------------------


def get_meta(
    session: Session,
    data_fields: list[str],
    batch_size: int | None,
    partition_id: Any,
    mode: str,
    task_name: str | None,
    sampling_config: dict[str, Any] | None,
    timeout: float | None,
) -> Steps[BatchMeta]:
    partition = partition_name(partition_id)
    fields = _check_fields(data_fields)
    if mode == "insert":
        return (yield from _insert(session, fields, batch_size, partition, partition_id))
    if mode == "force_fetch":
        return (yield from _force_fetch(session, fields, partition, partition_id))
    if mode != "fetch":
        raise UsageError(f"mode must be fetch, insert or force_fetch, not {mode!r}")
    rows_cnt = _check_batch_size(batch_size, "must provide batch_size in fetch mode")
    if not task_name:
        raise TaskNameError("GET_META failed: AssertionError: task_name is needed to fetch")
    if rows_cnt == 0:
        if session.is_polling:
            return BatchMeta.empty()
        raise UsageError(
            "GET_META failed: RuntimeError: Sampler returned no samples: batch_size is 0"
        )
    sampling = encode_sampling(sampling_config)
    limit_ms = timeout_ms(timeout)
    op = yield lambda queue: session.core.fetch(
        queue,
        partition,
        fields,
        rows_cnt,
        task_name,
        _core.FETCH,
        session.is_polling,
        sampling,
        limit_ms,
    )
    try:
        op.check()
    except DeadlineError as error:
        # "Timeout while waiting for sufficient data for task T. Required: N, Available: M."
        raise DeadlineError(f"GET_META failed: TimeoutError: {error}", error.status) from None
    rows = _rows(op)
    if not rows:
        return BatchMeta.empty()
    return _meta(
        session,
        op,
        partition_id,
        rows,
        _schemas(op),
        np.ones(len(rows), dtype=np.int8),
        op.tags,
    )


def _check_batch_size(batch_size: int | None, missing: str) -> int:
    if batch_size is None:
        raise UsageError(f"GET_META failed: ValueError: {missing}")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
        raise UsageError(f"batch_size must be an int, not {type(batch_size).__qualname__}")
    if not 0 <= batch_size < 2**32:
        raise UsageError(f"batch_size must be from 0 up, not {batch_size}")
    return int(batch_size)


def _insert(
    session: Session,
    fields: list[str],
    batch_size: int | None,
    partition: str,
    partition_id: Any,
) -> Steps[BatchMeta]:
    rows_cnt = _check_batch_size(batch_size, "must provide batch_size for inserting new data")
    op = yield lambda queue: session.core.insert(queue, partition, rows_cnt, fields, 0)
    op.check()
    known = _schemas(op)
    schemas = {name: known.get(name) or _schema(0, 0, False, ()) for name in fields}
    return _meta(session, op, partition_id, _rows(op), schemas, None)


def _force_fetch(
    session: Session, fields: list[str], partition: str, partition_id: Any
) -> Steps[BatchMeta]:
    op = yield lambda queue: session.core.fetch(
        queue, partition, fields, 0, None, _core.FETCH_ALL, False, None, 0
    )
    try:
        op.check()
    except UsageError as error:
        if not _has_status(error, "E_NO_PARTITION"):
            raise
        raise UsageError(
            f"GET_META failed: ValueError: Partition {partition_id} not found", error.status
        ) from None
    rows, schemas = _rows(op), _schemas(op)
    status = np.zeros(len(rows), dtype=np.int8)
    if schemas and rows:
        cells = np.frombuffer(op.status_bytes(len(rows) * len(schemas)), dtype=np.int8)
        status = cells.reshape(len(rows), len(schemas)).min(axis=1)
    return _meta(session, op, partition_id, rows, schemas, status, op.tags)


def set_custom_meta(session: Session, metadata: BatchMeta) -> Steps[None]:
    session.check_store(metadata)
    encode = session.codec.encode_tags
    tags = [encode(row) for row in metadata.custom_meta]
    requests: list[Request] = []
    for partition_id, positions in metadata._positions_by_partition().items():
        for piece in _pieces(positions):
            rows = [metadata.global_indexes[p] for p in piece]
            packed = [tags[p] for p in piece]
            requests.append(_set_tags(session, partition_name(partition_id), rows, packed))
    for op in (yield requests) if requests else ():
        try:
            op.check()
        except UsageError as error:
            if not _has_status(error, "E_NO_PARTITION"):
                raise
    metadata._seen_tags = list(tags)


def _set_tags(session: Session, partition: str, rows: list[int], tags: list[bytes]) -> Request:
    return lambda queue: session.core.set_tags(queue, partition, rows, tags, True, 0)


def _clear_rows(session: Session, partition: str, rows: list[int]) -> Request:
    return lambda queue: session.core.clear(queue, partition, rows, None, False, 0)


def clear_samples(session: Session, metadata: BatchMeta) -> Steps[None]:
    session.check_store(metadata)
    requests: list[Request] = []
    for partition_id, positions in metadata._positions_by_partition().items():
        # A row may stand there twice, which a clear means once.
        rows = list(dict.fromkeys(metadata.global_indexes[p] for p in positions))
        partition = partition_name(partition_id)
        requests += [_clear_rows(session, partition, piece) for piece in _pieces(rows)]
    for op in (yield requests) if requests else ():
        op.check()


def clear_partition(session: Session, partition_id: Any) -> Steps[None]:
    partition = partition_name(partition_id)
    op = yield lambda queue: session.core.clear(queue, partition, None, None, True, 0)
    op.check()


def get_consumption_status(
    session: Session, task_name: str, partition_id: Any
) -> Steps[tuple[torch.Tensor | None, torch.Tensor | None]]:
    partition = partition_name(partition_id)
    op = yield lambda queue: session.core.status(
        queue, partition, _core.CONSUMPTION, task_name, None, 0
    )
    if not _is_known(op):
        return None, None
    rows = _rows(op)
    return torch.tensor(rows, dtype=torch.int64), _int8(op, len(rows))


def get_production_status(
    session: Session, data_fields: list[str], partition_id: Any
) -> Steps[tuple[torch.Tensor | None, torch.Tensor | None]]:
    partition = partition_name(partition_id)
    fields = _check_fields(data_fields)
    if not fields:
        return None, None
    op = yield lambda queue: session.core.status(
        queue, partition, _core.PRODUCTION, None, fields, 0
    )
    if not _is_known(op):
        return None, None
    rows = _rows(op)
    status = _int8(op, len(rows) * len(fields)).view(len(rows), len(fields))
    return torch.tensor(rows, dtype=torch.int64), status


def _is_known(op: _core.Op) -> bool:
    try:
        return op.is_known
    except UsageError as error:
        if _has_status(error, "E_NO_PARTITION", "E_NO_FIELD"):
            return False
        raise


def _int8(op: _core.Op, cnt: int) -> torch.Tensor:
    if cnt == 0:
        return torch.zeros(0, dtype=torch.int8)
    return torch.frombuffer(op.status_bytes(cnt), dtype=torch.int8)


def check_consumption_status(session: Session, task_name: str, partition_id: Any) -> Steps[bool]:
    _, status = yield from get_consumption_status(session, task_name, partition_id)
    return status is not None and len(status) > 0 and bool((status == 1).all())


def check_production_status(
    session: Session, data_fields: list[str], partition_id: Any
) -> Steps[bool]:
    _, status = yield from get_production_status(session, data_fields, partition_id)
    return status is not None and bool((status == 1).all())


def reset_consumption(session: Session, partition_id: Any, task_name: str | None) -> Steps[bool]:
    partition = partition_name(partition_id)
    op = yield lambda queue: session.core.reset(queue, partition, task_name, 0)
    op.check()
    return True


def get_partition_list(session: Session) -> Steps[list[Any]]:
    op = yield lambda queue: session.core.list(queue, None, False, False, False, 0, 0)
    return [_partition_id(name) for name in op.names]


# ---- data ------------------------------------------------------------------------------------


def put(
    session: Session,
    data: TensorDictBase,
    metadata: BatchMeta | None,
    partition_id: Any,
    data_parser: DataParser | None,
) -> Steps[BatchMeta]:
    rows_cnt = data.batch_size[0]
    if metadata is None:
        if partition_id is None:
            raise UsageError("partition_id must be provided if metadata is not given")
        return (yield from _put_new(session, data, rows_cnt, partition_id, data_parser))
    if metadata.size == 0 or rows_cnt == 0:
        raise UsageError("metadata cannot be none or empty")
    if metadata.size != rows_cnt:
        raise UsageError(
            f"data has {rows_cnt} rows and the metadata {metadata.size}: length mismatch"
        )
    session.check_store(metadata)
    fields = _parsed(data, data_parser)
    codec = session.codec
    changed = list(map(codec.changed_tags, metadata.custom_meta, metadata._seen_tags))
    groups = metadata._positions_by_partition()
    requests: list[Request] = []
    for group_id, positions in groups.items():
        partition = partition_name(group_id)
        rows = [metadata.global_indexes[p] for p in positions]
        columns = fields
        if len(groups) > 1:
            columns = [(name, _columns.take(name, col, positions)) for name, col in fields]
        tags = None
        if any(changed[p] is not None for p in positions):
            tags = [changed[p] or EMPTY_TAGS for p in positions]
        if columns or tags:
            requests.append(_put_rows(session, partition, rows, columns, tags))
    for op in (yield requests) if requests else ():
        op.check()
    metadata._seen_tags = [codec.encode_tags(row) for row in metadata.custom_meta]
    return metadata.add_fields(data)


def _put_rows(
    session: Session,
    partition: str,
    rows: list[int],
    fields: list[tuple[str, Any]],
    tags: list[bytes] | None,
) -> Request:
    columns, keep = _columns.encode(fields, len(rows), session.codec)
    return lambda queue: session.core.put(
        queue, partition, len(rows), None, rows, columns, tags, 0, 0, keep
    )


def _put_new(
    session: Session,
    data: TensorDictBase,
    rows_cnt: int,
    partition_id: Any,
    data_parser: DataParser | None,
) -> Steps[BatchMeta]:
    if rows_cnt == 0:
        raise UsageError("metadata cannot be none or empty: the data has 0 rows")
    partition = partition_name(partition_id)
    columns, keep = _columns.encode(_parsed(data, data_parser), rows_cnt, session.codec)
    if columns:
        op = yield lambda queue: session.core.put(
            queue, partition, rows_cnt, None, None, columns, None, 0, 0, keep
        )
    else:
        op = yield lambda queue: session.core.insert(queue, partition, rows_cnt, None, 0)
    op.check()
    return _meta(
        session,
        op,
        partition_id,
        _rows(op),
        extract_field_schema(data),
        np.ones(rows_cnt, dtype=np.int8),
    )


def _parsed(data: TensorDictBase, parser: DataParser | None) -> list[tuple[str, Any]]:
    """The columns of a TensorDict, after the caller's parser."""
    fields: list[tuple[str, Any]] = list(data.items())
    return fields if parser is None else _parse(fields, parser)


def _parse(fields: list[tuple[str, Any]], parser: DataParser) -> list[tuple[str, Any]]:
    """What a data_parser makes of the columns. Whatever it raises, or breaks, is a UsageError."""
    if not callable(parser):
        raise UsageError(f"data_parser must be callable, not {type(parser).__qualname__}")
    given = {
        name: column if isinstance(column, torch.Tensor) else _columns.rows_of_objects(name, column)
        for name, column in fields
    }
    names = list(given)
    lengths = {name: _length(column) for name, column in given.items()}
    try:
        parsed = parser(given)
    except Exception as error:
        raise UsageError(f"data_parser failed: {type(error).__name__}: {error}") from error
    if not isinstance(parsed, dict) or sorted(parsed) != sorted(names):
        got = list(parsed) if isinstance(parsed, dict) else type(parsed).__qualname__
        raise UsageError(f"data_parser must return a dict with the keys {names}, got {got}")
    for name, column in parsed.items():
        if _length(column) != lengths[name]:
            raise UsageError(
                f"data_parser must not change the number of rows: field {name!r} had "
                f"{lengths[name]}, has {_length(column)}"
            )
    return list(parsed.items())


def _length(column: Any) -> int:
    return column.size(0) if isinstance(column, torch.Tensor) else len(column)


def get_data(session: Session, metadata: BatchMeta) -> Steps[TensorDict]:
    fields = metadata.field_names
    if metadata.size == 0 or not fields:
        return TensorDict({}, batch_size=[0])
    session.check_store(metadata)
    groups = metadata._positions_by_partition()
    if len(groups) == 1:
        [partition_id] = groups
        op = yield _get_rows(session, partition_id, metadata.global_indexes, fields)
        _check_found(op)
        return _tensordict(session, op)
    ops = yield [
        _get_rows(session, partition_id, [metadata.global_indexes[p] for p in positions], fields)
        for partition_id, positions in groups.items()
    ]
    placed: dict[str, list[Any]] = {name: [None] * metadata.size for name in fields}
    for op, positions in zip(ops, groups.values(), strict=True):
        _check_found(op)
        for column in op.columns(session.codec.decode):
            for p, value in zip(
                positions, _columns.decode_rows(column, len(positions)), strict=True
            ):
                placed[column[0]][p] = value
    return TensorDict(
        {name: _columns.assemble(rows) for name, rows in placed.items()},
        batch_size=[metadata.size],
    )


def _get_rows(session: Session, partition_id: Any, rows: list[int], fields: list[str]) -> Request:
    partition = partition_name(partition_id)
    return lambda queue: session.core.get(queue, partition, None, rows, fields, 0, 0)


def _check_found(op: _core.Op) -> None:
    """Raises the op's error; rows whose whole partition is gone are rows that are gone."""
    try:
        op.check()
    except UsageError as error:
        if _has_status(error, "E_NO_PARTITION"):
            raise StorageKeyNotFoundError(str(error), error.status) from None
        raise


def _tensordict(session: Session, op: _core.Op) -> TensorDict:
    columns = op.columns(session.codec.decode)
    rows_cnt = len(op.rows)
    return TensorDict(
        {column[0]: _columns.decode(column, rows_cnt) for column in columns},
        batch_size=[rows_cnt],
    )


# ---- keys ------------------------------------------------------------------------------------


def kv_put(
    session: Session,
    key: str,
    partition_id: Any,
    fields: TensorDictBase | dict[str, Any] | None,
    tag: dict[Any, Any] | None,
    data_parser: DataParser | None,
) -> Steps[KVBatchMeta]:
    if fields is None and tag is None:
        raise UsageError("Please provide at least one parameter of fields or tag.")
    if isinstance(fields, dict):
        columns: list[tuple[str, Any]] | None = [
            (name, _one_row(name, value)) for name, value in fields.items()
        ]
    elif fields is None:
        columns = None
    elif isinstance(fields, TensorDictBase):
        if fields.batch_size[0] != 1:
            raise UsageError(
                f"fields must have batch_size [1] for one key, not {list(fields.batch_size)}"
            )
        columns = list(fields.items())
    else:
        raise UsageError(
            f"`fields` can only be dict or TensorDict, not {type(fields).__qualname__}"
        )
    tags = None if tag is None else [tag]
    return (
        yield from _kv_put(session, check_keys([key]), partition_id, columns, tags, data_parser)
    )


def _one_row(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            raise UsageError(
                f"field {name!r} is a nested tensor, which is a batch: use kv_batch_put"
            )
        return value.unsqueeze(0)
    return [value]


def kv_batch_put(
    session: Session,
    keys: list[str],
    partition_id: Any,
    fields: TensorDictBase | None,
    tags: list[dict[Any, Any]] | None,
    data_parser: DataParser | None,
) -> Steps[KVBatchMeta]:
    if not isinstance(keys, list):
        raise TypeError(f"keys must be list[str], not {type(keys).__qualname__}")
    check_keys(keys)
    if fields is None and tags is None:
        raise UsageError("Please provide at least one parameter of `fields` or `tags`.")
    if fields is not None and fields.batch_size[0] != len(keys):
        raise UsageError(
            f"{len(keys)} `keys` but `fields` of batch_size {fields.batch_size[0]}: they must match"
        )
    if tags is not None and len(tags) != len(keys):
        raise UsageError(f"{len(keys)} `keys` but {len(tags)} `tags`: they must match")
    if len(set(keys)) != len(keys):
        raise UsageError("Got duplicated keys.", "E_DUPLICATE")
    columns = None if fields is None else list(fields.items())
    return (yield from _kv_put(session, keys, partition_id, columns, tags, data_parser))


def _kv_put(
    session: Session,
    keys: list[str],
    partition_id: Any,
    fields: list[tuple[str, Any]] | None,
    tags: list[dict[Any, Any]] | None,
    data_parser: DataParser | None,
) -> Steps[KVBatchMeta]:
    partition = partition_name(partition_id)
    codec = session.codec
    columns: list[Any] | None = None
    keep: list[object] = []
    if fields:
        if data_parser is not None:
            fields = _parse(fields, data_parser)
        columns, keep = _columns.encode(fields, len(keys), codec)
    packed = None if tags is None else [codec.encode_tags(row) for row in tags]
    if not columns and packed is None:
        packed = [EMPTY_TAGS] * len(keys)
    op = yield lambda queue: session.core.put(
        queue,
        partition,
        len(keys),
        keys,
        None,
        columns,
        packed,
        _core.PUT_WANT_META,
        0,
        keep,
    )
    op.check()
    return KVBatchMeta._of_store(
        keys, [codec.decode_tags(row) for row in op.tags], partition_id, sorted(op.fields)
    )


def kv_batch_get(
    session: Session,
    keys: list[str] | str,
    partition_id: Any,
    select_fields: list[str] | str | None,
    strict: bool,
) -> Steps[TensorDict]:
    keys = check_keys(keys)
    partition = partition_name(partition_id)
    selected = _check_selected(select_fields)
    if selected is not None:
        selected = sorted(set(selected) if strict else set(selected) - {""})
        if not selected:
            return (yield from _get_nothing(session, keys, partition))
    flags = 0 if strict else _core.GET_SKIP_KEYS | _core.GET_SKIP_FIELDS
    # A key that is cleared between its look-up and its read is an unknown one: look again.
    for _ in range(1 if strict else _CLEAR_RACES_MAX):
        op = yield lambda queue: session.core.get(queue, partition, keys, None, selected, flags, 0)
        if op.status != _NOT_FOUND:
            break
    try:
        op.check()
    except UsageError as error:
        if strict or not _has_status(error, "E_NO_PARTITION", "E_NO_KEY"):
            raise
        raise _no_keys(partition_id, keys) from None
    rows_cnt = len(op.rows)
    if rows_cnt == 0:
        raise _no_keys(partition_id, keys)
    if rows_cnt < len(keys):
        _warn_skipped(session, partition_id, len(keys), len(keys) - rows_cnt)
    data = _tensordict(session, op)
    if len(data.keys()) > 0:
        return data
    if selected is None:
        raise _no_common_field()
    return (yield from _get_nothing(session, keys, partition))


def _get_nothing(session: Session, keys: list[str], partition: str) -> Steps[TensorDict]:
    """A get whose fields are all left out: it still wants known keys with a field in common."""
    op = yield lambda queue: session.core.resolve(queue, partition, keys, None, False, 0)
    if not _is_known(op) or all(row is None for row in op.rows):
        raise _no_keys(_partition_id(partition), keys)
    if not op.fields:
        raise _no_common_field()
    return TensorDict({}, batch_size=[0])


def _no_keys(partition_id: Any, keys: list[str]) -> UsageError:
    return UsageError(
        f"keys or partition were not found! None of {len(keys)} keys "
        f"({', '.join(map(repr, keys[:3]))}{', ...' if len(keys) > 3 else ''}) is in partition "
        f"{partition_id!r}",
        "E_NO_KEY",
    )


def _no_common_field() -> UsageError:
    return UsageError(
        "Some fields are not ready in all the requested keys! There is no field that all of them "
        "have",
        "E_NO_FIELD",
    )


def _warn_skipped(session: Session, partition_id: Any, asked: int, skipped: int) -> None:
    before = session.skipped_keys_cnt
    session.skipped_keys_cnt = before + skipped
    # The first time, and each time that the total has doubled: enough to see, not to drown in.
    if before.bit_length() != session.skipped_keys_cnt.bit_length():
        logger.warning(
            "kv_batch_get: %d of %d keys are not in partition %r and were left out (%d so far in "
            "this process); strict=True raises instead",
            skipped,
            asked,
            partition_id,
            session.skipped_keys_cnt,
        )


def kv_batch_get_by_meta(
    session: Session, meta: KVBatchMeta, select_fields: list[str] | str | None, strict: bool
) -> Steps[TensorDict]:
    if meta.partition_id is None:
        raise UsageError("Must provide partition_id in the input KVBatchMeta.")
    selected = _check_selected(select_fields)
    if selected is None:
        selected = meta.fields
    else:
        missing = [name for name in selected if name not in (meta.fields or ())]
        if missing:
            raise UsageError(
                f"Some fields assigned in select_fields not found in the metadata: {missing}; "
                f"it has {meta.fields}",
                "E_NO_FIELD",
            )
    return (yield from kv_batch_get(session, meta.keys, meta.partition_id, selected, strict))


def kv_clear(session: Session, keys: list[str] | str, partition_id: Any) -> Steps[None]:
    distinct = list(dict.fromkeys(check_keys(keys)))
    partition = partition_name(partition_id)
    for op in (yield [_clear_keys(session, partition, piece) for piece in _pieces(distinct)]):
        op.check()


def _clear_keys(session: Session, partition: str, keys: list[str]) -> Request:
    return lambda queue: session.core.clear(queue, partition, None, keys, False, 0)


def kv_list(session: Session, partition_id: Any) -> Steps[dict[Any, dict[str, dict[Any, Any]]]]:
    if partition_id is None:
        partition_ids = yield from get_partition_list(session)
    else:
        partition_ids = [partition_id]
    decode = session.codec.decode_tags
    listed: dict[Any, dict[str, dict[Any, Any]]] = {}
    for start in range(0, len(partition_ids), _TOGETHER_MAX):
        names = partition_ids[start : start + _TOGETHER_MAX]
        ops = yield [_list_keys(session, partition_name(name)) for name in names]
        for name, op in zip(names, ops, strict=True):
            if _is_known(op):
                listed[name] = {
                    key: decode(tags)
                    for key, tags in zip(op.keys, op.tags, strict=True)
                    if key is not None
                }
    return listed


def _list_keys(session: Session, partition: str) -> Request:
    return lambda queue: session.core.list(queue, partition, True, False, False, 0, 0)


def kv_retrieve_meta(
    session: Session, keys: list[str] | str, partition_id: Any, create: bool
) -> Steps[BatchMeta]:
    keys = check_keys(keys)
    partition = partition_name(partition_id)
    op = yield lambda queue: session.core.resolve(queue, partition, keys, None, bool(create), 0)
    if not _is_known(op):
        return BatchMeta.empty()
    found = [p for p, row in enumerate(op.rows) if row is not None]
    rows, tags, schemas = _rows(op), op.tags, _schemas(op)
    return _meta(
        session,
        op,
        partition_id,
        [rows[p] for p in found],
        schemas,
        np.full(len(found), 1 if schemas else 0, dtype=np.int8),
        [tags[p] for p in found],
    )


def kv_retrieve_keys(
    session: Session, global_indexes: list[int] | int, partition_id: Any
) -> Steps[list[str | None]]:
    if type(global_indexes) is int:
        global_indexes = [global_indexes]
    if not isinstance(global_indexes, list) or any(type(row) is not int for row in global_indexes):
        raise TypeError("global_indexes must be int or list[int]")
    if not global_indexes:
        raise UsageError("global_indexes is an empty list")
    partition = partition_name(partition_id)
    # What can't be an index is one that nobody has.
    possible = [row for row in global_indexes if 0 <= row < 2**63]
    op = yield lambda queue: session.core.resolve(queue, partition, None, possible, False, 0)
    if not _is_known(op):
        raise UsageError(
            f"kv_retrieve_keys: partition {partition_id!r} is not known, so no row has a key",
            "E_NO_PARTITION",
        )
    keys = iter(op.keys)
    return [next(keys) if 0 <= row < 2**63 else None for row in global_indexes]
