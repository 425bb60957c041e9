// Workloads for every allocator. Host code only: no kernels run, so events are always ready and the
// allocator alone is timed. gpuheap/src has these workloads in Rust: change both.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

// An allocator that the workloads compare with others. A call that fails ends the program.
struct Peer {
  std::string name;
  std::function<void *(size_t bytes, cudaStream_t)> alloc;
  std::function<void(void *, size_t bytes, cudaStream_t)> free;
  // High-water mark of the bytes taken from the driver; 0 if the allocator does not report it.
  std::function<size_t()> reserved_peak = [] { return size_t(0); };
  // Gives all cached memory back to the driver; empty if the allocator has no such call.
  std::function<void()> reclaim;
  // Announces that a stream is about to be destroyed.
  std::function<void(cudaStream_t)> stream_ends = [](cudaStream_t) {};
  // Divisor of the work, above 1 for a slow allocator.
  int scale = 1;
  // Time to make the allocator once the device's context exists, in milliseconds.
  double open_ms = 0;
};

#define CHECK(call)                                                  \
  do {                                                               \
    cudaError_t code_ = (call);                                      \
    if (code_ != cudaSuccess) {                                      \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code_)); \
      exit(3);                                                       \
    }                                                                \
  } while (0)

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Makes the device's context once. Returns the time at which the context existed. The time from
// then to the first workload counts as the time to make the allocator.
inline Clock::time_point context_is_there() {
  static Clock::time_point since = [] {
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(0));
    return Clock::now();
  }();
  return since;
}

inline size_t free_memory() {
  size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

// Random numbers with a known sequence for each seed (splitmix64).
struct Random {
  uint64_t state;

  uint64_t next() {
    state += 0x9e3779b97f4a7c15;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, 1).
  double unit() { return double(next() >> 11) / double(uint64_t(1) << 53); }
  // Log-uniform from 256 B to 64 MiB.
  size_t any_size() { return size_t(std::exp2(8.0 + 18.0 * unit())); }
  // A power of two from 256 B to 512 KiB.
  size_t small_size() { return size_t(256) << (next() % 12); }
};

struct Block {
  void *address;
  size_t bytes;
};

inline cudaStream_t make_stream() {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

inline void end_stream(Peer &peer, cudaStream_t stream) {
  peer.stream_ends(stream);
  CHECK(cudaStreamDestroy(stream));
}

// Times pairs of an allocation and its free, of one size. The allocator's cache serves each pair.
inline void hot(Peer &peer, size_t bytes) {
  auto run = [&](int n) {
    for (int i = 0; i < n; i++) peer.free(peer.alloc(bytes, 0), bytes, 0);
  };
  run(100);
  const int pairs = 200000 / peer.scale;
  std::vector<double> times;
  for (int repeat = 0; repeat < 5; repeat++) {
    auto start = Clock::now();
    run(pairs);
    times.push_back(seconds_since(start) / pairs * 1e9);
  }
  printf("RESULT peer=%s work=hot bytes=%zu ns=%.1f\n", peer.name.c_str(), bytes, median(times));
}

// Allocates or frees at random, with log-uniform sizes of 256 B to 64 MiB. At most 8 GiB are live.
inline void random_sizes(Peer &peer) {
  const int operations = 200000 / peer.scale;
  const size_t most = size_t(8) << 30;
  Random random{1234};
  std::vector<Block> live;
  size_t bytes = 0, peak = 0;
  std::vector<double> times;
  for (int repeat = 0; repeat < 3; repeat++) {
    auto start = Clock::now();
    for (int i = 0; i < operations; i++) {
      size_t size = random.any_size();
      if (live.empty() || (bytes + size <= most && random.unit() < 0.52)) {
        live.push_back({peer.alloc(size, 0), size});
        bytes += size;
        peak = std::max(peak, bytes);
      } else {
        size_t at = size_t(random.unit() * live.size());
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

// Prints the two waits at a program's start: for making the allocator, and for the first request.
inline void first(Peer &peer) {
  auto start = Clock::now();
  void *address = peer.alloc(size_t(1) << 20, 0);
  double milliseconds = seconds_since(start) * 1e3;
  peer.free(address, size_t(1) << 20, 0);
  printf("RESULT peer=%s work=first open_ms=%.3f ms=%.3f\n", peer.name.c_str(), peer.open_ms,
         milliseconds);
}

// Allocates blocks of all sizes, 10 GiB together, frees them, and gives them back to the driver.
inline void reclaim(Peer &peer) {
  if (!peer.reclaim) {
    fprintf(stderr, "it has no call that gives what is cached back\n");
    exit(3);
  }
  const size_t enough = size_t(10) << 30;
  // The driver takes some memory at a process's first allocation, and no call gives it back. A
  // first allocation before the first reading of free memory keeps that memory out of the figures.
  peer.free(peer.alloc(size_t(1) << 20, 0), size_t(1) << 20, 0);
  peer.reclaim();
  size_t before = free_memory(), bytes = 0;
  Random random{1234};
  std::vector<Block> blocks;
  while (bytes < enough) {
    size_t size = random.any_size();
    blocks.push_back({peer.alloc(size, 0), size});
    bytes += size;
  }
  for (auto &block : blocks) peer.free(block.address, block.bytes, 0);
  size_t cached = free_memory();
  auto start = Clock::now();
  peer.reclaim();
  double milliseconds = seconds_since(start) * 1e3;
  size_t after = free_memory();
  auto less = [before](size_t free) { return free < before ? before - free : 0; };
  printf("RESULT peer=%s work=reclaim ms=%.3f live_peak=%zu cached=%zu kept=%zu\n",
         peer.name.c_str(), milliseconds, bytes, less(cached), less(after));
}

const int RING = 16;

struct Ring {
  Peer &peer;
  cudaStream_t stream;
  Random random;
  Block blocks[RING] = {};

  // Replaces each block with a block of another size.
  void turn() {
    for (auto &block : blocks) {
      if (block.address) peer.free(block.address, block.bytes, stream);
      block.bytes = random.small_size();
      block.address = peer.alloc(block.bytes, stream);
    }
  }
  void end() {
    for (auto &block : blocks) peer.free(block.address, block.bytes, stream);
  }
};

// Times threads that each have a stream and 16 live blocks of 256 B to 512 KiB. Counting starts
// once all threads run.
inline void threads(Peer &peer, int count) {
  std::vector<cudaStream_t> streams(count);
  for (auto &stream : streams) stream = make_stream();
  std::vector<double> rates;
  for (int repeat = 0; repeat < 3; repeat++) {
    std::barrier begin(count + 1);
    std::atomic<bool> stop = false;
    std::vector<double> done(count);
    auto body = [&](int index) {
      CHECK(cudaSetDevice(0));
      Ring ring{peer, streams[index], Random{uint64_t(index)}};
      for (int i = 0; i < 20; i++) ring.turn();
      begin.arrive_and_wait();
      auto start = Clock::now();
      size_t turns = 0;
      for (; !stop.load(std::memory_order_relaxed); turns++) ring.turn();
      done[index] = double(turns * RING) / seconds_since(start);
      ring.end();
    };
    std::vector<std::thread> running;
    for (int index = 0; index < count; index++) running.emplace_back(body, index);
    begin.arrive_and_wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop = true;
    for (auto &thread : running) thread.join();
    double sum = 0;
    for (double rate : done) sum += rate;
    rates.push_back(sum / 1e6);
  }
  printf("RESULT peer=%s work=threads threads=%d mpairs=%.3f\n", peer.name.c_str(), count,
         median(rates));
  for (auto stream : streams) end_stream(peer, stream);
}

// Allocates on one thread and frees on another. The threads take turns, so neither waits for the
// other's lock. An allocation's time includes work that earlier frees deferred.
inline void cross_free(Peer &peer) {
  const int rounds = std::max(5000 / peer.scale, 10), handful = 64;
  cudaStream_t stream = make_stream();
  Block blocks[handful];
  // The threads allocate in even turns, and free in odd turns.
  std::atomic<int> turn = 0;
  auto await_turn = [&](int number) {
    while (turn.load(std::memory_order_acquire) != number) std::this_thread::yield();
  };
  std::vector<double> allocations, frees;
  std::thread freeing([&] {
    CHECK(cudaSetDevice(0));
    for (int round = 0; round < rounds; round++) {
      await_turn(2 * round + 1);
      auto start = Clock::now();
      for (auto &block : blocks) peer.free(block.address, block.bytes, stream);
      frees.push_back(seconds_since(start) / handful * 1e9);
      turn.store(2 * round + 2, std::memory_order_release);
    }
  });
  Random random{1234};
  for (int round = 0; round < rounds; round++) {
    await_turn(2 * round);
    auto start = Clock::now();
    for (auto &block : blocks) {
      block.bytes = random.small_size();
      block.address = peer.alloc(block.bytes, stream);
    }
    allocations.push_back(seconds_since(start) / handful * 1e9);
    turn.store(2 * round + 1, std::memory_order_release);
  }
  freeing.join();
  printf("RESULT peer=%s work=crossfree ns=%.1f allocate_ns=%.1f\n", peer.name.c_str(),
         median(frees), median(allocations));
  end_stream(peer, stream);
}

struct Event {
  bool is_alloc;
  uint32_t id;
  size_t bytes;
  uint32_t stream;
};

// Reads the rows of a trace that simplify_trace.py wrote.
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

// Replays a trace on the trace's streams. The first pass starts with an empty cache, and later
// passes reuse the cache.
inline void replay(Peer &peer, const std::string &file) {
  auto events = load(file);
  uint32_t last_id = 0, last_stream = 0;
  for (auto &event : events) {
    last_id = std::max(last_id, event.id);
    last_stream = std::max(last_stream, event.stream);
  }
  struct Live : Block {
    cudaStream_t stream;
  };
  std::vector<Live> blocks(last_id + 1, Live{});
  // The trace's first stream is the default stream.
  std::vector<cudaStream_t> streams(last_stream + 1, nullptr);
  for (uint32_t at = 1; at <= last_stream; at++) streams[at] = make_stream();
  size_t live = 0, peak = 0;
  auto pass = [&] {
    auto start = Clock::now();
    for (auto &event : events) {
      auto &block = blocks[event.id];
      if (event.is_alloc) {
        auto stream = streams[event.stream];
        block = {{peer.alloc(event.bytes, stream), event.bytes}, stream};
        live += event.bytes;
        peak = std::max(peak, live);
      } else if (block.address) {
        peer.free(block.address, block.bytes, streams[event.stream]);
        live -= block.bytes;
        block.address = nullptr;
      }
    }
    double nanoseconds = seconds_since(start) / events.size() * 1e9;
    for (auto &block : blocks) {
      if (!block.address) continue;
      peer.free(block.address, block.bytes, block.stream);
      live -= block.bytes;
      block.address = nullptr;
    }
    return nanoseconds;
  };
  double cold = pass();
  double warm = median({pass(), pass(), pass()});
  printf(
      "RESULT peer=%s work=replay trace=%s cold_ns=%.1f ns=%.1f live_peak=%zu reserved_peak=%zu\n",
      peer.name.c_str(), file.substr(file.rfind('/') + 1).c_str(), cold, warm, peak,
      peer.reserved_peak());
  for (uint32_t at = 1; at <= last_stream; at++) end_stream(peer, streams[at]);
}

// argv: PROGRAM PEER WORK...
inline int drive(Peer &peer, int argc, char **argv) {
  peer.open_ms = seconds_since(context_is_there()) * 1e3;
  for (int at = 2; at < argc; at++) {
    std::string work = argv[at];
    if (work == "hot") {
      for (int shift : {10, 20, 26}) hot(peer, size_t(1) << shift);
    } else if (work == "random") {
      random_sizes(peer);
    } else if (work == "first") {
      first(peer);
    } else if (work == "reclaim") {
      reclaim(peer);
    } else if (work == "crossfree") {
      cross_free(peer);
    } else if (work == "threads") {
      for (int count : {1, 2, 4, 8, 16}) threads(peer, count);
    } else if (work.rfind("replay:", 0) == 0) {
      replay(peer, work.substr(7));
    } else {
      fprintf(stderr,
              "'%s' is no work; it is hot, random, threads, crossfree, first, reclaim or "
              "replay:FILE\n",
              work.c_str());
      return 2;
    }
    fflush(stdout);
  }
  return 0;
}

// Prints the usage. Call it if the program does not know its first argument.
inline int no_such_peer(const char *peers) {
  fprintf(stderr, "usage: PROGRAM PEER WORK..., with a peer of %s\n", peers);
  return 2;
}
