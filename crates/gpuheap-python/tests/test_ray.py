"""Tests that a Ray worker's heap has the share of an emulated GPU that Ray assigns."""

import types

import numpy as np
import pytest

import gpuheap
from support import needs_driver

ray = pytest.importorskip("ray", reason="ray is not installed")

import gpuheap.ray  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    """A node of two emulated GPUs of 64 MiB."""
    needs_driver()
    environment = {
        "worker_process_setup_hook": gpuheap.ray.setup,
        "env_vars": {"GPUHEAP_EMULATED_DEVICE": "64MiB,64MiB"},
    }
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, runtime_env=environment)
    yield
    ray.shutdown()


def limit():
    heap = gpuheap.default_heap()
    return heap.limits[0], heap.device.total_memory


def test_share_becomes_limit(cluster):
    # A limit is the share less 512 MiB for CUDA's context, but at least half of the share.
    quarter, half = (ray.remote(num_gpus=share)(limit) for share in (0.25, 0.5))
    assert ray.get([quarter.remote(), half.remote()]) == [
        (8 << 20, 64 << 20),
        (16 << 20, 64 << 20),
    ]


def test_shares_leave_room_for_contexts():
    device = types.SimpleNamespace(total_memory=24 << 30)
    assert 4 * (gpuheap.ray._limit(device, 0.25) + gpuheap.ray.CONTEXT) == 24 << 30
    assert gpuheap.ray._limit(device, 2) == (24 << 30) - gpuheap.ray.CONTEXT


def test_arrays_are_arguments_and_results(cluster):
    @ray.remote(num_gpus=0.25)
    def made(numbers):
        return gpuheap.default_heap().array(numbers)

    @ray.remote(num_gpus=0.25)
    def doubled(array):
        return (array * 2).to_numpy(), array.device

    numbers = np.arange(100_000)
    got, device = ray.get(doubled.remote(made.remote(ray.put(numbers))))
    assert (got == numbers * 2).all() and device == "cuda:0"


def test_out_of_memory_keeps_its_figures(cluster):
    @ray.remote(num_gpus=0.25)
    def too_large():
        return gpuheap.default_heap().alloc(20 << 20).nbytes

    with pytest.raises(gpuheap.OutOfMemory, match="20 MiB requested") as caught:
        ray.get(too_large.remote())
    assert caught.value.figures["requested"] == 20 << 20
    assert (caught.value.requested, caught.value.limit) == (20 << 20, 8 << 20)


def test_task_without_gpu_is_refused(cluster):
    with pytest.raises(gpuheap.BadInput, match="declare one, such as"):
        ray.get(ray.remote(num_gpus=0)(limit).remote())


def test_libraries_are_served_after_arguments(cluster):
    @ray.remote(num_gpus=0.25)
    def served(array):
        before = list(gpuheap.installed().libraries)
        return before, list(gpuheap.ray.install(libraries=["pycuda"]).libraries), array.nbytes

    heap = gpuheap.Heap("emulated:1GiB")
    assert ray.get(served.remote(heap.array([1, 2]))) == ([], ["pycuda"], 16)


def test_other_settings_are_refused(cluster):
    @ray.remote(num_gpus=0.25)
    def served():
        gpuheap.default_heap()
        gpuheap.ray.install([], track="lines")

    with pytest.raises(gpuheap.BadInput, match="settings {}, and install.. got {'track': 'lines'}"):
        ray.get(served.remote())


def test_actor_keeps_its_heap(cluster):
    @ray.remote(num_gpus=1)
    class Holder:
        def __init__(self):
            self.installed = gpuheap.ray.install(libraries=[])
            self.array = self.installed.heap.zeros(1000)

        def figures(self):
            assert gpuheap.ray.install(libraries=[]) is self.installed
            return self.installed.heap.limits[0], gpuheap.status().allocated

    actor = Holder.remote()
    assert ray.get(actor.figures.remote()) == (32 << 20, 8192)
    ray.kill(actor)
