// The work that every allocator is given: hot pairs, random sizes, threads, replayed traces. Host code
// only: no kernels run, so events are always ready and what is timed is the allocator.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

// An allocator. It ends the program if it cannot do what it is asked.
struct Peer {
  std::string name;
  std::function<void *(size_t bytes, cudaStream_t)> alloc;
  std::function<void(void *, size_t bytes, cudaStream_t)> free;
  // Bytes held from the driver, the high-water mark; 0 where it does not say.
  std::function<size_t()> reserved_peak = [] { return size_t(0); };
  // A stream is about to be destroyed.
  std::function<void(cudaStream_t)> stream_ends = [](cudaStream_t) {};
  // One that is slow is given a part of the work.
  int scale = 1;
};

#define CHECK(call)                                                      \
  do {                                                                   \
    cudaError_t code_ = (call);                                          \
    if (code_ != cudaSuccess) {                                          \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code_));     \
      exit(3);                                                           \
    }                                                                    \
  } while (0)

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline cudaStream_t make_stream() {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

inline void end_stream(Peer &peer, cudaStream_t stream) {
  peer.stream_ends(stream);
  CHECK(cudaStreamDestroy(stream));
}

// Pairs of one size, each of which the cache serves.
inline void hot(Peer &peer, size_t bytes) {
  const int pairs = 100000 / peer.scale;
  auto run = [&](int n) {
    for (int i = 0; i < n; i++) peer.free(peer.alloc(bytes, 0), bytes, 0);
  };
  run(100);
  std::vector<double> times;
  for (int repeat = 0; repeat < 5; repeat++) {
    auto start = Clock::now();
    run(pairs);
    times.push_back(seconds_since(start) / pairs * 1e9);
  }
  printf("RESULT peer=%s work=hot bytes=%zu ns=%.1f\n", peer.name.c_str(), bytes, median(times));
}

// Log-uniform sizes of 256 B to 64 MiB, at most 8 GiB live, allocated or freed by a coin.
inline void random_sizes(Peer &peer) {
  const int operations = 200000 / peer.scale;
  const size_t most = size_t(8) << 30;
  std::mt19937_64 generator(1234);
  std::uniform_real_distribution<double> exponent(8.0, 26.0), coin(0, 1);
  struct Live {
    void *address;
    size_t bytes;
  };
  std::vector<Live> live;
  size_t bytes = 0, peak = 0;
  std::vector<double> times;
  for (int repeat = 0; repeat < 3; repeat++) {
    auto start = Clock::now();
    for (int i = 0; i < operations; i++) {
      size_t size = size_t(std::exp2(exponent(generator)));
      if (live.empty() || (bytes + size <= most && coin(generator) < 0.52)) {
        live.push_back({peer.alloc(size, 0), size});
        bytes += size;
        peak = std::max(peak, bytes);
      } else {
        size_t at = size_t(coin(generator) * live.size());
        std::swap(live[at], live.back());
        peer.free(live.back().address, live.back().bytes, 0);
        bytes -= live.back().bytes;
        live.pop_back();
      }
    }
    times.push_back(seconds_since(start) / operations * 1e9);
  }
  for (auto &one : live) peer.free(one.address, one.bytes, 0);
  printf("RESULT peer=%s work=random ns=%.1f live_peak=%zu reserved_peak=%zu\n", peer.name.c_str(),
         median(times), peak, peer.reserved_peak());
}

// Threads with a stream each, sixteen blocks of 256 B to 512 KiB live in each.
inline void threads(Peer &peer, int count) {
  const int pairs = 100000 / peer.scale;
  std::vector<cudaStream_t> streams(count);
  for (auto &stream : streams) stream = make_stream();
  auto body = [&](int index, int n) {
    CHECK(cudaSetDevice(0));
    std::mt19937_64 generator(index);
    void *ring[16] = {};
    size_t sizes[16] = {};
    for (int i = 0; i < n; i++) {
      int at = i % 16;
      if (ring[at]) peer.free(ring[at], sizes[at], streams[index]);
      sizes[at] = size_t(256) << (generator() % 12);
      ring[at] = peer.alloc(sizes[at], streams[index]);
    }
    for (int at = 0; at < 16; at++)
      if (ring[at]) peer.free(ring[at], sizes[at], streams[index]);
  };
  for (int index = 0; index < count; index++) body(index, 200);
  std::vector<double> rates;
  for (int repeat = 0; repeat < 3; repeat++) {
    auto start = Clock::now();
    std::vector<std::thread> running;
    for (int index = 0; index < count; index++) running.emplace_back(body, index, pairs);
    for (auto &thread : running) thread.join();
    rates.push_back(count * double(pairs) / seconds_since(start) / 1e6);
  }
  printf("RESULT peer=%s work=threads threads=%d mpairs=%.3f\n", peer.name.c_str(), count,
         median(rates));
  for (auto stream : streams) end_stream(peer, stream);
}

struct Event {
  bool is_alloc;
  uint32_t id;
  size_t bytes;
  uint32_t stream;
};

// The rows that simplify_trace.py writes.
inline std::vector<Event> load(const std::string &file) {
  std::vector<Event> events;
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    char operation;
    unsigned id, stream;
    size_t bytes;
    if (sscanf(line.c_str(), "%c,%u,%zu,%u", &operation, &id, &bytes, &stream) == 4)
      events.push_back({operation == 'a', id, std::max<size_t>(bytes, 1), stream});
  }
  if (events.empty()) {
    fprintf(stderr, "%s has no events\n", file.c_str());
    exit(3);
  }
  return events;
}

// A trace on the streams that it has: once from nothing, then with the cache that this left.
inline void replay(Peer &peer, const std::string &file) {
  auto events = load(file);
  uint32_t last_id = 0, last_stream = 0;
  for (auto &event : events) {
    last_id = std::max(last_id, event.id);
    last_stream = std::max(last_stream, event.stream);
  }
  std::vector<std::pair<void *, size_t>> blocks(last_id + 1, {nullptr, 0});
  // The trace's first stream is the default one.
  std::vector<cudaStream_t> streams(last_stream + 1, nullptr);
  for (uint32_t at = 1; at <= last_stream; at++) streams[at] = make_stream();
  size_t live = 0, peak = 0;
  auto pass = [&] {
    auto start = Clock::now();
    for (auto &event : events) {
      auto &block = blocks[event.id];
      if (event.is_alloc) {
        block = {peer.alloc(event.bytes, streams[event.stream]), event.bytes};
        live += event.bytes;
        peak = std::max(peak, live);
      } else if (block.first) {
        peer.free(block.first, block.second, streams[event.stream]);
        live -= block.second;
        block.first = nullptr;
      }
    }
    double nanoseconds = seconds_since(start) / events.size() * 1e9;
    for (auto &block : blocks) {
      if (!block.first) continue;
      peer.free(block.first, block.second, 0);
      live -= block.second;
      block.first = nullptr;
    }
    return nanoseconds;
  };
  double cold = pass();
  double warm = median({pass(), pass(), pass()});
  printf("RESULT peer=%s work=replay trace=%s cold_ns=%.1f ns=%.1f live_peak=%zu reserved_peak=%zu\n",
         peer.name.c_str(), file.substr(file.rfind('/') + 1).c_str(), cold, warm, peak,
         peer.reserved_peak());
  for (uint32_t at = 1; at <= last_stream; at++) end_stream(peer, streams[at]);
}

// argv: PROGRAM PEER WORK..., where a work is hot, random, threads or replay:FILE.
inline int drive(Peer &peer, int argc, char **argv) {
  for (int at = 2; at < argc; at++) {
    std::string work = argv[at];
    if (work == "hot") {
      for (int shift : {10, 20, 26}) hot(peer, size_t(1) << shift);
    } else if (work == "random") {
      random_sizes(peer);
    } else if (work == "threads") {
      for (int count : {1, 2, 4, 8, 16}) threads(peer, count);
    } else if (work.rfind("replay:", 0) == 0) {
      replay(peer, work.substr(7));
    } else {
      fprintf(stderr, "'%s' is no work; it is hot, random, threads or replay:FILE\n", work.c_str());
      return 2;
    }
    fflush(stdout);
  }
  return 0;
}

// What a program says that does not know its first argument.
inline int no_such_peer(const char *peers) {
  fprintf(stderr, "usage: PROGRAM PEER WORK..., with a peer of %s\n", peers);
  return 2;
}
