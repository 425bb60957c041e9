// Runs the workloads through gpuheap's C interface. The first argument is the name of the pool.
#include "workload.hpp"

#include "gpuheap.h"

static void check(gpuheap_status status) {
  if (status != GPUHEAP_STATUS_OK) {
    fprintf(stderr, "%s\n", gpuheap_last_error());
    exit(3);
  }
}

int main(int argc, char **argv) {
  if (argc < 2) return no_such_peer("gpuheap's pools");
  context_is_there();
  gpuheap_options options{};
  options.size = sizeof options;
  options.pool = argv[1];
  options.without_environment = 1;
  gpuheap_heap *heap = nullptr;
  check(gpuheap_open("cuda:0", &options, &heap));

  Peer peer;
  peer.name = argv[1];
  peer.alloc = [heap](size_t bytes, cudaStream_t stream) {
    void *address;
    check(gpuheap_allocate(heap, bytes, stream, &address));
    return address;
  };
  peer.free = [heap](void *address, size_t, cudaStream_t stream) {
    check(gpuheap_free_on(heap, address, stream));
  };
  peer.reserved_peak = [heap] {
    gpuheap_statistics statistics{};
    statistics.size = sizeof statistics;
    check(gpuheap_get_statistics(heap, &statistics));
    return size_t(statistics.reserved_peak);
  };
  peer.reclaim = [heap] { check(gpuheap_reclaim_all(heap, nullptr)); };
  peer.stream_ends = [heap](cudaStream_t stream) { check(gpuheap_stream_ended(heap, stream)); };
  int code = drive(peer, argc, argv);
  check(gpuheap_close(heap));
  return code;
}
