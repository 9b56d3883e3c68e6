# SPDX-License-Identifier: Apache-2.0
"""What a store must answer, in a hundred lines: dicts and sets, no threads, no bytes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """A row of a partition: its key, if it has one, its cells and its tags."""

    key: str | None = None
    cells: dict = field(default_factory=dict)
    tags: dict = field(default_factory=dict)


@dataclass
class Partition:
    rows: dict[int, Row] = field(default_factory=dict)  # by index, in the order of insertion
    fields: set[str] = field(default_factory=set)  # ever written
    consumed: dict[str, set[int]] = field(default_factory=dict)  # by task

    def index_of(self, key):
        return next((index for index, row in self.rows.items() if row.key == key), None)

    def found(self, keys) -> list[int]:
        return [index for key in keys if (index := self.index_of(key)) is not None]

    def common(self, indexes) -> set[str]:
        """The fields that all of these rows have."""
        cells = [set(self.rows[index].cells) for index in indexes]
        return set.intersection(*cells) if cells else set()

    def ready(self, fields, task) -> list[int]:
        """The rows that a fetch may grant, in the order in which it does."""
        taken = self.consumed.get(task, set())
        return [
            index
            for index, row in self.rows.items()
            if index not in taken and set(fields) <= set(row.cells)
        ]

    def write(self, index, cells) -> None:
        self.rows[index].cells.update(cells)
        self.fields.update(cells)

    def clear(self, indexes) -> None:
        for index in indexes:
            self.rows.pop(index, None)
            for taken in self.consumed.values():
                taken.discard(index)


class Model:
    def __init__(self) -> None:
        self.partitions: dict[str, Partition] = {}
        self.gone: set[int] = set()  # indexes of cleared rows, which never come back

    def at(self, name) -> Partition:
        """The partition, or an empty one that is not kept."""
        return self.partitions.get(name) or Partition()

    def add(self, name, indexes, keys=None) -> Partition:
        """New rows, with the indexes that the store gave them."""
        partition = self.partitions.setdefault(name, Partition())
        for index, key in zip(indexes, keys or [None] * len(indexes), strict=True):
            assert index not in self.gone, f"index {index} is used twice"
            assert not any(index in p.rows for p in self.partitions.values())
            partition.rows[index] = Row(key)
        return partition

    def clear(self, name, indexes) -> None:
        self.gone.update(indexes)
        self.at(name).clear(indexes)

    def drop(self, name) -> None:
        self.clear(name, list(self.at(name).rows))
        self.partitions.pop(name, None)

    def reset(self, name, task) -> None:
        for other, taken in self.at(name).consumed.items():
            if task in (None, other):
                taken.clear()

    def listed(self, name) -> dict:
        """What kv_list says of a partition."""
        partition = self.partitions.get(name)
        if partition is None:
            return {}
        return {name: {row.key: row.tags for row in partition.rows.values() if row.key is not None}}
