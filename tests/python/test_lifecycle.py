# SPDX-License-Identifier: Apache-2.0
"""init and close, the configuration, and what a process without a store answers."""

from __future__ import annotations

import importlib.resources
import logging
import os
import pickle
import re
import sys
import threading
import time
import types

import pytest
import torch
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError
from packaging.version import Version
from tqtest import Program, keys_of, ragged, rows

import transfer_queue as tq
from transfer_queue import _core, errors
from transfer_queue._session import Session
from transfer_queue.errors import PeerError, RetryError, UnsupportedError, UsageError

pytestmark = pytest.mark.usefixtures("no_store")


def test_init_returns_the_merged_configuration():
    config = tq.init({"backend": {"SimpleStorage": {"num_data_storage_units": 3}}, "enable": True})
    assert config.backend.SimpleStorage.num_data_storage_units == 3
    assert config.backend.storage_backend == "SimpleStorage"
    assert config.enable is True
    assert config.controller.sampler == "SequentialSampler"
    assert config.controller.zmq_info == os.environ["TQ_ADDRESS"]


def test_a_second_init_returns_its_argument():
    tq.init()
    client = tq.get_client()
    given = OmegaConf.create({"a": 1})
    assert tq.init(given) is given
    assert tq.init() is None
    assert tq.get_client() is client


def test_the_packaged_configuration_can_be_merged_by_callers():
    text = (importlib.resources.files("transfer_queue") / "config.yaml").read_text()
    config = OmegaConf.merge(OmegaConf.create(text), {"controller": {"polling_mode": True}})
    assert tq.init(config).controller.polling_mode is True


def test_the_configuration_has_the_keys_of_transfer_queue():
    config = OmegaConf.create(
        (importlib.resources.files("transfer_queue") / "config.yaml").read_text()
    )
    assert config.metrics == {"enabled": False, "port": 0}
    assert config.controller == {
        "sampler": "SequentialSampler",
        "polling_mode": False,
        "zmq_info": None,
    }
    units = config.backend.SimpleStorage
    assert units.num_data_storage_units == 2
    assert units.total_storage_size is None
    assert units.ssd_offload.threshold_bytes == 1048576
    assert config.backend.MooncakeStore.offload.client_port == 42052
    assert config.backend.Yuanrong.worker_port == 31501
    assert config.backend.RayStore is None


def test_close_can_be_repeated_and_init_follows():
    tq.init()
    tq.kv_put("a", "p", {"x": 1})
    tq.close()
    tq.close()
    assert "TQ_ADDRESS" not in os.environ
    tq.init()
    assert tq.kv_list() == {}


def test_without_a_store_calls_say_what_to_do():
    for call in (tq.get_client, tq.kv_list, lambda: tq.kv_put("a", "p", tag={})):
        with pytest.raises(AssertionError, match=r"Please call init\(\) first"):
            call()
    assert tq.get_metrics_endpoint() is None


def test_kv_calls_attach_and_get_client_does_not(monkeypatch):
    store = _core.Store()
    monkeypatch.setenv("TQ_ADDRESS", store.public_address)
    with pytest.raises(AssertionError):
        tq.get_client()
    assert tq.kv_list() == {}
    assert tq.get_client() is not None
    tq.close()
    # Who only joined ends nothing.
    assert os.environ["TQ_ADDRESS"] == store.public_address
    assert tq.kv_put("a", "p", tag={}).keys == ["a"]
    tq.close()
    store.close()


def test_an_address_joins_and_returns_the_argument():
    store = _core.Store()
    given = {"address": store.public_address}
    assert tq.init(given) is given
    assert "TQ_ADDRESS" not in os.environ
    tq.close()
    store.close()


def test_an_embedded_store_inside_another_restores_the_address(monkeypatch):
    store = _core.Store()
    monkeypatch.setenv("TQ_ADDRESS", store.public_address)
    tq.init({"runtime": "embedded"})
    assert os.environ["TQ_ADDRESS"] != store.public_address
    tq.close()
    assert os.environ["TQ_ADDRESS"] == store.public_address
    store.close()


def test_an_embedded_store_listens_and_is_advertised_as_asked(monkeypatch):
    config = tq.init({"listen": "tcp://0.0.0.0:*", "advertise": "localhost"})
    address = os.environ["TQ_ADDRESS"]
    assert re.match(r"tcp://localhost:\d+#", address)
    assert config.controller.zmq_info == address
    tq.kv_put("k", "p", {"x": torch.arange(50_000)})
    with Program(
        """
        import transfer_queue as tq
        print(int(tq.kv_batch_get(["k"], "p")["x"].values().sum()))
        """
    ) as other:
        assert other.hear() == str(50_000 * 49_999 // 2)
    tq.close()
    monkeypatch.setenv("TQ_LISTEN", "tcp://127.0.0.1:*")
    monkeypatch.setenv("TQ_ADVERTISE", "127.0.0.7")
    tq.init()
    assert os.environ["TQ_ADDRESS"].startswith("tcp://127.0.0.7:")
    tq.close()
    with pytest.raises(UsageError, match=r"controller\.advertise"):
        tq.init({"advertise": "*"})


@pytest.mark.parametrize("is_connected", [True, False])
def test_in_ray_it_is_told_where_the_store_is(monkeypatch, caplog, is_connected):
    if is_connected:
        ray = types.ModuleType("ray")
        ray.is_initialized = lambda: True
        monkeypatch.setitem(sys.modules, "ray", ray)
    else:
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with caplog.at_level(logging.WARNING, "transfer_queue"):
        tq.init()
    assert f"TQ_ADDRESS={os.environ['TQ_ADDRESS']}" in caplog.text
    assert "runtime: embedded" in caplog.text
    tq.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "transfer_queue"):
        tq.init({"runtime": "embedded"})
    assert caplog.text == ""


@pytest.mark.parametrize("address", ["ipc:///tmp/tq-test-nobody-here", "tcp://127.0.0.1:1"])
def test_a_dead_address_fails_within_five_seconds_with_the_remedy(monkeypatch, address):
    monkeypatch.setenv("TQ_ADDRESS", address)
    start = time.monotonic()
    with pytest.raises(ConnectionError) as caught:
        tq.init()
    assert time.monotonic() - start < 7
    assert isinstance(caught.value, PeerError)
    assert address in str(caught.value)
    assert "TQ_ADDRESS" in caught.value.__notes__[0]
    monkeypatch.delenv("TQ_ADDRESS")
    assert tq.init() is not None


def test_the_address_of_a_closed_store_is_dead(monkeypatch):
    tq.init()
    address = os.environ["TQ_ADDRESS"]
    tq.close()
    monkeypatch.setenv("TQ_ADDRESS", address)
    with pytest.raises(ConnectionError):
        tq.init()


@pytest.mark.parametrize(
    "address", ["", "nonsense", "http://x", "tcp://", "ipc://x#zz", "tcp://h:0:1"]
)
def test_a_malformed_address_is_an_error(address):
    with pytest.raises((errors.TransferQueueError, ValueError)):
        tq.init({"runtime": "connect", "address": address})


def test_connect_without_an_address():
    with pytest.raises(UsageError, match="TQ_ADDRESS"):
        tq.init({"runtime": "connect"})


@pytest.mark.parametrize(
    ("conf", "error", "text"),
    [
        ({"backend": {"storage_backend": "Nope"}}, ConfigKeyError, "Nope"),
        ({"backend": {"storage_backend": "MooncakeStore"}}, UnsupportedError, "MooncakeStore"),
        ({"controller": {"sampler": "Nope"}}, ValueError, "Could not find sampler 'Nope'"),
        ({"controller": {"sampler": "RankAwareSampler"}}, UnsupportedError, "RankAwareSampler"),
        ({"runtime": "nope"}, UsageError, "runtime"),
        ({"runtime": "ray"}, UnsupportedError, "ray"),
        (
            {"backend": {"SimpleStorage": {"ssd_offload": {"enabled": True}}}},
            UnsupportedError,
            "SSD",
        ),
        (
            {"backend": {"SimpleStorage": {"payload_transfer": {"backend": "ucx"}}}},
            UnsupportedError,
            "ucx",
        ),
        (
            {"backend": {"SimpleStorage": {"num_data_storage_units": 0}}},
            UsageError,
            "num_data_storage_units",
        ),
        (
            {"backend": {"SimpleStorage": {"capacity_bytes": -1}}},
            UsageError,
            "capacity_bytes",
        ),
        (3, TypeError, "dict"),
    ],
    ids=repr,
)
def test_a_bad_configuration_leaves_nothing_behind(conf, error, text):
    with pytest.raises(error, match=text):
        tq.init(conf)
    assert "TQ_ADDRESS" not in os.environ
    assert tq.init() is not None


def test_a_mistyped_key_warns_with_the_nearest(caplog):
    conf = {
        "enable": True,
        "contoller": {},
        "controller": {"pollling_mode": True},
        "backend": {"SimpleStorage": {"banana": 1, "payload_transfer": {"backnd": 1}}},
    }
    with caplog.at_level(logging.WARNING, "transfer_queue"):
        config = tq.init(conf)
    text = caplog.text
    assert "'contoller'; did you mean 'controller'" in text
    assert "'controller.pollling_mode'; did you mean 'polling_mode'" in text
    assert "'backend.SimpleStorage.payload_transfer.backnd'; did you mean 'backend'" in text
    assert "'backend.SimpleStorage.banana'" in text
    assert "enable" not in text
    assert config.controller.pollling_mode is True


def test_keys_that_have_no_effect_yet_say_so(caplog):
    conf = {
        "metrics": {"enabled": True},
        "backend": {"SimpleStorage": {"total_storage_size": 8, "required_node_resource": "gpu"}},
    }
    with caplog.at_level(logging.WARNING, "transfer_queue"):
        tq.init(conf)
    for key in ("metrics.enabled", "total_storage_size", "required_node_resource"):
        assert key in caplog.text


class MySampler(tq.BaseSampler):
    pass


@pytest.mark.parametrize(
    "sampler",
    [
        "GRPOGroupNSampler",
        tq.GRPOGroupNSampler,
        tq.SequentialSampler(),
        tq.GRPOGroupNSampler(n_samples_per_prompt=2),
    ],
    ids=repr,
)
def test_a_sampler_is_a_name_a_class_or_an_instance(sampler):
    tq.init({"controller": {"sampler": sampler}})
    client = tq.get_client()
    client.put(rows(x=torch.arange(4)), partition_id="p")
    assert client.get_meta(["x"], 4, "p", task_name="t").size == 4


def test_samplers_of_ones_own_are_refused():
    for sampler in (MySampler, MySampler(), tq.BaseSampler):
        with pytest.raises(UnsupportedError, match="sampler"):
            tq.init({"controller": {"sampler": sampler}})
    with pytest.raises(UsageError, match="n_samples_per_prompt"):
        tq.GRPOGroupNSampler(0)


def test_groups_are_kept_whole():
    tq.init({"controller": {"sampler": tq.GRPOGroupNSampler(n_samples_per_prompt=2)}})
    client = tq.get_client()
    metas = [client.get_meta(["x"], 2, "p", mode="insert") for _ in range(3)]
    client.put(rows(x=torch.arange(1)), metadata=metas[0].select_samples([1]))
    client.put(rows(x=torch.arange(2)), metadata=metas[2])
    got = client.get_meta(["x"], 2, "p", task_name="t")
    assert got.global_indexes == metas[2].global_indexes
    client.put(rows(x=torch.arange(1)), metadata=metas[0].select_samples([0]))
    with pytest.raises(TimeoutError):
        client.get_meta(["x"], 4, "p", task_name="t", timeout=0.1)
    client.put(rows(x=torch.arange(2)), metadata=metas[1])
    got = client.get_meta(["x"], 4, "p", task_name="t")
    assert got.global_indexes == metas[0].global_indexes + metas[1].global_indexes
    with pytest.raises(RuntimeError):
        client.get_meta(["x"], 3, "p", task_name="t", timeout=0.1)


def test_groups_by_a_tag():
    tq.init({"controller": {"sampler": tq.GRPOGroupNSampler(2, group_by="uid")}})
    client = tq.get_client()
    tags = [{"uid": uid} for uid in "abcab"]
    tq.kv_batch_put(keys_of(5), "p", rows(x=torch.arange(5)), tags)
    got = client.get_meta(["x"], 4, "p", task_name="t")
    uids = [row["uid"] for row in got.custom_meta]
    assert sorted(uids) == ["a", "a", "b", "b"]
    assert uids[0] == uids[1]


def test_polling_mode_answers_empty_at_once():
    tq.init({"controller": {"polling_mode": True}})
    client = tq.get_client()
    start = time.monotonic()
    for fields, size in ((["x"], 1), (["x"], 0)):
        meta = client.get_meta(fields, size, "p", task_name="t")
        assert meta.size == 0
    client.put(rows(x=torch.arange(2)), partition_id="p")
    assert client.get_meta(["x"], 3, "p", task_name="t").size == 0
    assert client.get_meta(["x"], 2, "p", task_name="t").size == 2
    assert time.monotonic() - start < 2


def test_clients_that_join_know_the_stores_configuration():
    tq.init({"controller": {"polling_mode": True}, "security": {"allow_pickle": False}})
    client = tq.TransferQueueClient("second", os.environ["TQ_ADDRESS"])
    assert client.get_meta(["x"], 1, "p", task_name="t").size == 0
    with pytest.raises(errors.DeniedError):
        client.kv_put("a", "p", {"x": (1, 2)})
    client.kv_put("a", "p", {"x": [1, 2]})
    client.close()


def test_the_environment_sets_the_fetch_timeout(monkeypatch):
    monkeypatch.setenv("TQ_CONTROLLER_GET_METADATA_TIMEOUT", "0.1")
    tq.init()
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        tq.get_client().get_meta(["x"], 1, "p", task_name="t")
    assert time.monotonic() - start < 2
    tq.close()
    monkeypatch.setenv("TQ_CONTROLLER_GET_METADATA_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="TQ_CONTROLLER_GET_METADATA_TIMEOUT"):
        tq.init()
    assert "TQ_ADDRESS" not in os.environ


@pytest.mark.parametrize(("text", "rows_cnt"), [(None, 1), ("0", 0), ("3", 3)])
def test_the_environment_sets_the_rows_of_a_new_partition(monkeypatch, text, rows_cnt):
    if text is None:
        monkeypatch.delenv("TQ_PRE_ALLOC_SAMPLE_NUM", raising=False)
    else:
        monkeypatch.setenv("TQ_PRE_ALLOC_SAMPLE_NUM", text)
    tq.init()
    client = tq.get_client()
    client.get_meta(["x"], 0, "p", mode="insert")
    indexes, status = client.get_consumption_status("t", "p")
    assert len(indexes) == rows_cnt
    assert status.tolist() == [0] * rows_cnt
    # Reserved rows are handed out first.
    meta = client.get_meta(["x"], 4, "p", mode="insert")
    assert meta.global_indexes[:rows_cnt] == indexes.tolist()
    assert len(client.get_consumption_status("t", "p")[0]) == max(4, rows_cnt)


def test_results_outlive_the_store():
    tq.init()
    given = torch.randn(8, 30_000)
    tq.kv_batch_put(keys_of(8), "p", rows(x=given, n=ragged(*range(8))))
    data = tq.kv_batch_get(keys_of(8), "p")
    tq.kv_clear(keys_of(8), "p")
    tq.close()
    assert torch.equal(data["x"].values(), given.reshape(-1))
    assert data["n"].values().numel() == sum(range(8))


def test_a_client_of_a_closed_store_fails_with_the_reason():
    tq.init()
    client = tq.TransferQueueClient("second")
    assert client.get_partition_list() == []
    tq.close()
    start = time.monotonic()
    with pytest.raises(errors.TransferQueueError) as caught:
        client.get_partition_list()
    assert time.monotonic() - start < 7
    assert str(caught.value)
    client.close()


SMALL = {"backend": {"SimpleStorage": {"num_data_storage_units": 1, "capacity_bytes": 64 << 20}}}


def test_a_value_larger_than_the_store_is_refused_at_once():
    tq.init(SMALL)
    with pytest.raises(UsageError) as caught:
        tq.kv_batch_put(keys_of(2), "p", rows(x=torch.zeros(2, 32 << 20)))
    assert caught.value.status == "E_TOO_LARGE"
    assert tq.kv_list().get("p", {}) == {}
    tq.kv_put("a", "p", {"x": torch.zeros(1 << 20)})
    assert tq.kv_batch_get("a", "p")["x"].values().numel() == 1 << 20


def test_a_full_store_waits_and_then_refuses_with_the_figures():
    tq.init(SMALL)
    session = Session(os.environ["TQ_ADDRESS"], space_timeout_ms=500)
    client = tq.TransferQueueClient._of_session("impatient", session)
    value = torch.zeros(5 << 20)
    for i in range(2):
        tq.kv_put(f"k{i}", "p", {"x": value})
    start = time.monotonic()
    with pytest.raises(RetryError) as caught:
        client.kv_put("k2", "p", {"x": value})
    assert 0.4 < time.monotonic() - start < 5
    assert caught.value.status == "E_FULL"
    assert re.search(r"\d", str(caught.value))
    assert list(tq.kv_list("p")["p"]) == ["k0", "k1"]
    client.close()


def test_a_put_that_waits_for_space_goes_on_when_there_is_some():
    tq.init(SMALL)
    value = torch.ones(5 << 20)
    for i in range(2):
        tq.kv_put(f"k{i}", "p", {"x": value})
    done = []
    waiting = threading.Thread(target=lambda: done.append(tq.kv_put("k2", "p", {"x": value})))
    waiting.start()
    time.sleep(0.3)
    assert done == []
    tq.kv_clear("k0", "p")
    waiting.join(10)
    assert done[0].keys == ["k2"]
    assert float(tq.kv_batch_get("k2", "p")["x"].values().sum()) == 5 << 20


# ---- errors and versions ---------------------------------------------------------------------


def test_the_version_satisfies_programs_that_ask_for_transfer_queue():
    assert Version(tq.__version__) >= Version("0.1.9")
    assert Version(tq.__version__).public == "0.1.11"
    assert _core.VERSION in tq.__version__


@pytest.mark.parametrize("status", sorted(_core.STATUSES))
def test_every_status_has_an_exception(status):
    number, status_class = _core.STATUSES[status]
    if status_class == "OK":
        return
    error = errors.from_status(number, "what failed")
    assert error.status == status
    assert isinstance(error, RuntimeError)
    assert str(error) == "what failed"
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied), copied.status) == (type(error), "what failed", status)


@pytest.mark.parametrize(
    ("status", "bases"),
    [
        ("E_INVALID", [ValueError, errors.UsageError]),
        ("E_ROW_GONE", [KeyError, tq.StorageKeyNotFoundError]),
        ("E_UNSUPPORTED", [NotImplementedError, errors.UsageError]),
        ("E_NOT_READY", [TimeoutError, errors.RetryError]),
        ("E_TIMEOUT", [TimeoutError, errors.RetryError]),
        ("E_FULL", [errors.RetryError]),
        ("E_UNREACHABLE", [ConnectionError, errors.PeerError]),
        ("E_STALE_STORE", [ConnectionError, errors.StaleStoreError]),
        ("E_NO_MEMORY", [MemoryError, errors.LocalError]),
        ("E_ADDRESS", [OSError, errors.LocalError]),
        ("E_OUTCOME_UNKNOWN", [errors.OutcomeUnknownError]),
        ("E_STORE_GONE", [ConnectionError, errors.FatalError]),
        ("E_BUG", [errors.InternalError]),
    ],
)
def test_exceptions_have_the_built_in_base_that_one_would_catch(status, bases):
    error = errors.from_status(_core.STATUSES[status][0], "text")
    for base in bases:
        assert isinstance(error, base)


def test_an_unknown_status_is_a_bug():
    assert isinstance(errors.from_status(9999, "text"), errors.InternalError)
