# SPDX-License-Identifier: Apache-2.0
"""Types of the extension module; _core.c explains."""

from collections.abc import Callable
from typing import Any, final

UNIFORM: int
RAGGED: int
EACH: int
TENSOR: int
BYTES: int
TEXT: int
MSGPACK: int
PICKLE: int
PUT_REPLACE_TAGS: int
PUT_WANT_META: int
FETCH: int
FETCH_ALL: int
GET_SKIP_KEYS: int
GET_SKIP_FIELDS: int
CONSUMPTION: int
PRODUCTION: int
NDIM_MAX: int
REQUEST_ROWS_MAX: int
VERSION: str
STATUSES: dict[str, tuple[int, str]]
DTYPES: dict[str, int]

def set_error_factory(factory: Callable[[int, str], BaseException], /) -> None: ...
@final
class Buffer:
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Op:
    def wait(self) -> None: ...
    def cancel(self) -> None: ...
    def check(self) -> None: ...
    def columns(self, decode: Callable[[int, bytes], Any], /) -> list[tuple[Any, ...]]: ...
    def status_bytes(self, cnt: int, /) -> bytearray: ...
    @property
    def is_completed(self) -> bool: ...
    @property
    def status(self) -> int | None: ...
    @property
    def rows(self) -> list[int | None]: ...
    @property
    def keys(self) -> list[str | None]: ...
    @property
    def tags(self) -> list[bytes]: ...
    @property
    def fields(self) -> list[str]: ...
    @property
    def schemas(self) -> list[tuple[int, int, bool, tuple[int, ...]]]: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def units(self) -> list[int]: ...
    @property
    def count(self) -> int: ...
    @property
    def is_known(self) -> bool: ...
    @property
    def json(self) -> str: ...
    @property
    def incarnation(self) -> int: ...

@final
class Queue:
    def __new__(cls, client: Client, /) -> Queue: ...
    def fileno(self) -> int: ...
    def poll(self) -> list[Op]: ...
    def close(self) -> None: ...

@final
class Client:
    def __new__(
        cls,
        address: str | None,
        *,
        name: str | None = None,
        connect_timeout_ms: int = 0,
        call_timeout_ms: int = 0,
        fetch_timeout_ms: int = 0,
        space_timeout_ms: int = 0,
        copy_threads: int = 0,
        receive_cache_bytes: int = 0,
        curve_server_key: str | None = None,
    ) -> Client: ...
    def put(
        self,
        queue: Queue | None,
        partition: str,
        rows_cnt: int,
        keys: list[str] | None,
        rows: list[int] | None,
        columns: list[tuple[Any, ...]] | None,
        tags: list[bytes] | None,
        flags: int,
        timeout_ms: int,
        keep: object,
        /,
    ) -> Op: ...
    def insert(
        self,
        queue: Queue | None,
        partition: str,
        rows_cnt: int,
        fields: list[str] | None,
        timeout_ms: int,
        /,
    ) -> Op: ...
    def set_tags(
        self,
        queue: Queue | None,
        partition: str,
        rows: list[int],
        tags: list[bytes],
        is_replace: bool,
        timeout_ms: int,
        /,
    ) -> Op: ...
    def clear(
        self,
        queue: Queue | None,
        partition: str,
        rows: list[int] | None,
        keys: list[str] | None,
        is_all: bool,
        timeout_ms: int,
        /,
    ) -> Op: ...
    def reset(
        self, queue: Queue | None, partition: str, task: str | None, timeout_ms: int, /
    ) -> Op: ...
    def fetch(
        self,
        queue: Queue | None,
        partition: str,
        fields: list[str],
        rows_cnt: int,
        task: str | None,
        mode: int,
        is_polling: bool,
        sampling: bytes | None,
        timeout_ms: int,
        /,
    ) -> Op: ...
    def resolve(
        self,
        queue: Queue | None,
        partition: str,
        keys: list[str] | None,
        rows: list[int] | None,
        is_create: bool,
        timeout_ms: int,
        /,
    ) -> Op: ...
    def get(
        self,
        queue: Queue | None,
        partition: str,
        keys: list[str] | None,
        rows: list[int] | None,
        fields: list[str] | None,
        flags: int,
        timeout_ms: int,
        /,
    ) -> Op: ...
    def status(
        self,
        queue: Queue | None,
        partition: str,
        kind: int,
        task: str | None,
        fields: list[str] | None,
        timeout_ms: int,
        /,
    ) -> Op: ...
    def list(
        self,
        queue: Queue | None,
        partition: str | None,
        is_keys_only: bool,
        is_stuck_only: bool,
        want_fields: bool,
        rows_max: int,
        timeout_ms: int,
        /,
    ) -> Op: ...
    def stat(self, queue: Queue | None, timeout_ms: int, /) -> Op: ...
    def close(self) -> None: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def store_conf(self) -> str: ...

@final
class Store:
    def __new__(
        cls,
        *,
        units_cnt: int = 0,
        capacity_bytes: int = 0,
        sampler: str | None = None,
        sampler_group: int = 0,
        sampler_group_by: str | None = None,
        prealloc_rows: int = 0,
        user_conf: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
    ) -> Store: ...
    def close(self) -> None: ...
    @property
    def address(self) -> str: ...
    @property
    def public_address(self) -> str: ...
