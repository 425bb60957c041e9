"""How do I fail a test that needs too much GPU memory, or that leaves some behind?

    pytest --gpuheap --gpuheap-device emulated:1GiB     # no GPU needed
    pytest --gpuheap -n 4                               # with pytest-xdist, on the GPU

Two of these tests fail on purpose: see their reports, and the summary of peaks at the end.
"""

import pytest

MIB = 1 << 20
CACHE = []


def step(heap, batch):
    """Runs a training step. The activations live as long as the step. Returns the gradient."""
    activations = [heap.alloc(MIB) for _ in range(batch)]
    gradient = heap.alloc(2 * MIB)
    del activations
    return gradient


@pytest.fixture
def model(gpu_heap):
    """Weights. Memory that a fixture holds is not counted against the test."""
    return gpu_heap.alloc(64 * MIB)


@pytest.mark.gpu_limit("20 MiB")
@pytest.mark.gpu_limit_leaks(0)
def test_a_step_fits_its_budget(gpu_heap, model):
    assert step(gpu_heap, batch=16).nbytes == 2 * MIB


@pytest.mark.gpu_limit("20 MiB")
def test_a_larger_batch_does_not(gpu_heap, model):
    step(gpu_heap, batch=32)


@pytest.mark.gpu_limit_leaks("1 MiB")
def test_a_cache_keeps_gradients(gpu_heap, model):
    CACHE.append(step(gpu_heap, batch=4))
