// Runs the workloads with RMM's resources: pool (initially small or large), arena, cuda_async.
#include "workload.hpp"

#include <memory>

#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

template <class Resource>
void use(Peer &peer, std::shared_ptr<Resource> resource) {
  peer.alloc = [resource](size_t bytes, cudaStream_t stream) {
    return resource->allocate(cuda::stream_ref{stream}, bytes, 256);
  };
  peer.free = [resource](void *address, size_t bytes, cudaStream_t stream) {
    resource->deallocate(cuda::stream_ref{stream}, address, bytes, 256);
  };
}

int main(int argc, char **argv) {
  const size_t GIB = size_t(1) << 30;
  Peer peer;
  peer.name = argc > 1 ? argv[1] : "";
  context_is_there();
  rmm::mr::cuda_memory_resource upstream;
  if (peer.name == "pool" || peer.name == "poolbig") {
    size_t first = peer.name == "pool" ? size_t(1) << 20 : 64 * GIB;
    auto pool = std::make_shared<rmm::mr::pool_memory_resource>(upstream, first, 120 * GIB);
    use(peer, pool);
    peer.reserved_peak = [pool] { return pool->pool_size(); };
  } else if (peer.name == "arena") {
    use(peer, std::make_shared<rmm::mr::arena_memory_resource>(upstream, 64 * GIB));
  } else if (peer.name == "async") {
    use(peer, std::make_shared<rmm::mr::cuda_async_memory_resource>());
  } else {
    return no_such_peer("pool, poolbig, arena, async");
  }
  return drive(peer, argc, argv);
}
