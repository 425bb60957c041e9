// Runs the workloads with PyTorch's allocator. PYTORCH_CUDA_ALLOC_CONF chooses its mode.
#include "workload.hpp"

#include <c10/cuda/CUDACachingAllocator.h>

int main(int argc, char **argv) {
  namespace torch_allocator = c10::cuda::CUDACachingAllocator;
  Peer peer;
  peer.name = argc > 1 ? argv[1] : "";
  if (peer.name != "torch") return no_such_peer("torch");
  context_is_there();
  torch_allocator::get()->init(1);
  peer.alloc = [](size_t bytes, cudaStream_t stream) {
    return torch_allocator::get()->raw_alloc_with_stream(bytes, stream);
  };
  peer.free = [](void *address, size_t, cudaStream_t) {
    torch_allocator::get()->raw_delete(address);
  };
  peer.reserved_peak = [] {
    return size_t(torch_allocator::get()->getDeviceStats(0).reserved_bytes[0].peak);
  };
  peer.reclaim = [] { torch_allocator::get()->emptyCache(); };
  return drive(peer, argc, argv);
}
