# SPDX-License-Identifier: Apache-2.0
"""A process's session with a store, and how its operations are run.

An operation is written once, as a generator that yields requests and is sent the completed ops.
:meth:`Session.run` waits for each in the calling thread; :meth:`Session.run_async` lets the event
loop watch the completion queue's fd, one queue a loop, any number of loops.

A session outlives ``fork()``: the child's first use opens one of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from transfer_queue import _core
from transfer_queue._values import Codec
from transfer_queue.errors import FatalError, PeerError, StaleStoreError, UsageError
from transfer_queue.metadata import BatchMeta

_T = TypeVar("_T")

# Submits one op on a queue, or on none if it will be waited for.
Request = Callable[[_core.Queue | None], _core.Op]
# An operation: yields requests (one, or a list to be under way together), is sent their ops.
Steps = Generator[Request | list[Request], Any, _T]

FETCH_TIMEOUT_ENV: Final = "TQ_CONTROLLER_GET_METADATA_TIMEOUT"


class _LoopQueue:
    """A completion queue that one event loop watches. Used by that loop's thread alone."""

    def __init__(self, client: _core.Client, loop: asyncio.AbstractEventLoop) -> None:
        self.core = _core.Queue(client)
        self._fd = self.core.fileno()
        self._waiting: dict[_core.Op, asyncio.Future[None]] = {}
        loop.add_reader(self._fd, self._take)

    def _take(self) -> None:
        for op in self.core.poll():
            future = self._waiting.pop(op, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def completed(self, op: _core.Op) -> None:
        """Returns once the op has completed; a cancellation is passed on to it."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[op] = future
        try:
            await future
        except asyncio.CancelledError:
            op.cancel()
            raise

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the watching; what still waits gets the error of a closed client."""
        loop.remove_reader(self._fd)
        self.core.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
        self._waiting.clear()


class Session:
    """A session with the store at an address.

    Args:
        address: of the store. None: the environment variable TQ_ADDRESS.
        child_address: what a forked child uses instead, where the address is of this process only.
        options: keyword arguments of ``_core.Client``.

    Raises PeerError (with what to do) where nothing answers within 5 s.
    """

    def __init__(
        self, address: str | None, child_address: str | None = None, **options: Any
    ) -> None:
        self._address = address if address is not None else os.environ.get("TQ_ADDRESS")
        self._child_address = child_address or self._address
        self._options = options
        self._lock = threading.RLock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = (
            weakref.WeakKeyDictionary()
        )
        self._pid = os.getpid()
        self._is_closed = False
        self._client = self._open()
        self.config: dict[str, Any] = _parse_config(self._client.store_conf)
        security = self.config.get("security") or {}
        self.codec = Codec(bool(security.get("allow_pickle", True)))
        self.is_polling = bool((self.config.get("controller") or {}).get("polling_mode", False))
        # Keys that reads left out because the store does not know them.
        self.skipped_keys_cnt = 0
        _sessions.add(self)

    def _open(self) -> _core.Client:
        if not self._address:
            raise UsageError(
                "no store to connect to: give init an address, or set TQ_ADDRESS", "E_CONFIG"
            )
        try:
            return _core.Client(
                self._address, fetch_timeout_ms=_fetch_timeout_ms(), **self._options
            )
        except (PeerError, FatalError) as error:
            error.add_note(
                f"No store answers at {self._address}: its creator may have ended without close(). "
                "Start it again, or unset TQ_ADDRESS to have a store in this process."
            )
            raise

    @property
    def core(self) -> _core.Client:
        """The client handle, opened anew in a child of fork."""
        if self._is_closed:
            raise UsageError("the client is closed", "E_CLOSED")
        if self._pid != os.getpid():
            self._reopen()
        return self._client

    def _reopen(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                return
            self._address = self._child_address
            self._client = self._open()
            self._pid = os.getpid()

    def _after_fork(self) -> None:
        """In the child: what another thread may have held, and what the parent's loops watch."""
        self._lock = threading.RLock()
        self._loops = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Ends the session; calls under way end with an error. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            loops, self._loops = dict(self._loops), weakref.WeakKeyDictionary()
        if self._pid != os.getpid():
            return
        for loop, queue in loops.items():
            _close_queue(loop, queue)
        self._client.close()

    def check_store(self, meta: BatchMeta) -> None:
        """StaleStoreError for metadata of a store that is no more."""
        incarnation = meta._incarnation
        if incarnation != 0 and incarnation != self.core.incarnation:
            raise StaleStoreError(
                "the metadata belongs to a store that was replaced by a new one "
                f"({incarnation:016x}, now {self.core.incarnation:016x}): its rows are gone"
            )

    # -- running operations ------------------------------------------------------------------

    def run(self, steps: Steps[_T]) -> _T:
        """Runs an operation, waiting in this thread."""
        try:
            request = next(steps)
            while True:
                if isinstance(request, list):
                    ops = [submit(None) for submit in request]
                    for op in ops:
                        op.wait()
                    request = steps.send(ops)
                else:
                    op = request(None)
                    op.wait()
                    request = steps.send(op)
        except StopIteration as stop:
            return stop.value

    async def run_async(self, steps: Steps[_T]) -> _T:
        """Runs an operation on the running event loop."""
        try:
            request = next(steps)
            queue = self._loop_queue()
            while True:
                if isinstance(request, list):
                    ops = [submit(queue.core) for submit in request]
                    await asyncio.gather(*map(queue.completed, ops))
                    request = steps.send(ops)
                else:
                    op = request(queue.core)
                    await queue.completed(op)
                    request = steps.send(op)
        except StopIteration as stop:
            return stop.value

    def _loop_queue(self) -> _LoopQueue:
        loop = asyncio.get_running_loop()
        client = self.core
        with self._lock:
            queue = self._loops.get(loop)
            if queue is None:
                for other in [other for other in self._loops if other.is_closed()]:
                    self._loops.pop(other).core.close()
                queue = self._loops[loop] = _LoopQueue(client, loop)
            return queue


def _close_queue(loop: asyncio.AbstractEventLoop, queue: _LoopQueue) -> None:
    """Closes a queue in its loop's thread, where that is another and runs."""
    if loop.is_closed():
        queue.core.close()
        return
    try:
        is_here = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_here = False
    if is_here or not loop.is_running():
        queue.close(loop)
        return
    closed = threading.Event()

    def close() -> None:
        queue.close(loop)
        closed.set()

    try:
        loop.call_soon_threadsafe(close)
        closed.wait(1.0)
    except RuntimeError:
        # The loop was closed meanwhile.
        queue.core.close()


def _parse_config(text: str) -> dict[str, Any]:
    """The configuration that the store's creator left with it; {} if there is none for us."""
    try:
        config = json.loads(text)
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _fetch_timeout_ms() -> int:
    text = os.environ.get(FETCH_TIMEOUT_ENV)
    if text is None:
        return 0
    try:
        return timeout_ms(float(text))
    except ValueError as error:
        raise UsageError(
            f"{FETCH_TIMEOUT_ENV} must be seconds, not {text!r}", "E_CONFIG"
        ) from error


def timeout_ms(timeout: float | None) -> int:
    """Seconds as the C API's milliseconds; 0 for None, which stands for the default."""
    if timeout is None:
        return 0
    if not timeout >= 0:
        raise UsageError(f"timeout must be seconds from 0 up, not {timeout!r}")
    return max(1, min(round(timeout * 1000), 2**32 - 1))


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for session in list(_sessions):
        session._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
