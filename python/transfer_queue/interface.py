# SPDX-License-Identifier: Apache-2.0
"""The functions of the package: one store for the process, opened, joined and closed.

``init`` makes a store in this process (embedded), or joins one; ``kv_*`` functions join by
themselves where TQ_ADDRESS names a store. The process that made a store is the one whose ``close``
ends it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from omegaconf import DictConfig
from tensordict import TensorDict, TensorDictBase

from transfer_queue import _config, _core
from transfer_queue._session import Session
from transfer_queue.client import TransferQueueClient
from transfer_queue.errors import TransferQueueError
from transfer_queue.metadata import KVBatchMeta

__all__ = [
    "async_kv_batch_get",
    "async_kv_batch_get_by_meta",
    "async_kv_batch_put",
    "async_kv_clear",
    "async_kv_list",
    "async_kv_put",
    "close",
    "get_client",
    "get_metrics_endpoint",
    "init",
    "kv_batch_get",
    "kv_batch_get_by_meta",
    "kv_batch_put",
    "kv_clear",
    "kv_list",
    "kv_put",
]

logger = logging.getLogger("transfer_queue")

Tags = dict[Any, Any]
DataParser = Callable[[dict[str, Any]], dict[str, Any]]

ADDRESS_ENV: Final = "TQ_ADDRESS"


class _Process:
    """What this process has open."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.client: TransferQueueClient | None = None
        self.store: _core.Store | None = None
        # TQ_ADDRESS as it was before this process made a store.
        self.outer_address: str | None = None

    def after_fork(self) -> None:
        """In a child: the client opens a session of its own at first use; the store is the
        parent's."""
        self.lock = threading.RLock()
        self.store = None


_process = _Process()
os.register_at_fork(after_in_child=_process.after_fork)


def init(
    conf: DictConfig | Mapping[str, Any] | None = None,
) -> DictConfig | Mapping[str, Any] | None:
    """Opens a store for this process: makes one, or joins one.

    Args:
        conf: overrides of config.yaml. ``runtime: auto`` joins the store at ``address`` or
            TQ_ADDRESS where there is one, and else makes one in this process, which then sets
            TQ_ADDRESS so that child processes join it.

    Returns:
        The merged configuration where a store was made; else `conf` itself.

    Raises:
        PeerError: within 5 s, no store answers at the address.
        ConfigKeyError: (a KeyError) unknown backend.
        UsageError: (a ValueError) bad configuration; UnsupportedError for what is not there yet.
    """
    with _process.lock:
        if _process.client is not None:
            return conf
        config = _config.merge(conf)
        settings = _config.settings(config)
        address = settings.address or os.environ.get(ADDRESS_ENV)
        if settings.runtime == "connect" or (settings.runtime == "auto" and address):
            session = Session(address, **settings.client)
            _process.client = TransferQueueClient._of_session(_client_id(), session)
            return conf
        _embed(config, settings)
        if settings.runtime == "auto":
            _warn_of_ray(config.controller.zmq_info)
        return config


def _embed(config: DictConfig, settings: _config.Settings) -> None:
    """Makes a store here and opens a session with it; on failure nothing stays."""
    store = _core.Store(user_conf=_config.for_clients(config), **settings.store)
    try:
        session = Session(store.address, store.public_address, **settings.client)
    except TransferQueueError:
        store.close()
        raise
    _process.store = store
    _process.client = TransferQueueClient._of_session(_client_id(), session)
    _process.outer_address = os.environ.get(ADDRESS_ENV)
    os.environ[ADDRESS_ENV] = store.public_address
    config.controller.zmq_info = store.public_address
    config.backend.SimpleStorage.zmq_info = store.public_address


def _client_id() -> str:
    return f"TransferQueueClient_{os.getpid()}"


def _warn_of_ray(address: str) -> None:
    """Says where the store is, in a process that would rather have it in Ray."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        why = "this process is connected to Ray"
    elif os.environ.get("RAY_ADDRESS"):
        why = "RAY_ADDRESS is set"
    else:
        return
    logger.warning(
        "init: %s, but this release can't place a store in Ray: the store is in this process, and "
        "ends with it. Ray's workers do not find it by themselves: on this machine give them "
        "TQ_ADDRESS=%s (runtime_env env_vars), for other machines set listen, or run a tqd and give "
        "its address to all. runtime: embedded says that this is meant, and ends this warning",
        why,
        address,
    )


def close() -> None:
    """Ends this process's session, and the store if this process made it. Idempotent.

    Where the process only joined, the store lives on.
    """
    with _process.lock:
        client, _process.client = _process.client, None
        store, _process.store = _process.store, None
        try:
            if client is not None:
                client.close()
        finally:
            if store is not None:
                if os.environ.get(ADDRESS_ENV) == store.public_address:
                    _restore_address()
                store.close()


def _restore_address() -> None:
    if _process.outer_address is None:
        del os.environ[ADDRESS_ENV]
    else:
        os.environ[ADDRESS_ENV] = _process.outer_address


atexit.register(close)


def get_client() -> TransferQueueClient:
    """The client of this process. AssertionError before ``init``."""
    client = _process.client
    if client is None:
        raise AssertionError("There is no client in this process. Please call init() first.")
    return client


def get_metrics_endpoint() -> str | None:
    """``host:port`` of the store's metrics, or None where they are not served."""
    return None


def _attached() -> TransferQueueClient:
    """The client of this process, which joins the store of TQ_ADDRESS if it has not yet."""
    client = _process.client
    if client is not None:
        return client
    if not os.environ.get(ADDRESS_ENV):
        raise AssertionError("There is no store to use. Please call init() first.")
    init()
    return get_client()


# ---- keys ------------------------------------------------------------------------------------


def kv_put(
    key: str,
    partition_id: Any,
    fields: TensorDictBase | dict[str, Any] | None = None,
    tag: Tags | None = None,
    data_parser: DataParser | None = None,
) -> KVBatchMeta:
    """Writes the row of one key: fields, a tag, or both. A new key makes a row.

    Args:
        key: of the row.
        partition_id: where.
        fields: a dict of values of one row (tensors without a batch dimension, or any objects), or
            a TensorDict of batch_size ``[1]``. Written fields are replaced, others stay.
        tag: merged into the row's tags at the top level.
        data_parser: see :meth:`TransferQueueClient.put`.

    Returns:
        The key with its merged tags and the names of all its fields.

    Raises:
        UsageError: (a ValueError) neither fields nor tag, a nested tensor, another batch size.
        TypeError: the key is not a str.
        RetryError: the store stayed full.

    >>> kv_put("uid-1", "train", {"tokens": torch.arange(5)}, {"status": "new"})  # doctest: +SKIP
    """
    return _attached().kv_put(key, partition_id, fields, tag, data_parser)


def kv_batch_put(
    keys: list[str],
    partition_id: Any,
    fields: TensorDictBase | None = None,
    tags: list[Tags] | None = None,
    data_parser: DataParser | None = None,
) -> KVBatchMeta:
    """Writes the rows of several keys at once: fields, tags, or both.

    Args:
        keys: one a row, each once.
        partition_id: where.
        fields: columns of batch_size ``[len(keys)]``.
        tags: one dict a key, merged at the top level.
        data_parser: see :meth:`TransferQueueClient.put`.

    Returns:
        The same keys with their merged tags, and the names of the fields that all of them have.

    Raises:
        UsageError: (a ValueError) a key twice, lengths that differ, neither fields nor tags;
            nothing is written then.
        TypeError: keys is not a list of str.
        RetryError: the store stayed full.
    """
    return _attached().kv_batch_put(keys, partition_id, fields, tags, data_parser)


def kv_batch_get(
    keys: list[str] | str,
    partition_id: Any,
    select_fields: list[str] | str | None = None,
    *,
    strict: bool = False,
) -> TensorDict:
    """Reads the rows of keys, in their order.

    Args:
        keys: a key may stand there twice.
        partition_id: where.
        select_fields: None: all fields that the rows have in common.
        strict: raise for unknown keys and for selected fields that some row lacks. Else they are
            left out, keys with a counted warning.

    Returns:
        batch_size ``[rows]``, columns sorted by name; shapes as of
        :meth:`TransferQueueClient.get_data`. No selected field is there: batch_size ``[0]``.

    Raises:
        UsageError: (a ValueError) no key is known, or the rows have no field in common.
        TypeError: keys is neither str nor list of str.
    """
    return _attached().kv_batch_get(keys, partition_id, select_fields, strict=strict)


def kv_batch_get_by_meta(
    meta: KVBatchMeta,
    select_fields: list[str] | str | None = None,
    *,
    strict: bool = False,
) -> TensorDict:
    """Reads the keys of metadata with its fields (None: all in common), or some of them.

    UsageError for selected fields that the metadata does not name, and without a partition_id;
    else as :func:`kv_batch_get`.
    """
    return _attached().kv_batch_get_by_meta(meta, select_fields, strict=strict)


def kv_list(partition_id: Any = None) -> dict[Any, dict[str, Tags]]:
    """Keys and their tags, in insertion order: ``{partition: {key: tags}}``.

    Args:
        partition_id: one partition, ``{}`` if it is unknown. None: all of them.
    """
    return _attached().kv_list(partition_id)


def kv_clear(keys: list[str] | str, partition_id: Any) -> None:
    """Clears the rows of keys. Unknown and repeated keys are fine; an empty list is a UsageError."""
    _attached().kv_clear(keys, partition_id)


async def async_kv_put(
    key: str,
    partition_id: Any,
    fields: TensorDictBase | dict[str, Any] | None = None,
    tag: Tags | None = None,
    data_parser: DataParser | None = None,
) -> KVBatchMeta:
    """See :func:`kv_put`."""
    return await _attached().async_kv_put(key, partition_id, fields, tag, data_parser)


async def async_kv_batch_put(
    keys: list[str],
    partition_id: Any,
    fields: TensorDictBase | None = None,
    tags: list[Tags] | None = None,
    data_parser: DataParser | None = None,
) -> KVBatchMeta:
    """See :func:`kv_batch_put`."""
    return await _attached().async_kv_batch_put(keys, partition_id, fields, tags, data_parser)


async def async_kv_batch_get(
    keys: list[str] | str,
    partition_id: Any,
    select_fields: list[str] | str | None = None,
    *,
    strict: bool = False,
) -> TensorDict:
    """See :func:`kv_batch_get`."""
    return await _attached().async_kv_batch_get(keys, partition_id, select_fields, strict=strict)


async def async_kv_batch_get_by_meta(
    meta: KVBatchMeta,
    select_fields: list[str] | str | None = None,
    *,
    strict: bool = False,
) -> TensorDict:
    """See :func:`kv_batch_get_by_meta`."""
    return await _attached().async_kv_batch_get_by_meta(meta, select_fields, strict=strict)


async def async_kv_list(partition_id: Any = None) -> dict[Any, dict[str, Tags]]:
    """See :func:`kv_list`."""
    return await _attached().async_kv_list(partition_id)


async def async_kv_clear(keys: list[str] | str, partition_id: Any) -> None:
    """See :func:`kv_clear`."""
    await _attached().async_kv_clear(keys, partition_id)
