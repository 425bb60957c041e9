"""Gives each Dask worker a heap on an emulated device. Workers are processes or threads."""

import asyncio
import gc
import importlib
import os
import pickle
import signal
import time
import types

import numpy as np
import pytest

import gpuheap
from support import needs_driver, run_program

distributed = pytest.importorskip("distributed", reason="distributed is not installed")

from distributed import Client, LocalCluster  # noqa: E402

import gpuheap.dask  # noqa: E402
from gpuheap import _dask_data  # noqa: E402
from gpuheap._dask_data import Sent  # noqa: E402

MIB = 1 << 20
LIMIT = 8 * MIB
ROWS = 100_000
#: Number of parts of the table. Their total size is ten times the limit of a worker.
PARTS = 10 * LIMIT // (2 * 8 * ROWS) + 1
KEYS = 7
#: Seconds until a wait fails. On a busy machine a worker needs half a minute to start.
LONGEST = 120


def columns(number):
    """Returns the keys and values of one part of the table, on the host."""
    random = np.random.default_rng(number)
    return random.integers(0, KEYS, ROWS), random.integers(0, 1000, ROWS)


def upload(number):
    heap = gpuheap.default_heap()
    return [heap.array(column) for column in columns(number)]


def summed(part):
    keys, values = (column.to_numpy() for column in part)
    return np.bincount(keys, values, KEYS)


runs = []


def too_large():
    runs.append(1)
    gpuheap.default_heap().alloc(LIMIT + 1)


def peak():
    heap = gpuheap.default_heap()
    return heap.stats()["reserved_peak"], heap.device.uuid, os.getpid()


def limit():
    return gpuheap.default_heap().limits[0]


@pytest.fixture(scope="module")
def expected():
    # Workers import this module, and need no pandas, so import pandas only here.
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    keys, values = map(np.concatenate, zip(*map(columns, range(PARTS))))
    return pandas.Series(values).groupby(keys).sum().to_numpy()


@pytest.fixture(scope="module")
def client():
    """A client of four workers. Each worker is a process with its own emulated GPU."""
    needs_driver()
    devices = {"GPUHEAP_EMULATED_DEVICE": ",".join(["1GiB"] * 4)}
    cluster = LocalCluster(
        n_workers=4,
        threads_per_worker=1,
        memory_limit=0,
        dashboard_address=None,
        data=gpuheap.dask.Data,
        env=devices,
    )
    with cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def threads():
    """A client and its only worker. The worker is a thread of this process."""
    cluster = LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        memory_limit=0,
        dashboard_address=None,
        data=gpuheap.dask.Data,
    )
    with cluster, Client(cluster) as client:
        yield client, cluster.workers[0]
    assert gpuheap.installed() is None


def plugin(**arguments):
    return gpuheap.dask.Plugin(LIMIT, [], **{"device": "emulated:1GiB"} | arguments)


def test_sums_equal_those_of_pandas(client, expected, tmp_path):
    client.register_plugin(gpuheap.dask.Plugin(LIMIT, [], log=tmp_path))
    uploaded = client.map(upload, range(PARTS))
    got = sum(client.gather(client.map(summed, uploaded)))
    assert (got == expected).all()
    peaks = client.run(peak)
    assert all(reserved <= LIMIT for reserved, *_ in peaks.values()), peaks
    assert len({uuid for _, uuid, _ in peaks.values()}) == 4, peaks
    workers = client.scheduler_info(n_workers=-1)["workers"]
    assert workers.keys() == peaks.keys()
    metrics = [worker["metrics"] for worker in workers.values()]
    assert all(one["gpuheap_limit"] == LIMIT for one in metrics), metrics
    statuses = client.run(gpuheap.status)
    assert all(status.hard_limit == LIMIT for status in statuses.values())
    client.unregister_worker_plugin("gpuheap")
    assert len(list(tmp_path.glob("*.gph"))) == 4
    # The results are on the host now.
    assert sum(client.gather([client.submit(summed, uploaded[0])])[0]) > 0


def test_killed_worker_changes_no_sum(client, expected):
    client.register_plugin(gpuheap.dask.Plugin(LIMIT, []))
    results = client.map(summed, client.map(upload, range(PARTS)))
    distributed.wait(results[: PARTS // 4], timeout=LONGEST)
    killed, pid = next(iter(client.run(os.getpid).items()))
    os.kill(pid, signal.SIGKILL)
    distributed.wait(results, timeout=LONGEST)
    assert (sum(client.gather(results)) == expected).all()
    deadline = time.monotonic() + LONGEST
    while killed in client.scheduler_info(n_workers=-1)["workers"]:
        assert time.monotonic() < deadline, "the scheduler still lists the killed worker"
        time.sleep(0.1)
    client.wait_for_workers(4, timeout=LONGEST)
    workers = client.scheduler_info(n_workers=-1)["workers"]
    limits = [client.submit(limit, workers=[one], pure=False) for one in workers]
    distributed.wait(limits, timeout=LONGEST)
    assert client.gather(limits) == [LIMIT] * 4
    client.unregister_worker_plugin("gpuheap")


def test_task_is_retried_after_results_move(threads):
    client, worker = threads
    client.register_plugin(plugin())
    kept = client.map(upload, range(3))
    distributed.wait(kept)
    assert len(worker.data.device) == 3

    def large():
        return gpuheap.default_heap().zeros(6 * MIB // 8).nbytes

    assert client.submit(large).result() == 6 * MIB
    assert len(worker.data.device) < 3 and worker.data.moved > 0
    assert worker.metrics["gpuheap_retries"](worker) == 1
    assert [array.device for array in client.gather(kept)[2]] == ["emulated:1GiB"] * 2


def test_task_fails_after_one_retry(threads):
    client, _ = threads
    client.register_plugin(plugin())
    runs.clear()
    with pytest.raises(gpuheap.OutOfMemory) as caught:
        client.submit(too_large, pure=False).result()
    assert len(runs) == 2
    assert (caught.value.requested, caught.value.limit) == (LIMIT + 1, LIMIT)


def test_second_plugin_replaces_the_first(threads):
    client, worker = threads
    client.register_plugin(plugin())
    kept = client.submit(upload, 0)
    distributed.wait(kept)
    first = gpuheap.default_heap()
    client.register_plugin(gpuheap.dask.Plugin("16MiB", [], device="emulated:1GiB"))
    assert first.stats()["reserved"] == 0
    assert gpuheap.default_heap().limits[0] == 16 * MIB
    assert client.submit(summed, kept).result().sum() == columns(0)[1].sum()
    client.unregister_worker_plugin("gpuheap")
    assert not [name for name in worker.metrics if name.startswith("gpuheap")]


def test_worker_without_gpu_is_named(threads, monkeypatch):
    client, worker = threads
    monkeypatch.setattr("gpuheap._gpuheap.devices", lambda: ["emulated: an H200"])
    with pytest.raises(gpuheap.DriverError, match=f"{worker.address} has no GPU"):
        client.register_plugin(gpuheap.dask.Plugin())


def test_old_release_is_refused(monkeypatch):
    monkeypatch.setattr(distributed, "__version__", "2022.1.0")
    with pytest.raises(ImportError, match="2022.1.0 is installed; run pip install"):
        importlib.reload(gpuheap.dask)


@pytest.fixture
def data(tmp_path):
    """A `Data` with device and host limits that are too small for all results of a test."""
    before = gpuheap.set_default_heap(gpuheap.Heap("emulated:1GiB", limit=LIMIT))
    yield gpuheap.dask.Data(str(tmp_path), host_limit=4 * MIB)
    gpuheap.set_default_heap(before)


def fill(data):
    for number in range(12):
        data[number] = upload(number)


def check(data):
    assert sorted(data) == list(range(12)) and len(data) == 12
    for number in range(12):
        keys, values = data[number]
        assert (keys.to_numpy() == columns(number)[0]).all()
        assert (values.to_numpy() == columns(number)[1]).all()


def test_results_move_to_disk(data):
    fill(data)
    assert gpuheap.default_heap().stats()["live"] <= 0.8 * LIMIT
    assert data.host.disk and data.spilled_total.disk > 0
    check(data)
    data["host"] = "text"
    assert data["host"] == "text" and "host" not in data.device
    data.clear()
    gpuheap.flush()
    assert gpuheap.default_heap().stats()["reserved"] == 0


def test_full_disk_keeps_results_on_host(data, monkeypatch, caplog):
    def full(self, key, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zict.File.__setitem__", full)
    fill(data)
    assert "No space left on device" in caplog.text
    assert not data.host.disk
    check(data)


class Holder:
    """A result that Dask's own serializer refuses."""

    def __init__(self, array, is_movable):
        self.array, self.is_movable = array, is_movable

    def __reduce__(self):
        if not self.is_movable:
            raise OSError("no bytes of this")
        return Holder, (self.array, True)


@distributed.protocol.dask_serialize.register(Holder)
def refuse(value):
    raise RuntimeError("only on the host")


def test_results_move_around_unmovable_one(data, tmp_path, caplog):
    heap, data = gpuheap.default_heap(), gpuheap.dask.Data(str(tmp_path), device_limit="40%")
    data["first"] = Holder(heap.zeros(1000), is_movable=False)
    data["second"] = Holder(heap.array([1, 2]), is_movable=True)
    fill(data)
    gc.collect()
    assert heap.stats()["live"] <= 0.4 * LIMIT
    assert "first" in data.device and "second" not in data.device
    assert data["second"].array.to_list() == [1, 2]
    assert caplog.text.count("cannot be moved from the device") == 1


def test_failed_packing_ends_its_transfer(data):
    heap = gpuheap.default_heap()
    data["held"] = Holder(heap.zeros(3 * MIB // 4), is_movable=False)
    send = sender(data, "tcp://127.0.0.1:1")
    assert send("held") == [data["held"]]


def sender(data, receiver):
    """Returns a function that sends a result and counts begun transfers, as a worker does."""

    async def get_data(comm, keys, **_named):
        send.running += 1
        found = [data[key] for key in keys if key in data]
        send.running -= 1
        return found

    def send(key):
        try:
            return asyncio.run(handler(types.SimpleNamespace(peer_address=receiver), [key]))
        finally:
            assert send.running == 0

    handler = gpuheap.dask._packing(data, get_data)
    send.running = 0
    return send


def test_failed_reading_ends_its_transfer(data, monkeypatch):
    heap = gpuheap.default_heap()
    data["moved"] = heap.zeros(3 * MIB // 8)
    data.leave_device()
    assert [type(value) for value in sender(data, "tcp://127.0.0.1:1")("moved")] == [Sent]
    with heap.alloc(LIMIT - MIB), pytest.raises(gpuheap.OutOfMemory):
        sender(data, "inproc://here/1")("moved")
    assert sender(data, "inproc://here/1")("moved")[0].nbytes == 3 * MIB

    def fail(key):
        raise OSError("the disk is lost")

    data.leave_device()
    monkeypatch.setattr(type(data.host), "__getitem__", lambda _, key: fail(key))
    [unsendable] = sender(data, "tcp://127.0.0.1:1")("moved")
    with pytest.raises(OSError, match="the disk is lost"):
        pickle.dumps(unsendable)
    with pytest.raises(OSError, match="the disk is lost"):
        sender(data, "inproc://here/1")("moved")


def test_receiver_without_data_gets_the_value():
    program = """
import pickle, tempfile
import gpuheap.dask
from gpuheap._dask_data import Packed
heap = gpuheap.Heap("emulated:1GiB")
gpuheap.set_default_heap(heap)
sent = pickle.dumps(Packed.of(heap.array([1, 2])), protocol=5)
assert pickle.loads(sent).to_list() == [1, 2]
data = gpuheap.dask.Data(tempfile.mkdtemp())
assert type(pickle.loads(sent)) is Packed
"""
    run_program(program)


def test_errors_of_other_libraries_are_retried(threads):
    client, _ = threads
    client.register_plugin(plugin())
    runs.clear()

    def fails_once():
        runs.append(1)
        if len(runs) == 1:
            raise MemoryError("std::bad_alloc")
        return len(runs)

    assert client.submit(fails_once, pure=False).result() == 2


@pytest.mark.parametrize(
    "name, device",
    [(1, "cuda:1"), (3, "cuda:1"), ("gpu-1", "cuda:1"), ("5", "cuda:1"), ("tcp://a:41", "cuda:0")],
)
def test_number_of_name_chooses_device(monkeypatch, caplog, name, device):
    monkeypatch.setattr("gpuheap._gpuheap.devices", lambda: ["cuda:0: one", "cuda:1: two"])
    worker = types.SimpleNamespace(name=name, address="tcp://a:41")
    assert gpuheap.dask._device_of(worker) == device
    assert ("its name has no number" in caplog.text) == (device == "cuda:0")


def test_device_bytes_finds_nested_arrays(heap):
    with heap.zeros(10) as array:
        assert _dask_data.device_bytes({"a": [array], "b": ("text", 1)}) == 80
    assert _dask_data.device_bytes([np.zeros(10), "text"]) == 0
    with gpuheap.Table({"a": heap.zeros(10), "b": heap.zeros(10)}) as table:
        assert _dask_data.device_bytes({"a": table}) == 160
