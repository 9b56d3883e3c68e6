# SPDX-License-Identifier: Apache-2.0
"""The exceptions of tq: one class for each class of status, with the built-in base that a caller
would catch.

Every one is a :class:`TransferQueueError` and thereby a ``RuntimeError``; ``error.status`` is the
name of the status (``"E_FULL"``), which include/tq/status.h explains.
"""

from __future__ import annotations

from typing import Final

from transfer_queue import _core

__all__ = [
    "DeadlineError",
    "DeniedError",
    "FatalError",
    "InternalError",
    "LocalError",
    "OutcomeUnknownError",
    "PeerError",
    "RetryError",
    "StaleStoreError",
    "StorageKeyNotFoundError",
    "TransferQueueError",
    "UnsupportedError",
    "UsageError",
]


class TransferQueueError(RuntimeError):
    """Base of all errors of tq."""

    status: str = "E_BUG"

    def __init__(self, text: str, status: str | None = None) -> None:
        super().__init__(text)
        if status is not None:
            self.status = status

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else self.status


class UsageError(TransferQueueError, ValueError):
    """The caller's mistake: the same call fails again."""

    status = "E_INVALID"


class StorageKeyNotFoundError(UsageError, KeyError):
    """A row was cleared, or has no value in a field that was asked for."""

    status = "E_NOT_FOUND"


class UnsupportedError(UsageError, NotImplementedError):
    """Not supported here; the text says where it is."""

    status = "E_UNSUPPORTED"


class DeniedError(UsageError, PermissionError):
    """Not allowed, by the store or by this client's own configuration."""

    status = "E_DENIED"


class TaskNameError(UsageError, AssertionError):
    """A fetch without the name of the task that consumes."""


class RetryError(TransferQueueError):
    """Nothing was changed; the same call may succeed later."""

    status = "E_BUSY"


class DeadlineError(RetryError, TimeoutError):
    """The deadline passed first."""

    status = "E_TIMEOUT"


class PeerError(TransferQueueError, ConnectionError):
    """Another process, or the way to it, failed."""

    status = "E_PEER_LOST"


class StaleStoreError(PeerError):
    """The store that this metadata or this client belongs to was replaced by a new one."""

    status = "E_STALE_STORE"


class LocalError(TransferQueueError):
    """This process or machine is out of something."""

    status = "E_SYSTEM"


class LocalMemoryError(LocalError, MemoryError):
    """Out of memory."""

    status = "E_NO_MEMORY"


class LocalSystemError(LocalError, OSError):
    """A system call failed, or an address can't be listened on."""


class OutcomeUnknownError(TransferQueueError):
    """Whether a write took effect is not known; tq never replays it by itself."""

    status = "E_OUTCOME_UNKNOWN"


class FatalError(TransferQueueError, ConnectionError):
    """This client must be closed and opened again."""

    status = "E_STORE_GONE"


class InternalError(TransferQueueError):
    """tq broke its own rules; please report it with the message."""


_BY_CLASS: Final[dict[str, type[TransferQueueError]]] = {
    "USAGE": UsageError,
    "RETRY": RetryError,
    "PEER": PeerError,
    "LOCAL": LocalError,
    "UNKNOWN": OutcomeUnknownError,
    "FATAL": FatalError,
    "BUG": InternalError,
}

# Where a status has a narrower built-in base than its class.
_BY_STATUS: Final[dict[str, type[TransferQueueError]]] = {
    "E_NOT_FOUND": StorageKeyNotFoundError,
    "E_ROW_GONE": StorageKeyNotFoundError,
    "E_NOT_PRODUCED": StorageKeyNotFoundError,
    "E_UNSUPPORTED": UnsupportedError,
    "E_DENIED": DeniedError,
    "E_TIMEOUT": DeadlineError,
    "E_NOT_READY": DeadlineError,
    "E_STALE_STORE": StaleStoreError,
    "E_NO_MEMORY": LocalMemoryError,
    "E_SYSTEM": LocalSystemError,
    "E_ADDRESS": LocalSystemError,
}

_BY_NUMBER: Final[dict[int, tuple[str, type[TransferQueueError]]]] = {
    number: (name, _BY_STATUS.get(name) or _BY_CLASS.get(status_class, InternalError))
    for name, (number, status_class) in _core.STATUSES.items()
}


def from_status(number: int, text: str) -> TransferQueueError:
    """The exception for a status number and its sentence."""
    name, error_class = _BY_NUMBER.get(number, ("E_BUG", InternalError))
    return error_class(text, name)


_core.set_error_factory(from_status)
