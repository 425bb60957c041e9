// Runs the workloads with cudaMalloc and cudaMallocAsync. The pool keeps all its memory.
#include "workload.hpp"

int main(int argc, char **argv) {
  Peer peer;
  peer.name = argc > 1 ? argv[1] : "";
  context_is_there();
  if (peer.name == "cudaMalloc") {
    peer.alloc = [](size_t bytes, cudaStream_t) {
      void *address;
      CHECK(cudaMalloc(&address, bytes));
      return address;
    };
    peer.free = [](void *address, size_t, cudaStream_t) { CHECK(cudaFree(address)); };
    peer.scale = 100;
  } else if (peer.name == "cudaMallocAsync") {
    cudaMemPool_t pool;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    uint64_t keep = UINT64_MAX;
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    peer.alloc = [](size_t bytes, cudaStream_t stream) {
      void *address;
      CHECK(cudaMallocAsync(&address, bytes, stream));
      return address;
    };
    peer.free = [](void *address, size_t, cudaStream_t stream) {
      CHECK(cudaFreeAsync(address, stream));
    };
    peer.reserved_peak = [pool] {
      uint64_t bytes = 0;
      CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &bytes));
      return size_t(bytes);
    };
    peer.reclaim = [pool] {
      CHECK(cudaDeviceSynchronize());
      CHECK(cudaMemPoolTrimTo(pool, 0));
    };
  } else {
    return no_such_peer("cudaMalloc, cudaMallocAsync");
  }
  return drive(peer, argc, argv);
}
