# SPDX-License-Identifier: Apache-2.0
"""The configuration: config.yaml merged with what the caller gives, checked and taken apart."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
import inspect
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError

from transfer_queue import sampler as samplers
from transfer_queue.errors import UnsupportedError, UsageError
from transfer_queue.sampler import BaseSampler

logger = logging.getLogger("transfer_queue")

_OBJECTS = {"allow_objects": True}
_RUNTIMES = ("auto", "embedded", "connect")
# Sections whose members are the user's own, and the ones that belong to other backends.
_OPEN_SECTIONS = ("backend.Yuanrong.ucx_env_vars", "backend.RayStore")
_U64_MAX = 2**64 - 1


def defaults() -> DictConfig:
    """The packaged config.yaml."""
    text = (importlib.resources.files("transfer_queue") / "config.yaml").read_text()
    config = OmegaConf.create(text, flags=_OBJECTS)
    assert isinstance(config, DictConfig)
    return config


def merge(conf: DictConfig | Mapping[str, Any] | None) -> DictConfig:
    """The defaults, overridden by `conf`. Unknown keys are kept, with a warning that names the
    nearest known one where they stand in a section of ours. TypeError for what is no mapping."""
    base = defaults()
    if conf is None:
        return base
    if not isinstance(conf, DictConfig):
        if not isinstance(conf, Mapping):
            raise TypeError(f"conf must be a dict or DictConfig, not {type(conf).__qualname__}")
        conf = OmegaConf.create(dict(conf), flags=_OBJECTS)
    for text in unknown_keys(base, conf):
        logger.warning("init: %s", text)
    merged = OmegaConf.merge(base, conf)
    assert isinstance(merged, DictConfig)
    return merged


def unknown_keys(known: DictConfig, given: DictConfig, path: str = "") -> list[str]:
    """A sentence for each key of `given` that should be said to be unknown.

    At the top, where programs keep keys of their own, only what looks mistyped.
    """
    if path in _OPEN_SECTIONS:
        return []
    sentences = []
    for key in given:
        name = str(key)
        where = f"{path}.{name}" if path else name
        if key not in known:
            near = difflib.get_close_matches(name, [str(k) for k in known], 1)
            if near:
                sentences.append(f"unknown key {where!r}; did you mean {near[0]!r}?")
            elif path:
                sentences.append(f"unknown key {where!r}; {path} has {', '.join(map(str, known))}")
            continue
        ours = _section(known, key)
        theirs = _section(given, key)
        if ours is not None and theirs is not None:
            sentences += unknown_keys(ours, theirs, where)
    return sentences


def _section(config: DictConfig, key: Any) -> DictConfig | None:
    if OmegaConf.is_missing(config, key):
        return None
    node = config._get_node(key)
    return node if isinstance(node, DictConfig) and not node._is_none() else None


@dataclasses.dataclass(frozen=True)
class Settings:
    """What init needs to know of a merged configuration."""

    runtime: str
    address: str | None
    store: dict[str, Any]
    client: dict[str, Any]


def settings(config: DictConfig) -> Settings:
    """Takes a merged configuration apart.

    Raises ConfigKeyError (a KeyError) for an unknown backend, UnsupportedError for what this
    release does not have, UsageError (a ValueError) for bad values.
    """
    runtime = config.runtime
    if runtime == "ray":
        raise UnsupportedError(
            "runtime: ray is not supported yet; use embedded, or a tqd and its address"
        )
    if runtime not in _RUNTIMES:
        raise UsageError(f"runtime must be one of {', '.join(_RUNTIMES)}, not {runtime!r}")
    _check_backend(config)
    units = config.backend.SimpleStorage
    transfer = units.payload_transfer
    if transfer.backend not in ("auto", "zmq"):
        raise UnsupportedError(
            f"payload_transfer.backend {transfer.backend!r} is not supported yet; use auto or zmq"
        )
    cache_bytes = _number(transfer.receive_buffer_cache_mb, "receive_buffer_cache_mb") << 20
    client = {"receive_cache_bytes": cache_bytes or _U64_MAX}
    if config.security.curve_server_key is not None:
        client["curve_server_key"] = config.security.curve_server_key
    store = {
        "units_cnt": _number(units.num_data_storage_units, "num_data_storage_units", least=1),
        "capacity_bytes": _number(units.capacity_bytes or 0, "capacity_bytes"),
        "prealloc_rows": _prealloc_rows(),
        "listen": _text(config.listen, "listen", "TQ_LISTEN"),
        "advertise": _text(config.advertise, "advertise", "TQ_ADVERTISE"),
        **sampler_of(config.controller.sampler)._store_options(),
    }
    return Settings(runtime, config.address, store, client)


def _check_backend(config: DictConfig) -> None:
    name = config.backend.storage_backend
    if name not in config.backend or name == "storage_backend":
        raise ConfigKeyError(
            f"backend.storage_backend is {name!r}, which backend has no section for"
        )
    if name != "SimpleStorage":
        raise UnsupportedError(f"backend.storage_backend {name} is not supported yet")
    units = config.backend.SimpleStorage
    if units.ssd_offload.enabled:
        raise UnsupportedError("ssd_offload.enabled: the SSD tier is not supported yet")
    if config.metrics.enabled:
        logger.warning("metrics.enabled: there is no endpoint yet; `tq stat --metrics` has them")
    if units.total_storage_size is not None:
        logger.warning("total_storage_size: rows are not counted yet; capacity_bytes limits bytes")
    if units.required_node_resource is not None:
        logger.warning("required_node_resource places units on Ray nodes; there is no Ray here")


def _text(value: Any, name: str, variable: str) -> str | None:
    """A text, the environment's where none is given; None for neither."""
    if value is None:
        return os.environ.get(variable) or None
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a string, not {value!r}", "E_CONFIG")
    return value or None


def _number(value: Any, name: str, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be an int from {least} up, not {value!r}", "E_CONFIG")
    return value


def _prealloc_rows() -> int:
    text = os.environ.get("TQ_PRE_ALLOC_SAMPLE_NUM", "1")
    try:
        return _number(int(text), "TQ_PRE_ALLOC_SAMPLE_NUM")
    except ValueError as error:
        raise UsageError(
            f"TQ_PRE_ALLOC_SAMPLE_NUM must be a number of rows, not {text!r}", "E_CONFIG"
        ) from error


def sampler_of(value: Any) -> BaseSampler:
    """The sampler that a name, class or instance stands for. UsageError for an unknown name."""
    if isinstance(value, BaseSampler):
        return value
    if inspect.isclass(value) and issubclass(value, BaseSampler):
        return value()
    named = getattr(samplers, value, None) if isinstance(value, str) else None
    if inspect.isclass(named) and issubclass(named, BaseSampler) and named is not BaseSampler:
        return named()
    if value in ("RankAwareSampler", "SeqlenBalancedSampler"):
        raise UnsupportedError(f"controller.sampler {value} is not supported yet")
    raise UsageError(
        f"Could not find sampler {value!r}: controller.sampler takes "
        f"{', '.join(name for name in samplers.__all__ if name != 'BaseSampler')}",
        "E_NO_SAMPLER",
    )


def for_clients(config: DictConfig) -> str:
    """The configuration as the text that every client of the store is given: plain JSON."""
    plain = OmegaConf.to_container(config, resolve=True)
    return json.dumps(plain, default=_name)


def _name(value: Any) -> str:
    return value.__name__ if inspect.isclass(value) else type(value).__name__
