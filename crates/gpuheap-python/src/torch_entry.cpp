// Defines the functions that PyTorch calls through C++ interfaces. They allocate memory, and begin
// and end pools of CUDA graphs.
//
// If memory runs out, the allocation throws a C++ exception, because PyTorch would make a tensor at
// address 0 from a null pointer. The text begins with the same words as PyTorch's own text.
// Accelerate and Lightning recognise those words.
//
// PyTorch turns a `c10::OutOfMemoryError` into torch.OutOfMemoryError, and other exceptions into a
// RuntimeError. The code looks the type up in PyTorch's libraries when it throws the first error.
// Linking the libraries would bind the wheel to one version of PyTorch. PyTorch's own constructor
// makes the object, so this file does not depend on the object's layout. If the type is not found,
// the error is a std::runtime_error.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

extern "C" {

// Defined in src/torch/mod.rs. On failure, returns null and writes the reason to `text` as a
// null-terminated string. Returns null for 0 bytes too. `pool` is null or has two numbers.
void *gpuheap_torch_allocate(std::ptrdiff_t bytes, int device, void *stream,
                             const std::uint64_t *pool, char *text, std::size_t room);
void gpuheap_torch_pool_began(int device, std::uint64_t first, std::uint64_t second);
void gpuheap_torch_pool_ended(int device);
void gpuheap_torch_pool_released(int device, std::uint64_t first, std::uint64_t second);
}

namespace {

const char OUT_OF_MEMORY[] = "CUDA out of memory.";

// The first parameter of the constructor: c10::SourceLocation.
struct Place {
  const char *function;
  const char *file;
  std::uint32_t line;
};

// PyTorch's exception type, as found in its libraries.
struct Type {
  // The constructor c10::Error(c10::SourceLocation, std::string).
  void (*make)(void *, Place, std::string);
  // The table of virtual functions of c10::OutOfMemoryError.
  void **table;
  std::type_info *info;
};

// Bytes reserved for an exception object. PyTorch 2.15 needs 128; other versions may need more.
const std::size_t ROOM = 2048;

// Index of the first function in a table of virtual functions. That function is the destructor that
// does not free the object's memory.
const std::size_t FIRST = 2;

void *symbol(const char *name) {
  const char *libraries[] = {"libc10.so", "libc10_cuda.so", "libtorch_python.so"};
  for (const char *library : libraries) {
    if (void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) {
      void *found = dlsym(loaded, name);
      dlclose(loaded);
      if (found != nullptr) {
        return found;
      }
    }
  }
  return nullptr;
}

Type find() {
  Type found;
  found.make = reinterpret_cast<void (*)(void *, Place, std::string)>(symbol(
      "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"));
  found.table = static_cast<void **>(symbol("_ZTVN3c1016OutOfMemoryErrorE"));
  found.info = static_cast<std::type_info *>(symbol("_ZTIN3c1016OutOfMemoryErrorE"));
  return found;
}

// Throws PyTorch's exception. Returns if PyTorch's libraries do not have the type.
void throw_pytorchs(const char *text) {
  static const Type type = find();
  if (type.make == nullptr || type.table == nullptr || type.info == nullptr) {
    return;
  }
  void *error = abi::__cxa_allocate_exception(ROOM);
  std::memset(error, 0, ROOM);
  try {
    type.make(error, Place{"gpuheap_torch_entry", "torch_entry.cpp", 0}, text);
  } catch (...) {
    abi::__cxa_free_exception(error);
    return;
  }
  // Changes the object's class from c10::Error to c10::OutOfMemoryError. The subclass adds no data.
  *static_cast<void **>(error) = type.table + FIRST;
  abi::__cxa_throw(error, type.info, reinterpret_cast<void (*)(void *)>(type.table[FIRST]));
}

// c10::MempoolId_t.
using PoolId = std::pair<unsigned long long, unsigned long long>;

// Returns true for a stream whose allocations have to come from the pool.
using Filter = std::function<bool(void *)>;

// A capture in progress.
struct Begun {
  int device;
  PoolId id;
  Filter filter;
};

std::mutex begun_lock;
// Captures in progress. Never destroyed, because threads may allocate while the process exits.
std::vector<Begun> &begun = *new std::vector<Begun>;
// Number of captures in progress. An allocation outside of captures reads it without the lock.
std::atomic<std::size_t> begun_count(0);

// Finds the memory pool of the capture in progress whose filter accepts the stream. Returns false
// if there is no such capture. An exception of a filter goes to the caller.
bool find_pool(int device, void *stream, std::uint64_t (&pool)[2]) {
  if (begun_count.load(std::memory_order_acquire) == 0) {
    return false;
  }
  std::lock_guard<std::mutex> held(begun_lock);
  for (const Begun &one : begun) {
    if (one.device == device && one.filter(stream)) {
      pool[0] = one.id.first;
      pool[1] = one.id.second;
      return true;
    }
  }
  return false;
}
}  // namespace

extern "C" void gpuheap_torch_begin_pool(int device, PoolId id, Filter filter) {
  std::lock_guard<std::mutex> held(begun_lock);
  begun.push_back(Begun{device, id, std::move(filter)});
  begun_count.store(begun.size(), std::memory_order_release);
  gpuheap_torch_pool_began(device, id.first, id.second);
}

extern "C" void gpuheap_torch_end_pool(int device, PoolId id) {
  std::lock_guard<std::mutex> held(begun_lock);
  for (std::size_t at = begun.size(); at-- > 0;) {
    if (begun[at].device == device && begun[at].id == id) {
      begun.erase(begun.begin() + static_cast<std::ptrdiff_t>(at));
      begun_count.store(begun.size(), std::memory_order_release);
      gpuheap_torch_pool_ended(device);
      return;
    }
  }
}

extern "C" void gpuheap_torch_release_pool(int device, PoolId id) {
  gpuheap_torch_pool_released(device, id.first, id.second);
}

extern "C" void *gpuheap_torch_entry(std::ptrdiff_t bytes, int device, void *stream) {
  char text[4096];
  text[0] = 0;
  std::uint64_t pool[2];
  const bool is_pooled = find_pool(device, stream, pool);
  void *address =
      gpuheap_torch_allocate(bytes, device, stream, is_pooled ? pool : nullptr, text, sizeof text);
  if (address == nullptr && text[0] != 0) {
    if (std::strncmp(text, OUT_OF_MEMORY, sizeof OUT_OF_MEMORY - 1) == 0) {
      throw_pytorchs(text);
    }
    throw std::runtime_error(text);
  }
  return address;
}
