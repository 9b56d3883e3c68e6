# SPDX-License-Identifier: Apache-2.0
"""Metadata: which rows, in which partitions, with which fields and tags. No payload.

:class:`BatchMeta` names rows by their indexes, :class:`KVBatchMeta` by their keys.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from tensordict import TensorDictBase

from transfer_queue._columns import rows_of
from transfer_queue._values import SeenTags

__all__ = ["BatchMeta", "KVBatchMeta", "extract_field_schema"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# dtype, shape of one row, is_nested, is_non_tensor; per_sample_shapes where shapes differ.
FieldSchema = dict[str, Any]


class _SampleView:
    """One row of a BatchMeta, to look at."""

    __slots__ = ("fields", "global_index", "partition_id", "production_status")

    def __init__(self, meta: BatchMeta, position: int) -> None:
        self.global_index = meta.global_indexes[position]
        self.partition_id = meta.partition_ids[position]
        self.production_status = int(meta.production_status[position])
        self.fields = meta.field_names

    def __repr__(self) -> str:
        return (
            f"_SampleView(global_index={self.global_index}, partition_id={self.partition_id!r}, "
            f"production_status={self.production_status}, fields={self.fields})"
        )


class _SampleViewList:
    """The rows of a BatchMeta one by one; takes int indexes only."""

    __slots__ = ("_meta",)

    def __init__(self, meta: BatchMeta) -> None:
        self._meta = meta

    def __len__(self) -> int:
        return self._meta.size

    def __getitem__(self, index: Any) -> _SampleView:
        position = operator.index(index)
        size = self._meta.size
        if not -size <= position < size:
            raise IndexError(f"sample {position} of {size}")
        return _SampleView(self._meta, position % size)

    def __iter__(self) -> Iterator[_SampleView]:
        return (self[position] for position in range(len(self)))


class BatchMeta:
    """Rows of one or more partitions, in an order, with their fields.

    Attributes:
        global_indexes: row indexes, Python ints.
        partition_ids: the partition of each row.
        field_schema: field -> {dtype, shape, is_nested, is_non_tensor[, per_sample_shapes]};
            shapes are of one row, None where unknown.
        production_status: int8 ``(rows,)``, 1 where all the fields are produced.
        custom_meta: each row's tags. A put sends those that were changed here, and no others.
        extra_info: anything of the caller's; tq never looks at it.

    Raises ValueError where the lengths differ.
    """

    __slots__ = (
        "_incarnation",
        "_seen_tags",
        "custom_meta",
        "extra_info",
        "field_schema",
        "global_indexes",
        "partition_ids",
        "production_status",
    )

    global_indexes: list[int]
    partition_ids: list[Any]
    field_schema: dict[str, FieldSchema]
    production_status: np.ndarray
    extra_info: dict[str, Any]
    custom_meta: list[dict[Any, Any]]
    # The store that the indexes belong to (0: not known), and each row's tags as they were read.
    _incarnation: int
    _seen_tags: list[SeenTags]

    def __init__(
        self,
        global_indexes: Sequence[int] = (),
        partition_ids: Sequence[Any] = (),
        field_schema: dict[str, FieldSchema] | None = None,
        production_status: np.ndarray | None = None,
        extra_info: dict[str, Any] | None = None,
        custom_meta: list[dict[Any, Any]] | None = None,
    ) -> None:
        self.global_indexes = list(global_indexes)
        self.partition_ids = list(partition_ids)
        size = len(self.global_indexes)
        if len(self.partition_ids) != size:
            raise ValueError(
                f"{size} global_indexes but {len(self.partition_ids)} partition_ids: "
                "length mismatch"
            )
        if production_status is None:
            self.production_status = np.zeros(size, dtype=np.int8)
        else:
            self.production_status = np.array(production_status, dtype=np.int8)
        if len(self.production_status) != size:
            raise ValueError(
                f"production_status has length {len(self.production_status)} for {size} rows"
            )
        self.custom_meta = [{} for _ in range(size)] if custom_meta is None else list(custom_meta)
        if len(self.custom_meta) != size:
            raise ValueError(f"custom_meta has length {len(self.custom_meta)} for {size} rows")
        self.field_schema = {} if field_schema is None else field_schema
        for name, schema in self.field_schema.items():
            shapes = schema.get("per_sample_shapes")
            if shapes is not None and len(shapes) != size:
                raise ValueError(
                    f"field {name!r}: per_sample_shapes has length {len(shapes)} for {size} rows"
                )
        self.extra_info = {} if extra_info is None else extra_info
        self._incarnation = 0
        self._seen_tags = [None] * size

    @classmethod
    def _of_store(
        cls,
        incarnation: int,
        global_indexes: list[int],
        partition_ids: list[Any],
        field_schema: dict[str, FieldSchema],
        production_status: np.ndarray | None,
        custom_meta: list[dict[Any, Any]] | None = None,
        seen_tags: list[SeenTags] | None = None,
    ) -> BatchMeta:
        """Metadata that a store answered."""
        meta = cls(
            global_indexes, partition_ids, field_schema, production_status, None, custom_meta
        )
        meta._incarnation = incarnation
        if seen_tags is not None:
            meta._seen_tags = seen_tags
        return meta

    @classmethod
    def empty(cls, extra_info: dict[str, Any] | None = None) -> BatchMeta:
        """Metadata of no rows."""
        return cls(extra_info=extra_info)

    # -- what it says ------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Rows."""
        return len(self.global_indexes)

    @property
    def field_names(self) -> list[str]:
        """Names of the fields, sorted."""
        return sorted(self.field_schema)

    @property
    def is_ready(self) -> bool:
        """Whether there are rows and all their fields are produced."""
        return self.size > 0 and bool((self.production_status == 1).all())

    @property
    def samples(self) -> _SampleViewList:
        """The rows one by one."""
        return _SampleViewList(self)

    def __len__(self) -> int:
        return self.size

    def __str__(self) -> str:
        return (
            f"BatchMeta(size={self.size}, field_names={self.field_names}, "
            f"is_ready={self.is_ready}, global_indexes={self.global_indexes}, "
            f"extra_info={self.extra_info})"
        )

    def get_dtypes(self, field_name: str) -> list[torch.dtype | None]:
        """The field's dtype, once a row. KeyError if there is no such field."""
        return [self._schema(field_name).get("dtype")] * self.size

    def get_shapes(self, field_name: str) -> list[Any]:
        """The field's shape in each row, None where unknown. KeyError if there is no such field."""
        schema = self._schema(field_name)
        shapes = schema.get("per_sample_shapes")
        return list(shapes) if shapes is not None else [schema.get("shape")] * self.size

    def _schema(self, field_name: str) -> FieldSchema:
        if field_name not in self.field_schema:
            raise KeyError(f"no field {field_name!r} in this metadata; it has {self.field_names}")
        return self.field_schema[field_name]

    # -- parts and orders --------------------------------------------------------------------

    def select_samples(self, sample_indices: Sequence[int]) -> BatchMeta:
        """The rows at these positions; repeats and any order are fine. ValueError outside."""
        positions = [int(position) for position in sample_indices]
        if any(not 0 <= position < self.size for position in positions):
            raise ValueError(f"sample indices must be in [0, {self.size})")
        return self._at(positions)

    def select_fields(self, field_names: Sequence[str]) -> BatchMeta:
        """The same rows with these fields; names that are not there are ignored."""
        wanted = {field_names} if isinstance(field_names, str) else set(field_names)
        selected = self.copy()
        selected.field_schema = {
            name: schema for name, schema in selected.field_schema.items() if name in wanted
        }
        return selected

    def chunk(self, chunks: int) -> list[BatchMeta]:
        """`chunks` consecutive parts, larger ones first, empty ones if there are fewer rows.

        >>> [part.size for part in BatchMeta([0, 1, 2], ["p"] * 3).chunk(2)]
        [2, 1]
        """
        if chunks > self.size:
            logger.warning("chunk(%d) of %d rows: some parts are empty", chunks, self.size)
        return [self._at(positions) for positions in _chunk_positions(self.size, chunks)]

    def chunk_by_partition(self) -> list[BatchMeta]:
        """One part for each partition, in order of first appearance."""
        return [self._at(positions) for positions in self._positions_by_partition().values()]

    def _positions_by_partition(self) -> dict[Any, list[int]]:
        groups: dict[Any, list[int]] = {}
        for position, partition in enumerate(self.partition_ids):
            groups.setdefault(partition, []).append(position)
        return groups

    def _at(self, positions: Sequence[int]) -> BatchMeta:
        part = BatchMeta(
            _pick(self.global_indexes, positions),
            _pick(self.partition_ids, positions),
            {
                name: _schema_with(
                    schema,
                    None
                    if schema.get("per_sample_shapes") is None
                    else _pick(schema["per_sample_shapes"], positions),
                )
                for name, schema in self.field_schema.items()
            },
            self.production_status[list(positions)],
            None,
            [dict(self.custom_meta[position]) for position in positions],
        )
        # None is a value that callers give it.
        part.extra_info = copy.copy(self.extra_info)
        part._incarnation = self._incarnation
        part._seen_tags = _pick(self._seen_tags, positions)
        return part

    def copy(self) -> BatchMeta:
        """A copy that shares nothing but the values in tags and extra_info."""
        return self._at(range(self.size))

    def reorder(self, indices: Sequence[int]) -> None:
        """Puts the rows in this order, in place. ValueError unless it is a permutation."""
        positions = [int(position) for position in indices]
        if len(positions) != self.size:
            raise ValueError(f"{len(positions)} indices for {self.size} rows")
        if any(not 0 <= position < self.size for position in positions):
            raise ValueError(f"reorder indices must be in [0, {self.size})")
        if len(set(positions)) != len(positions):
            raise ValueError("reorder indices contain duplicates")
        ordered = self._at(positions)
        for name in ("global_indexes", "partition_ids", "field_schema", "production_status"):
            setattr(self, name, getattr(ordered, name))
        self.custom_meta = _pick(self.custom_meta, positions)
        self._seen_tags = ordered._seen_tags

    def __getitem__(self, item: Any) -> BatchMeta:
        if isinstance(item, slice):
            return self._at(range(*item.indices(self.size)))
        if isinstance(item, bool) or not isinstance(item, int | np.integer):
            raise TypeError(f"a BatchMeta is indexed by int or slice, not {type(item).__name__}")
        if not -self.size <= item < self.size:
            raise IndexError(f"row {item} of a BatchMeta of {self.size}")
        return self._at([int(item) % self.size])

    def __iter__(self) -> Iterator[BatchMeta]:
        return (self._at([position]) for position in range(self.size))

    # -- together ----------------------------------------------------------------------------

    @classmethod
    def concat(cls, data: list[BatchMeta], validate: bool = True) -> BatchMeta:
        """One after another, without the empty ones; rows may repeat, partitions differ.

        ValueError where fields (unless ``validate=False``: the first one's are kept) or dtypes
        differ, or extra_info conflicts. Fields whose shapes differ become nested ones.
        """
        parts = [part for part in data if part.size > 0]
        if not parts:
            return cls.empty()
        names = parts[0].field_names
        for at, part in enumerate(parts):
            if validate and part.field_names != names:
                raise ValueError(f"concat: part {at} has fields {part.field_names}, not {names}")
        joined = cls(
            _chain(part.global_indexes for part in parts),
            _chain(part.partition_ids for part in parts),
            {name: _concat_schema(name, parts) for name in names},
            np.concatenate([part.production_status for part in parts]),
            _merge_extra_info([part.extra_info for part in parts]),
            [dict(tags) for part in parts for tags in part.custom_meta],
        )
        joined._seen_tags = _chain(part._seen_tags for part in parts)
        joined._incarnation = _common_incarnation(parts)
        return joined

    def union(self, other: BatchMeta | None) -> BatchMeta:
        """The same rows with the fields of both; other's schema, tags and extra_info win.

        ValueError unless both have the same rows in the same order. An empty or missing side
        gives a copy of the other.
        """
        if other is None or other.size == 0:
            return self.copy()
        if self.size == 0:
            return other.copy()
        if self.global_indexes != other.global_indexes:
            raise ValueError("union: the two have different global_indexes, or in another order")
        if self.partition_ids != other.partition_ids:
            raise ValueError("union: the two have different partition_ids")
        joined, theirs = self.copy(), other.copy()
        joined.field_schema |= theirs.field_schema
        joined.production_status = np.minimum(joined.production_status, theirs.production_status)
        joined.extra_info = {**(joined.extra_info or {}), **(theirs.extra_info or {})}
        joined.custom_meta = [
            {**mine, **tags}
            for mine, tags in zip(joined.custom_meta, theirs.custom_meta, strict=True)
        ]
        joined._seen_tags = list(map(_join_seen, self._seen_tags, other._seen_tags))
        joined._incarnation = _common_incarnation([self, other])
        return joined

    def add_fields(self, tensor_dict: TensorDictBase, set_all_ready: bool = True) -> BatchMeta:
        """Adds the fields of a TensorDict of as many rows, in place; returns itself.

        ValueError if it has another number of rows.
        """
        rows_cnt = tensor_dict.batch_size[0]
        if rows_cnt != self.size:
            raise ValueError(f"add_fields: batch size mismatch: {self.size} rows, got {rows_cnt}")
        self.field_schema.update(extract_field_schema(tensor_dict))
        if set_all_ready:
            self.production_status = np.ones(self.size, dtype=np.int8)
        return self

    # -- tags and extra_info -----------------------------------------------------------------

    def update_custom_meta(self, custom_meta: list[dict[Any, Any]] | None) -> None:
        """Merges each row's tags here; ``set_custom_meta`` or a put sends them. ValueError unless
        there is one dict a row; None does nothing."""
        if custom_meta is None:
            return
        if len(custom_meta) != self.size:
            raise ValueError(f"custom_meta has length {len(custom_meta)} for {self.size} rows")
        for tags, changes in zip(self.custom_meta, custom_meta, strict=True):
            tags.update(changes)

    def get_all_custom_meta(self) -> list[dict[Any, Any]]:
        """A copy of each row's tags."""
        return copy.deepcopy(self.custom_meta)

    def clear_custom_meta(self) -> None:
        """Forgets the tags here; ``set_custom_meta`` then clears them in the store."""
        self.custom_meta = [{} for _ in range(self.size)]

    def get_extra_info(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self.extra_info.get(key, default)

    def set_extra_info(self, key: str, value: Any) -> None:
        """Sets the value of a key."""
        self.extra_info[key] = value

    def update_extra_info(self, info_dict: dict[str, Any]) -> None:
        """Sets several values."""
        self.extra_info.update(info_dict)

    def has_extra_info(self, key: str) -> bool:
        """Whether there is such a key."""
        return key in self.extra_info

    def remove_extra_info(self, key: str) -> Any:
        """Takes a key out; its value, or None."""
        return self.extra_info.pop(key, None)

    def clear_extra_info(self) -> None:
        """Takes all keys out."""
        self.extra_info = {}

    def get_all_extra_info(self) -> dict[str, Any]:
        """A copy of it."""
        return dict(self.extra_info)


@dataclasses.dataclass
class KVBatchMeta:
    """Rows of one partition by their keys.

    Attributes:
        keys: one a row; kept by reference.
        tags: one dict a row; copied deeply.
        partition_id: their partition.
        fields: fields that all the rows have; None: not known.
        extra_info: anything of the caller's; copied deeply.

    Raises ValueError for a key or field given twice, and where keys and tags differ in length.
    """

    keys: list[str] = dataclasses.field(default_factory=list)
    tags: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    partition_id: Any = None
    fields: list[str] | None = None
    extra_info: dict[str, Any] | None = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.tags):
            raise ValueError(f"{len(self.keys)} keys but {len(self.tags)} tags")
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("Got duplicated keys.")
        if self.fields is not None and len(set(self.fields)) != len(self.fields):
            raise ValueError("Got duplicated fields.")
        self.tags = copy.deepcopy(self.tags)
        self.extra_info = copy.deepcopy(self.extra_info)

    @classmethod
    def _of_store(
        cls, keys: list[str], tags: list[dict[Any, Any]], partition_id: Any, fields: list[str]
    ) -> KVBatchMeta:
        """What a store answered: checked already, and nobody else's."""
        meta = object.__new__(cls)
        meta.keys, meta.tags, meta.partition_id = keys, tags, partition_id
        meta.fields, meta.extra_info = fields, {}
        return meta

    @property
    def size(self) -> int:
        """Rows."""
        return len(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __str__(self) -> str:
        return (
            f"KVBatchMeta(size={self.size}, field_names={self.fields}, "
            f"extra_info={self.extra_info})"
        )

    def _at(self, positions: Sequence[int]) -> KVBatchMeta:
        return KVBatchMeta(
            _pick(self.keys, positions),
            _pick(self.tags, positions),
            self.partition_id,
            None if self.fields is None else list(self.fields),
            self.extra_info,
        )

    def chunk(self, chunks: int) -> list[KVBatchMeta]:
        """`chunks` consecutive parts, larger ones first, empty ones if there are fewer rows."""
        if chunks > self.size:
            logger.warning("chunk(%d) of %d keys: some parts are empty", chunks, self.size)
        return [self._at(positions) for positions in _chunk_positions(self.size, chunks)]

    def select_keys(self, keys_to_select: list[str]) -> KVBatchMeta:
        """These keys, in this order. RuntimeError for unknown ones, ValueError for duplicates."""
        if len(set(keys_to_select)) != len(keys_to_select):
            raise ValueError("select_keys: duplicate keys")
        positions = {key: position for position, key in enumerate(self.keys)}
        unknown = [key for key in keys_to_select if key not in positions]
        if unknown:
            raise RuntimeError(f"select_keys: keys {unknown} not found in this batch")
        return self._at([positions[key] for key in keys_to_select])

    def reorder(self, indexes: list[int]) -> None:
        """Puts the keys in this order, in place; negative indexes count from the end.

        ValueError for another length or duplicates, IndexError outside.
        """
        if len(indexes) != self.size:
            raise ValueError(f"{len(indexes)} indexes for a batch size of {self.size}")
        if len(set(indexes)) != len(indexes):
            raise ValueError("reorder: duplicate indexes")
        self.keys, self.tags = _pick(self.keys, indexes), _pick(self.tags, indexes)

    @staticmethod
    def concat(data: list[KVBatchMeta]) -> KVBatchMeta:
        """One after another, without the empty ones.

        ValueError where partition, fields (of a later one, unless None) or extra_info conflict,
        or a key comes twice.
        """
        parts = [part for part in data if part.size > 0]
        if not parts:
            return KVBatchMeta()
        first = parts[0]
        for part in parts[1:]:
            if part.partition_id != first.partition_id:
                raise ValueError(
                    f"concat: partition {part.partition_id!r} after {first.partition_id!r}"
                )
            if part.fields is not None and set(part.fields) != set(first.fields or ()):
                raise ValueError(f"concat: fields {part.fields} after {first.fields}")
        return KVBatchMeta(
            _chain(part.keys for part in parts),
            _chain(part.tags for part in parts),
            first.partition_id,
            first.fields,
            _merge_extra_info([part.extra_info for part in parts]) or None,
        )


def extract_field_schema(data: TensorDictBase) -> dict[str, FieldSchema]:
    """What each column of a TensorDict is.

    A ``(N,)`` column has shape ``[1]``; a nested one the shape of its first row, and
    ``per_sample_shapes``.
    """
    return {name: _schema_of(name, column) for name, column in data.items()}


def _schema_of(name: str, column: Any) -> FieldSchema:
    if isinstance(column, torch.Tensor) and not column.is_nested:
        shape = column.shape[1:] or torch.Size([1])
        return _schema(column.dtype, shape)
    rows = rows_of(name, column)
    if not rows or not all(isinstance(row, torch.Tensor) for row in rows):
        return {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": True}
    if len({row.dtype for row in rows}) > 1:
        return {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": True}
    schema = _schema(rows[0].dtype, rows[0].shape)
    schema["is_nested"] = True
    schema["per_sample_shapes"] = [tuple(row.shape) for row in rows]
    return schema


def _schema(dtype: torch.dtype, shape: torch.Size) -> FieldSchema:
    return {"dtype": dtype, "shape": shape, "is_nested": False, "is_non_tensor": False}


def _schema_with(schema: FieldSchema, shapes: list[Any] | None) -> FieldSchema:
    """A copy of a field's schema with these shapes of its rows."""
    return dict(schema) if shapes is None else {**schema, "per_sample_shapes": shapes}


def _concat_schema(name: str, parts: list[BatchMeta]) -> FieldSchema:
    schemas = [part.field_schema.get(name) for part in parts]
    known = [schema for schema in schemas if schema is not None]
    dtypes = {schema.get("dtype") for schema in known} - {None}
    if len(dtypes) > 1:
        raise ValueError(f"concat: dtype mismatch in field {name!r}: {dtypes}")
    shapes = {None if s.get("shape") is None else tuple(s["shape"]) for s in known}
    is_uniform = len(shapes) == 1 and all("per_sample_shapes" not in s for s in known)
    if is_uniform and len(known) == len(parts):
        return dict(known[0])
    if not any(s.get("is_nested") or len(shapes) > 1 for s in known):
        return dict(known[0])
    each: list[Any] = []
    for schema, part in zip(schemas, parts, strict=True):
        if schema is None:
            each += [None] * part.size
        else:
            each += schema.get("per_sample_shapes") or [schema.get("shape")] * part.size
    return {**known[0], "shape": None, "is_nested": True, "per_sample_shapes": each}


def _merge_extra_info(infos: list[dict[str, Any] | None]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for info in infos:
        for key, value in (info or {}).items():
            if key in merged and not _equal(merged[key], value):
                raise ValueError(f"concat: extra_info has conflicting values for {key!r}")
            merged[key] = value
    return merged


def _equal(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)


def _common_incarnation(parts: list[BatchMeta]) -> int:
    incarnations = {part._incarnation for part in parts} - {0}
    if len(incarnations) > 1:
        raise ValueError("metadata of different stores (or of a restarted one) can't be joined")
    return incarnations.pop() if incarnations else 0


def _join_seen(mine: SeenTags, theirs: SeenTags) -> SeenTags:
    """What was seen of a row's tags over two reads, the later one second."""
    if theirs is None or mine == theirs:
        return mine
    if mine is None:
        return theirs
    return (
        *(mine if isinstance(mine, tuple) else (mine,)),
        *(theirs if isinstance(theirs, tuple) else (theirs,)),
    )


def _chunk_positions(size: int, chunks: int) -> Iterator[range]:
    base, larger = divmod(size, chunks)
    start = 0
    for part in range(chunks):
        end = start + base + (part < larger)
        yield range(start, end)
        start = end


def _pick(items: Sequence[_T], positions: Sequence[int]) -> list[_T]:
    return [items[position] for position in positions]


def _chain(lists: Iterable[Iterable[_T]]) -> list[_T]:
    return list(itertools.chain.from_iterable(lists))
