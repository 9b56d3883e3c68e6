# SPDX-License-Identifier: Apache-2.0
"""Python objects as bytes, so that they come back as they went in.

``str`` and ``bytes`` travel as they are. What msgpack gives back unchanged, types included (None,
bool, int of 64 bits, float, and lists and dicts of these), travels as msgpack, which any reader of
the store can decode. Everything else (tuples, sets, dataclasses, enums, dates, arrays, functions,
subclasses of the above) is pickled, which only Python clients with ``allow_pickle`` read.
"""

from __future__ import annotations

import pickle
import threading
from typing import Any, Final, NoReturn

import msgpack

from transfer_queue import _core
from transfer_queue.errors import DeniedError, UsageError

# A cell of an EACH column: str, bytes, or (encoding, bytes).
Cell = str | bytes | tuple[int, bytes]

# A row's tags as they were read from the store, packed; several where reads were joined, the
# latest last; None where they were made here.
SeenTags = bytes | tuple[bytes, ...] | None

EMPTY_TAGS: Final = b"\x80"
_PICKLE_EXT: Final = 1
_MSGPACK_TYPES: Final = frozenset({type(None), bool, int, float, list, dict})


class _NoMsgpackFormError(Exception):
    """Raised inside a packer by the first object that must be pickled."""


def _refuse(value: object) -> NoReturn:
    raise _NoMsgpackFormError


class _Local(threading.local):
    """A packer of this thread's own: making one costs more than most of what it packs."""

    def __init__(self) -> None:
        # Strict: a subclass (np.float64, IntEnum, namedtuple) would come back as its base.
        self.packer = msgpack.Packer(strict_types=True, default=_refuse)


_local = _Local()


def _pack_exactly(value: Any) -> bytes | None:
    """msgpack of a value that comes back as it is; None if it wouldn't."""
    try:
        return _local.packer.pack(value)
    except (_NoMsgpackFormError, OverflowError, ValueError, TypeError):
        # Not a type of msgpack's, an int of over 64 bits, nested too deep, a lone surrogate.
        _local.packer.reset()
        return None


class Codec:
    """Encodes and decodes values and tag maps for one client.

    With ``allow_pickle`` off, values that only pickle could carry are refused both ways, with
    :class:`DeniedError`.
    """

    def __init__(self, allow_pickle: bool = True) -> None:
        self.allow_pickle = allow_pickle

    # -- values ------------------------------------------------------------------------------

    def encode(self, value: Any) -> Cell:
        """One non-tensor value as a cell."""
        value_type = type(value)
        if value_type is str:
            if value.isascii() or _is_utf8(value):
                return value
        elif value_type is bytes:
            return value
        elif value_type in _MSGPACK_TYPES:
            packed = _pack_exactly(value)
            if packed is not None:
                return (_core.MSGPACK, packed)
        return (_core.PICKLE, self._dumps(value))

    def decode(self, encoding: int, data: bytes) -> Any:
        """The value of a MSGPACK or PICKLE cell."""
        if encoding == _core.MSGPACK:
            return msgpack.unpackb(data, strict_map_key=False)
        if encoding == _core.PICKLE:
            return self._loads(data)
        raise UsageError(f"a value has the unknown encoding {encoding}", "E_UNSUPPORTED")

    def _dumps(self, value: Any) -> bytes:
        if not self.allow_pickle:
            raise DeniedError(
                f"a {type(value).__qualname__} can only travel pickled, and "
                "security.allow_pickle is false"
            )
        try:
            return pickle.dumps(value, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError):
            # Lambdas and local classes.
            import cloudpickle

            return cloudpickle.dumps(value)

    def _loads(self, data: bytes) -> Any:
        if not self.allow_pickle:
            raise DeniedError("a value is pickled, and security.allow_pickle is false")
        return pickle.loads(data)

    # -- tags --------------------------------------------------------------------------------

    def encode_tags(self, tags: dict[Any, Any]) -> bytes:
        """One row's tags as a msgpack map; values without a msgpack form are pickled, each alone.

        UsageError for anything but a dict with str or int keys.
        """
        if not tags and isinstance(tags, dict):
            return EMPTY_TAGS
        if not isinstance(tags, dict):
            raise UsageError(f"tags of a row must be a dict, not {type(tags).__qualname__}")
        for key in tags:
            if type(key) is not str and type(key) is not int:
                raise UsageError(
                    f"tag names must be str or int, not {type(key).__qualname__}: {key!r}"
                )
        packed = _pack_exactly(tags)
        if packed is not None:
            return packed
        try:
            return msgpack.packb(
                {key: self._tag_value(value) for key, value in tags.items()}, strict_types=True
            )
        except (OverflowError, ValueError, TypeError) as error:
            raise UsageError(f"tags can't be encoded: {error}") from error

    def _tag_value(self, value: Any) -> Any:
        if _pack_exactly(value) is not None:
            return value
        return msgpack.ExtType(_PICKLE_EXT, self._dumps(value))

    def decode_tags(self, packed: bytes) -> dict[Any, Any]:
        """One row's tags."""
        if packed == EMPTY_TAGS:
            return {}
        return msgpack.unpackb(packed, strict_map_key=False, ext_hook=self._ext)

    def _ext(self, code: int, data: bytes) -> Any:
        return self._loads(data) if code == _PICKLE_EXT else msgpack.ExtType(code, data)

    def changed_tags(self, tags: dict[Any, Any], seen: SeenTags) -> bytes | None:
        """What of `tags` differs from `seen`, the row's tags when they were read; None if nothing.

        Values are compared in their encoded form: NaN equals itself, 1 and True differ.
        """
        packed = self.encode_tags(tags)
        if seen is None:
            return None if packed == EMPTY_TAGS else packed
        if packed == seen:
            return None
        before: dict[Any, Any] = {}
        for read in seen if isinstance(seen, tuple) else (seen,):
            before |= self.decode_tags(read)
        changed = {
            key: value
            for key, value in tags.items()
            if key not in before
            or self.encode_tags({key: value}) != self.encode_tags({key: before[key]})
        }
        return self.encode_tags(changed) if changed else None


def encode_sampling(arguments: dict[str, Any] | None) -> bytes | None:
    """A sampler's arguments as a msgpack map; None for none."""
    if not arguments:
        return None
    try:
        return msgpack.packb(arguments, default=_plain)
    except (OverflowError, ValueError, TypeError) as error:
        raise UsageError(f"sampling_config can't be encoded: {error}") from error


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's own."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__qualname__} is neither a number, a string nor a list")
    return item()


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
