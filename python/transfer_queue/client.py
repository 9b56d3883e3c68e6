# SPDX-License-Identifier: Apache-2.0
"""The client: metadata and data calls on a store, blocking and ``async_``.

The ``async_`` methods run on any event loop, on several at once, and on one client together with
the blocking ones from any thread. A cancelled call takes back what it can: rows of a fetch go to
another, a put that was not published leaves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from transfer_queue import _calls
from transfer_queue._session import Session
from transfer_queue.errors import UnsupportedError
from transfer_queue.metadata import BatchMeta, KVBatchMeta

__all__ = ["AsyncTransferQueueClient", "TransferQueueClient"]

Tags = dict[Any, Any]
DataParser = Callable[[dict[str, Any]], dict[str, Any]]


class AsyncTransferQueueClient:
    """A session with a store; the asynchronous half.

    Args:
        client_id: a name for logs and listings.
        controller_info: the store's address (``ipc://...``, ``tcp://host:port``), or a mapping
            with an ``address``. None: the environment variable TQ_ADDRESS.
        zmq_io_threads, zmq_max_sockets: accepted for programs written for TransferQueue; tq has
            one I/O thread and one connection a peer.

    Raises PeerError within 5 s where no store answers.
    """

    def __init__(
        self,
        client_id: str,
        controller_info: str | Mapping[str, Any] | None = None,
        zmq_io_threads: int | None = None,
        zmq_max_sockets: int | None = None,
    ) -> None:
        address = (
            controller_info["address"] if isinstance(controller_info, Mapping) else controller_info
        )
        self.client_id = client_id
        self._session = Session(address, name=f"{client_id}:{os.getpid()}")

    @classmethod
    def _of_session(cls, client_id: str, session: Session) -> Any:
        client = object.__new__(cls)
        client.client_id = client_id
        client._session = session
        return client

    def initialize_storage_manager(self, manager_type: str, config: Mapping[str, Any]) -> None:
        """Checks the name of the backend: a tq client finds the units by itself.

        Raises UnsupportedError for any but SimpleStorage.
        """
        if manager_type not in ("SimpleStorage", "AsyncSimpleStorageManager"):
            raise UnsupportedError(f"storage backend {manager_type!r} is not supported yet")

    # -- metadata ----------------------------------------------------------------------------

    async def async_get_meta(
        self,
        data_fields: list[str],
        batch_size: int | None,
        partition_id: Any,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> BatchMeta:
        """See :meth:`TransferQueueClient.get_meta`."""
        return await self._session.run_async(
            _calls.get_meta(
                self._session,
                data_fields,
                batch_size,
                partition_id,
                mode,
                task_name,
                sampling_config,
                timeout,
            )
        )

    async def async_set_custom_meta(self, metadata: BatchMeta) -> None:
        """See :meth:`TransferQueueClient.set_custom_meta`."""
        await self._session.run_async(_calls.set_custom_meta(self._session, metadata))

    async def async_clear_samples(self, metadata: BatchMeta) -> None:
        """See :meth:`TransferQueueClient.clear_samples`."""
        await self._session.run_async(_calls.clear_samples(self._session, metadata))

    async def async_clear_partition(self, partition_id: Any) -> None:
        """See :meth:`TransferQueueClient.clear_partition`."""
        await self._session.run_async(_calls.clear_partition(self._session, partition_id))

    async def async_get_consumption_status(
        self, task_name: str, partition_id: Any
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See :meth:`TransferQueueClient.get_consumption_status`."""
        return await self._session.run_async(
            _calls.get_consumption_status(self._session, task_name, partition_id)
        )

    async def async_get_production_status(
        self, data_fields: list[str], partition_id: Any
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See :meth:`TransferQueueClient.get_production_status`."""
        return await self._session.run_async(
            _calls.get_production_status(self._session, data_fields, partition_id)
        )

    async def async_check_consumption_status(self, task_name: str, partition_id: Any) -> bool:
        """See :meth:`TransferQueueClient.check_consumption_status`."""
        return await self._session.run_async(
            _calls.check_consumption_status(self._session, task_name, partition_id)
        )

    async def async_check_production_status(
        self, data_fields: list[str], partition_id: Any
    ) -> bool:
        """See :meth:`TransferQueueClient.check_production_status`."""
        return await self._session.run_async(
            _calls.check_production_status(self._session, data_fields, partition_id)
        )

    async def async_reset_consumption(
        self, partition_id: Any, task_name: str | None = None
    ) -> bool:
        """See :meth:`TransferQueueClient.reset_consumption`."""
        return await self._session.run_async(
            _calls.reset_consumption(self._session, partition_id, task_name)
        )

    async def async_get_partition_list(self) -> list[Any]:
        """See :meth:`TransferQueueClient.get_partition_list`."""
        return await self._session.run_async(_calls.get_partition_list(self._session))

    # -- data --------------------------------------------------------------------------------

    async def async_put(
        self,
        data: TensorDictBase,
        metadata: BatchMeta | None = None,
        partition_id: Any = None,
        data_parser: DataParser | None = None,
    ) -> BatchMeta:
        """See :meth:`TransferQueueClient.put`."""
        return await self._session.run_async(
            _calls.put(self._session, data, metadata, partition_id, data_parser)
        )

    async def async_get_data(self, metadata: BatchMeta) -> TensorDict:
        """See :meth:`TransferQueueClient.get_data`."""
        return await self._session.run_async(_calls.get_data(self._session, metadata))

    # -- keys --------------------------------------------------------------------------------

    async def async_kv_put(
        self,
        key: str,
        partition_id: Any,
        fields: TensorDictBase | dict[str, Any] | None = None,
        tag: Tags | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """See :func:`transfer_queue.kv_put`."""
        return await self._session.run_async(
            _calls.kv_put(self._session, key, partition_id, fields, tag, data_parser)
        )

    async def async_kv_batch_put(
        self,
        keys: list[str],
        partition_id: Any,
        fields: TensorDictBase | None = None,
        tags: list[Tags] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """See :func:`transfer_queue.kv_batch_put`."""
        return await self._session.run_async(
            _calls.kv_batch_put(self._session, keys, partition_id, fields, tags, data_parser)
        )

    async def async_kv_batch_get(
        self,
        keys: list[str] | str,
        partition_id: Any,
        select_fields: list[str] | str | None = None,
        *,
        strict: bool = False,
    ) -> TensorDict:
        """See :func:`transfer_queue.kv_batch_get`."""
        return await self._session.run_async(
            _calls.kv_batch_get(self._session, keys, partition_id, select_fields, strict)
        )

    async def async_kv_batch_get_by_meta(
        self,
        meta: KVBatchMeta,
        select_fields: list[str] | str | None = None,
        *,
        strict: bool = False,
    ) -> TensorDict:
        """See :func:`transfer_queue.kv_batch_get_by_meta`."""
        return await self._session.run_async(
            _calls.kv_batch_get_by_meta(self._session, meta, select_fields, strict)
        )

    async def async_kv_list(self, partition_id: Any = None) -> dict[Any, dict[str, Tags]]:
        """See :func:`transfer_queue.kv_list`."""
        return await self._session.run_async(_calls.kv_list(self._session, partition_id))

    async def async_kv_clear(self, keys: list[str] | str, partition_id: Any) -> None:
        """See :func:`transfer_queue.kv_clear`."""
        await self._session.run_async(_calls.kv_clear(self._session, keys, partition_id))

    async def async_kv_retrieve_meta(
        self, keys: list[str] | str, partition_id: Any, create: bool = False
    ) -> BatchMeta:
        """See :meth:`TransferQueueClient.kv_retrieve_meta`."""
        return await self._session.run_async(
            _calls.kv_retrieve_meta(self._session, keys, partition_id, create)
        )

    async def async_kv_retrieve_keys(
        self, global_indexes: list[int] | int, partition_id: Any
    ) -> list[str | None]:
        """See :meth:`TransferQueueClient.kv_retrieve_keys`."""
        return await self._session.run_async(
            _calls.kv_retrieve_keys(self._session, global_indexes, partition_id)
        )

    def close(self) -> None:
        """Ends the session; calls under way end with an error. The store lives on."""
        self._session.close()


class TransferQueueClient(AsyncTransferQueueClient):
    """A session with a store: blocking calls, and the ``async_`` ones of its base."""

    # -- metadata ----------------------------------------------------------------------------

    def get_meta(
        self,
        data_fields: list[str],
        batch_size: int | None,
        partition_id: Any,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> BatchMeta:
        """Rows to work on.

        Args:
            data_fields: for a fetch, the fields that a row must have to be ready.
            batch_size: how many rows; ignored by ``force_fetch``.
            partition_id: where.
            mode: ``"fetch"`` grants ready rows that the task has not consumed, never fewer than
                asked unless the sampler returns fewer; ``"insert"`` reserves new rows;
                ``"force_fetch"`` lists every row of the partition and marks nothing.
            task_name: who consumes; tasks are independent of each other.
            sampling_config: arguments of the store's sampler.
            timeout: seconds that a fetch waits for rows. None: TQ_CONTROLLER_GET_METADATA_TIMEOUT,
                else 5.

        Returns:
            The rows with their fields and tags. In polling mode an empty BatchMeta if there are
            not enough.

        Raises:
            DeadlineError: (a TimeoutError) too few rows in time; the text has the figures and what
                is missing.
            UsageError: (a ValueError) bad arguments; ``force_fetch`` of an unknown partition.
        """
        return self._session.run(
            _calls.get_meta(
                self._session,
                data_fields,
                batch_size,
                partition_id,
                mode,
                task_name,
                sampling_config,
                timeout,
            )
        )

    def set_custom_meta(self, metadata: BatchMeta) -> None:
        """Replaces the tags of the rows by ``metadata.custom_meta``.

        An unknown partition or empty metadata: nothing happens.
        """
        self._session.run(_calls.set_custom_meta(self._session, metadata))

    def clear_samples(self, metadata: BatchMeta) -> None:
        """Clears the rows: when it returns, no request can reach them any more. The partition
        stays. Rows that are gone already are no error."""
        self._session.run(_calls.clear_samples(self._session, metadata))

    def clear_partition(self, partition_id: Any) -> None:
        """Clears all rows of a partition, and the partition itself. Unknown: nothing happens."""
        self._session.run(_calls.clear_partition(self._session, partition_id))

    def get_consumption_status(
        self, task_name: str, partition_id: Any
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Row indexes, int64 ``(rows,)`` ascending, and whether the task has consumed each, int8
        ``(rows,)``. ``(None, None)`` for an unknown partition; zeros for an unknown task."""
        return self._session.run(
            _calls.get_consumption_status(self._session, task_name, partition_id)
        )

    def get_production_status(
        self, data_fields: list[str], partition_id: Any
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Row indexes, int64 ``(rows,)`` ascending, and whether each field is produced, int8
        ``(rows, fields)``. ``(None, None)`` for an unknown partition or field."""
        return self._session.run(
            _calls.get_production_status(self._session, data_fields, partition_id)
        )

    def check_consumption_status(self, task_name: str, partition_id: Any) -> bool:
        """Whether there are rows and the task has consumed them all."""
        return self._session.run(
            _calls.check_consumption_status(self._session, task_name, partition_id)
        )

    def check_production_status(self, data_fields: list[str], partition_id: Any) -> bool:
        """Whether partition and fields are known and every row has them all."""
        return self._session.run(
            _calls.check_production_status(self._session, data_fields, partition_id)
        )

    def reset_consumption(self, partition_id: Any, task_name: str | None = None) -> bool:
        """Makes all rows unconsumed again, for one task or (None) for all. Always True."""
        return self._session.run(_calls.reset_consumption(self._session, partition_id, task_name))

    def get_partition_list(self) -> list[Any]:
        """The ids of all partitions."""
        return self._session.run(_calls.get_partition_list(self._session))

    # -- data --------------------------------------------------------------------------------

    def put(
        self,
        data: TensorDictBase,
        metadata: BatchMeta | None = None,
        partition_id: Any = None,
        data_parser: DataParser | None = None,
    ) -> BatchMeta:
        """Writes columns: to new rows of ``partition_id``, or to the rows of ``metadata``.

        Args:
            data: columns of shape ``(rows, ...)``, nested ones, or Python objects; batch_size
                ``[rows]``.
            metadata: rows that exist; columns are added or replaced, each row in its own
                partition. Of its tags those are sent that the caller changed since reading it.
            partition_id: where new rows go, if there is no metadata.
            data_parser: called once, in this process, with {field: column}; returns the columns to
                write, with the same keys and lengths.

        Returns:
            ``metadata`` itself, with the fields added and all of it ready; or that of the new rows.
            All is visible at once per row.

        Raises:
            UsageError: (a ValueError) no place given, no rows, lengths that differ, data_parser
                failed.
            StorageKeyNotFoundError: (a KeyError) a row was cleared meanwhile.
            RetryError: the store stayed full.
        """
        return self._session.run(
            _calls.put(self._session, data, metadata, partition_id, data_parser)
        )

    def get_data(self, metadata: BatchMeta) -> TensorDict:
        """The fields of the metadata for its rows, in its order; repeats are fine.

        Returns:
            batch_size ``[rows]``, columns sorted by name: dense ``(rows,)`` of 0-d values, jagged
            of the others, NonTensorStack of objects (the table is in docs/semantics.md). Empty
            metadata, or none of its fields: batch_size ``[0]``.

        Raises:
            UsageError: (a RuntimeError) a field that nobody ever wrote.
            StorageKeyNotFoundError: (a KeyError) a row that was cleared, or lacks a field.
        """
        return self._session.run(_calls.get_data(self._session, metadata))

    # -- keys --------------------------------------------------------------------------------

    def kv_put(
        self,
        key: str,
        partition_id: Any,
        fields: TensorDictBase | dict[str, Any] | None = None,
        tag: Tags | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """See :func:`transfer_queue.kv_put`."""
        return self._session.run(
            _calls.kv_put(self._session, key, partition_id, fields, tag, data_parser)
        )

    def kv_batch_put(
        self,
        keys: list[str],
        partition_id: Any,
        fields: TensorDictBase | None = None,
        tags: list[Tags] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """See :func:`transfer_queue.kv_batch_put`."""
        return self._session.run(
            _calls.kv_batch_put(self._session, keys, partition_id, fields, tags, data_parser)
        )

    def kv_batch_get(
        self,
        keys: list[str] | str,
        partition_id: Any,
        select_fields: list[str] | str | None = None,
        *,
        strict: bool = False,
    ) -> TensorDict:
        """See :func:`transfer_queue.kv_batch_get`."""
        return self._session.run(
            _calls.kv_batch_get(self._session, keys, partition_id, select_fields, strict)
        )

    def kv_batch_get_by_meta(
        self,
        meta: KVBatchMeta,
        select_fields: list[str] | str | None = None,
        *,
        strict: bool = False,
    ) -> TensorDict:
        """See :func:`transfer_queue.kv_batch_get_by_meta`."""
        return self._session.run(
            _calls.kv_batch_get_by_meta(self._session, meta, select_fields, strict)
        )

    def kv_list(self, partition_id: Any = None) -> dict[Any, dict[str, Tags]]:
        """See :func:`transfer_queue.kv_list`."""
        return self._session.run(_calls.kv_list(self._session, partition_id))

    def kv_clear(self, keys: list[str] | str, partition_id: Any) -> None:
        """See :func:`transfer_queue.kv_clear`."""
        self._session.run(_calls.kv_clear(self._session, keys, partition_id))

    def kv_retrieve_meta(
        self, keys: list[str] | str, partition_id: Any, create: bool = False
    ) -> BatchMeta:
        """The rows of keys, with the fields that all of them have, and their tags.

        Unknown keys are left out, or get reserved rows with ``create``. An unknown partition:
        empty metadata. TypeError for keys that are not str, UsageError for an empty list.
        """
        return self._session.run(_calls.kv_retrieve_meta(self._session, keys, partition_id, create))

    def kv_retrieve_keys(
        self, global_indexes: list[int] | int, partition_id: Any
    ) -> list[str | None]:
        """The keys of rows; None for rows without one, and for unknown rows.

        TypeError for anything but Python ints, UsageError for an empty list or an unknown
        partition.
        """
        return self._session.run(
            _calls.kv_retrieve_keys(self._session, global_indexes, partition_id)
        )
