# SPDX-License-Identifier: Apache-2.0
"""tq: the streaming data store between the stages of LLM post-training.

Start with :func:`init`; write with :func:`kv_batch_put` or :meth:`TransferQueueClient.put`, read
with :func:`kv_batch_get` or :meth:`TransferQueueClient.get_meta` and
:meth:`TransferQueueClient.get_data`.
"""

from transfer_queue import errors  # installs the exceptions before anything can raise
from transfer_queue._core import VERSION as _VERSION
from transfer_queue.client import TransferQueueClient
from transfer_queue.errors import StorageKeyNotFoundError
from transfer_queue.interface import (
    async_kv_batch_get,
    async_kv_batch_get_by_meta,
    async_kv_batch_put,
    async_kv_clear,
    async_kv_list,
    async_kv_put,
    close,
    get_client,
    get_metrics_endpoint,
    init,
    kv_batch_get,
    kv_batch_get_by_meta,
    kv_batch_put,
    kv_clear,
    kv_list,
    kv_put,
)
from transfer_queue.metadata import BatchMeta, KVBatchMeta
from transfer_queue.sampler import BaseSampler, GRPOGroupNSampler, SequentialSampler

# The release of TransferQueue whose API this is, and behind the plus our own: programs compare the
# first (docs/adr has the choice).
__version__ = f"0.1.11+tq.{_VERSION}"

__all__ = [
    "BaseSampler",
    "BatchMeta",
    "GRPOGroupNSampler",
    "KVBatchMeta",
    "SequentialSampler",
    "StorageKeyNotFoundError",
    "TransferQueueClient",
    "__version__",
    "async_kv_batch_get",
    "async_kv_batch_get_by_meta",
    "async_kv_batch_put",
    "async_kv_clear",
    "async_kv_list",
    "async_kv_put",
    "close",
    "errors",
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
