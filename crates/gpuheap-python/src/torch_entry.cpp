// The functions that PyTorch calls whose interface is C++: allocation, and the pools of CUDA
// graphs.
//
// Out of memory is a C++ exception there: a null pointer
// would become a tensor at address 0. The text begins as PyTorch's own, by which Accelerate and
// Lightning recognise it.
//
// PyTorch turns a `c10::OutOfMemoryError` into torch.OutOfMemoryError, and other exceptions into a
// RuntimeError. That type is found in PyTorch's libraries when the first error is thrown: to link
// them would bind the wheel to one version of PyTorch. Its own constructor makes the object, so
// nothing here depends on the layout. Without the type, the error is a std::runtime_error.

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

// In torch.rs. Writes why it failed, with a null at its end, if it returns null for more than no
// bytes. `pool` is null or has two numbers.
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

// PyTorch's type of exception, as its libraries have it.
struct Type {
  // The constructor c10::Error(c10::SourceLocation, std::string).
  void (*make)(void *, Place, std::string);
  // The table of virtual functions of c10::OutOfMemoryError.
  void **table;
  std::type_info *info;
};

// Bytes for an exception. PyTorch 2.15's exception takes 128, and another version's has to fit too.
const std::size_t ROOM = 2048;

// Entries of a table before the first function, and before the destructor of an object that was
// allocated elsewhere: that is the first function.
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

// Throws PyTorch's exception, if its libraries have it.
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
  // From the constructor's class to its subclass. The subclass adds no data.
  *static_cast<void **>(error) = type.table + FIRST;
  abi::__cxa_throw(error, type.info, reinterpret_cast<void (*)(void *)>(type.table[FIRST]));
}

// c10::MempoolId_t.
using PoolId = std::pair<unsigned long long, unsigned long long>;

// Which streams' allocations PyTorch wants from a pool.
using Filter = std::function<bool(void *)>;

// A capture in progress.
struct Begun {
  int device;
  PoolId id;
  Filter filter;
};

std::mutex begun_lock;
// Never destroyed: threads may allocate while the process exits.
std::vector<Begun> &begun = *new std::vector<Begun>;
// Their number, so that an allocation outside of captures takes no lock.
std::atomic<std::size_t> begun_count(0);

// Finds the pool for an allocation. Throws as the filters do.
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
