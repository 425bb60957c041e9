// gpuheap: GPU memory that can be accounted for, and that comes back.
//
// The C++ interface, for C++17: classes that own heaps and their memory (RAII), over the C
// interface (gpuheap.h). This header contains the whole interface. Link only the C library; no CUDA
// header is needed. A stream is a cudaStream_t or a CUstream, passed without a wrapper.
//
//     gpuheap::heap heap("cuda:0");
//     gpuheap::buffer<float> numbers = heap.allocate<float>(1000, stream);
//     kernel<<<4, 256, 0, stream>>>(numbers.data(), numbers.size());
//     // freed here, in the order of the stream; nothing waits
//
// Each operation has two forms: one that throws gpuheap::error, and one that begins with try_ and
// returns a gpuheap::result. If GPUHEAP_NO_EXCEPTIONS is defined, or the compiler's exceptions are
// off, only the second form exists. Destructors never throw. Every function may be called from any
// thread.

#ifndef GPUHEAP_HPP
#define GPUHEAP_HPP

#if __cplusplus < 201703L
#error "gpuheap.hpp needs C++17: compile with -std=c++17, or use gpuheap.h, which needs C++11"
#endif

#include "gpuheap.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#if !defined(GPUHEAP_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define GPUHEAP_NO_EXCEPTIONS
#endif

#ifndef GPUHEAP_NO_EXCEPTIONS
#include <memory>
#include <new>
#include <stdexcept>
#if __has_include(<memory_resource>)
#include <memory_resource>
#define GPUHEAP_HAS_MEMORY_RESOURCE
#endif
#endif

// Support for Thrust and CCCL, if their headers are found. Only for CUDA compilers, or if
// GPUHEAP_WITH_CUDA is defined before this header.
#if !defined(GPUHEAP_NO_EXCEPTIONS) && (defined(__CUDACC__) || defined(GPUHEAP_WITH_CUDA))
#if __has_include(<thrust/device_ptr.h>)
#include <thrust/device_ptr.h>
#define GPUHEAP_HAS_THRUST
#endif
#if __has_include(<cuda/memory_resource>) && __has_include(<cuda/version>)
#include <cuda/version>
// Before 3.1, CCCL offers memory resources only to programs that define this macro.
#if CCCL_VERSION >= 3001000 || defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#include <cuda/memory_resource>
#define GPUHEAP_HAS_CCCL
#endif
#endif
#endif

namespace gpuheap {

// Text of a failure. It has the failed call, the place, the numbers and a remedy.
class failure {
 public:
  failure(gpuheap_status status, std::string text) : status_(status), text_(std::move(text)) {}

  gpuheap_status status() const noexcept { return status_; }
  const std::string &text() const noexcept { return text_; }
  bool out_of_memory() const noexcept { return status_ == GPUHEAP_STATUS_OUT_OF_MEMORY; }

 private:
  gpuheap_status status_;
  std::string text_;
};

#ifndef GPUHEAP_NO_EXCEPTIONS
// Exception for a failure.
class error : public std::runtime_error {
 public:
  explicit error(failure why) : std::runtime_error(why.text()), why_(std::move(why)) {}

  gpuheap_status status() const noexcept { return why_.status(); }
  bool out_of_memory() const noexcept { return why_.out_of_memory(); }

 private:
  failure why_;
};

// Exception for containers and algorithms whose allocation failed. It has the failure's text.
class bad_allocation : public std::bad_alloc {
 public:
  explicit bad_allocation(failure why) : why_(std::make_shared<failure>(std::move(why))) {}

  const char *what() const noexcept override { return why_->text().c_str(); }
  const failure &why() const noexcept { return *why_; }

 private:
  std::shared_ptr<failure> why_;
};
#endif

// A value, or the failure to make one.
template <class T>
class result {
 public:
  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  result(failure why) : state_(std::in_place_index<1>, std::move(why)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  // The value. If has_value() is false, the behaviour is undefined.
  T &operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T &operator*() const & noexcept { return *std::get_if<0>(&state_); }
  T &&operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T *operator->() noexcept { return std::get_if<0>(&state_); }

  // The failure. If has_value() is true, the behaviour is undefined.
  const failure &why() const noexcept { return *std::get_if<1>(&state_); }

#ifndef GPUHEAP_NO_EXCEPTIONS
  // Returns the value, or throws the failure.
  T value() && {
    if (!has_value()) throw error(why());
    return std::move(*std::get_if<0>(&state_));
  }
#endif

 private:
  std::variant<T, failure> state_;
};

// The outcome of a call that returns no value.
using outcome = result<std::monostate>;

namespace detail {

inline failure last(gpuheap_status status) { return failure(status, gpuheap_last_error()); }

inline outcome done(gpuheap_status status) {
  if (status == GPUHEAP_STATUS_OK) return std::monostate{};
  return last(status);
}

// Alignment of all memory of a heap, in bytes.
constexpr std::size_t alignment = 512;

inline failure aligned(std::size_t align) {
  return failure(GPUHEAP_STATUS_REFUSED, "an alignment of " + std::to_string(align) +
                                             " bytes is above " + std::to_string(alignment) +
                                             ", which all memory of a heap has");
}

inline failure too_many(std::size_t size, std::size_t each) {
  return failure(GPUHEAP_STATUS_REFUSED, std::to_string(size) + " elements of " +
                                             std::to_string(each) +
                                             " bytes are more than addresses can count");
}

// Reason why an owner has no memory.
enum class without { elements, free, release, move };

// Makes the failure of a call on an owner that has no memory. `call` is the full name of the
// function.
inline failure no_memory(without reason, const char *call) {
  std::string text = call;
  switch (reason) {
    case without::free: text += ": the memory was freed before; allocate it anew"; break;
    case without::release:
      text += ": release() gave the address away; free it by gpuheap_free, once";
      break;
    case without::move:
      text += ": the owner was moved from; use the one that it was moved to";
      break;
    case without::elements: text += ": there is no memory"; break;
  }
  return failure(GPUHEAP_STATUS_REFUSED, std::move(text));
}

// Calls `write` for a text's length, then for the text, and for both again if the text grew
// meanwhile.
template <class Write>
result<std::string> text(Write write) {
  std::string text;
  std::size_t length = 0;
  for (;;) {
    // The library writes a null after the last character. std::string has room for that null.
    gpuheap_status status = write(text.data(), text.size() + 1, &length);
    if (status != GPUHEAP_STATUS_OK) return last(status);
    if (length <= text.size()) break;
    text.resize(length);
  }
  text.resize(length);
  return text;
}

// Calls `list` for the number of sites, then for the sites, and for both again if the number grew.
template <class List>
result<std::vector<gpuheap_site>> sites(List list) {
  std::vector<gpuheap_site> sites;
  std::size_t count = 0;
  for (;;) {
    if (!sites.empty()) sites[0].size = sizeof(gpuheap_site);
    gpuheap_status status = list(sites.data(), sites.size(), &count);
    if (status != GPUHEAP_STATUS_OK) return last(status);
    if (count <= sites.size()) break;
    sites.resize(count);
  }
  sites.resize(count);
  return sites;
}

}  // namespace detail

// Owner of memory that holds elements of one type. The memory is device memory, unless another kind
// was requested. The destructor frees the memory in the order of its stream and of all streams that
// used_on() named. No element is constructed: the elements are bytes. If the buffer was freed,
// released or moved from, every call that needs the memory fails with that reason. A buffer may
// have no elements.
template <class T>
class buffer {
  static_assert(std::is_trivially_copyable<T>::value, "the device's memory holds plain bytes");

 public:
  buffer() noexcept = default;
  buffer(buffer &&other) noexcept
      : heap_(other.heap_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        without_(std::exchange(other.without_, detail::without::move)) {}
  buffer &operator=(buffer &&other) noexcept {
    buffer(std::move(other)).swap(*this);
    return *this;
  }
  buffer(const buffer &) = delete;
  buffer &operator=(const buffer &) = delete;
  // The heap counts a free that fails.
  ~buffer() {
    if (data_ != nullptr) (void)gpuheap_free(heap_, data_);
  }

  // Address of the memory. The host uses the same address for unified and pinned memory. Null if
  // there are no elements.
  T *data() const noexcept { return static_cast<T *>(data_); }
  std::size_t size() const noexcept { return size_; }
  std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  bool empty() const noexcept { return size_ == 0; }

  // Records that work on `stream` uses the memory too. The later free is ordered after that work.
  outcome try_used_on(void *stream) {
    if (data_ == nullptr) return nothing("gpuheap::buffer::used_on");
    return detail::done(gpuheap_used_on(heap_, data_, stream));
  }

  // Enqueues a fill on `stream` that sets all bytes to `byte`.
  outcome try_fill(int byte, void *stream) {
    if (data_ == nullptr) return nothing("gpuheap::buffer::fill");
    return detail::done(gpuheap_fill(heap_, data_, 0, size_bytes(), byte, stream));
  }

  // Frees the memory now. Returns the failure, if the free fails.
  outcome try_free() {
    if (data_ == nullptr) return nothing("gpuheap::buffer::free");
    size_ = 0;
    without_ = detail::without::free;
    return detail::done(gpuheap_free(heap_, std::exchange(data_, nullptr)));
  }

  // Lets the memory outlive the scope that it was allocated in.
  outcome try_keep() {
    if (data_ == nullptr) return nothing("gpuheap::buffer::keep");
    return detail::done(gpuheap_keep(heap_, data_));
  }

  // Releases ownership and returns the address. The caller frees the memory with gpuheap_free.
  // Null if the buffer has no memory.
  T *release() noexcept {
    if (data_ == nullptr) return nullptr;
    size_ = 0;
    without_ = detail::without::release;
    return static_cast<T *>(std::exchange(data_, nullptr));
  }

#ifndef GPUHEAP_NO_EXCEPTIONS
  void used_on(void *stream) { try_used_on(stream).value(); }
  void fill(int byte, void *stream) { try_fill(byte, stream).value(); }
  void free() { try_free().value(); }
  void keep() { try_keep().value(); }
#endif

  void swap(buffer &other) noexcept {
    std::swap(heap_, other.heap_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(without_, other.without_);
  }

 private:
  friend class heap;
  buffer(gpuheap_heap *heap, void *data, std::size_t size) noexcept
      : heap_(heap), data_(data), size_(size) {}

  // Returns the outcome of a call on a buffer without memory.
  outcome nothing(const char *call) const {
    if (without_ == detail::without::elements) return std::monostate{};
    return detail::no_memory(without_, call);
  }

  gpuheap_heap *heap_ = nullptr;
  void *data_ = nullptr;
  std::size_t size_ = 0;
  detail::without without_ = detail::without::elements;
};

// Owner of a page lock. It lets a heap's device use memory of the program. The destructor waits for
// the device's work and unlocks the memory. The memory must outlive this owner. The host uses the
// elements at data(), and the device at device_data().
template <class T>
class registered {
  static_assert(std::is_trivially_copyable<T>::value, "the device's memory holds plain bytes");

 public:
  registered() noexcept = default;
  registered(registered &&other) noexcept
      : heap_(other.heap_),
        data_(std::exchange(other.data_, nullptr)),
        device_data_(std::exchange(other.device_data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        without_(std::exchange(other.without_, detail::without::move)) {}
  registered &operator=(registered &&other) noexcept {
    registered(std::move(other)).swap(*this);
    return *this;
  }
  registered(const registered &) = delete;
  registered &operator=(const registered &) = delete;
  // If unlocking fails, the device may still use the memory, so never free it. To see a failure,
  // call unregister() first.
  ~registered() {
    if (data_ != nullptr) (void)gpuheap_unregister(heap_, data_);
  }

  // The host's address; null for no elements.
  T *data() const noexcept { return data_; }
  // The device's address. It equals the host's address, except with Windows drivers.
  T *device_data() const noexcept { return device_data_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  bool empty() const noexcept { return size_ == 0; }

  // Waits for all work of the device, then unlocks the memory. Returns the failure, if the call
  // fails.
  outcome try_unregister() {
    if (data_ == nullptr) {
      if (without_ == detail::without::elements) return std::monostate{};
      const char *call = "gpuheap::registered::unregister";
      if (without_ == detail::without::move) return detail::no_memory(without_, call);
      return failure(GPUHEAP_STATUS_REFUSED,
                     std::string(call) + ": the memory was unregistered before");
    }
    size_ = 0;
    device_data_ = nullptr;
    without_ = detail::without::free;
    return detail::done(gpuheap_unregister(heap_, std::exchange(data_, nullptr)));
  }

#ifndef GPUHEAP_NO_EXCEPTIONS
  void unregister() { try_unregister().value(); }
#endif

  void swap(registered &other) noexcept {
    std::swap(heap_, other.heap_);
    std::swap(data_, other.data_);
    std::swap(device_data_, other.device_data_);
    std::swap(size_, other.size_);
    std::swap(without_, other.without_);
  }

 private:
  friend class heap;
  registered(gpuheap_heap *heap, T *data, T *device_data, std::size_t size) noexcept
      : heap_(heap), data_(data), device_data_(device_data), size_(size) {}

  gpuheap_heap *heap_ = nullptr;
  T *data_ = nullptr;
  T *device_data_ = nullptr;
  std::size_t size_ = 0;
  detail::without without_ = detail::without::elements;
};

// Describes the devices that a heap can be opened on: the real devices, then one emulated device.
// Makes no context. gpuheap::heap(devices()[1].name) opens a heap on the second device.
inline result<std::vector<gpuheap_device>> try_devices() {
  std::size_t count = 0;
  gpuheap_status status = gpuheap_count_devices(&count);
  if (status != GPUHEAP_STATUS_OK) return detail::last(status);
  std::vector<gpuheap_device> devices(count);
  for (std::size_t at = 0; at < count; at++) {
    devices[at].size = sizeof devices[at];
    status = gpuheap_get_device(at, &devices[at]);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
  }
  return devices;
}

#ifndef GPUHEAP_NO_EXCEPTIONS
inline std::vector<gpuheap_device> devices() { return try_devices().value(); }
#endif

// The outstanding allocations of a heap at one moment.
class snapshot {
 public:
  snapshot(snapshot &&other) noexcept : inner_(std::exchange(other.inner_, nullptr)) {}
  snapshot &operator=(snapshot &&other) noexcept {
    std::swap(inner_, other.inner_);
    return *this;
  }
  ~snapshot() { (void)gpuheap_drop_snapshot(inner_); }

  // Returns the changes since an earlier snapshot of the same heap as a text.
  result<std::string> try_since(const snapshot &earlier,
                                gpuheap_format format = GPUHEAP_FORMAT_TEXT) const {
    return detail::text([&](char *buffer, std::size_t capacity, std::size_t *length) {
      return gpuheap_snapshot_difference(earlier.inner_, inner_, format, buffer, capacity, length,
                                         nullptr);
    });
  }

  // Returns the changes since an earlier snapshot of the same heap. Each entry is a place in the
  // code. The largest growth comes first.
  result<std::vector<gpuheap_site>> try_growth_since(const snapshot &earlier) const {
    return detail::sites([&](gpuheap_site *sites, std::size_t capacity, std::size_t *count) {
      return gpuheap_list_growth(earlier.inner_, inner_, sites, capacity, count);
    });
  }

#ifndef GPUHEAP_NO_EXCEPTIONS
  std::vector<gpuheap_site> growth_since(const snapshot &earlier) const {
    return try_growth_since(earlier).value();
  }
  std::string since(const snapshot &earlier, gpuheap_format format = GPUHEAP_FORMAT_TEXT) const {
    return try_since(earlier, format).value();
  }
#endif

 private:
  friend class heap;
  explicit snapshot(gpuheap_snapshot *inner) noexcept : inner_(inner) {}

  gpuheap_snapshot *inner_ = nullptr;
};

// A scope of the calling thread. The end of a scope frees the memory that the thread allocated
// inside and has neither freed nor kept. A scope must end on the thread that opened it.
class scope {
 public:
  scope(scope &&other) noexcept : inner_(std::exchange(other.inner_, nullptr)) {}
  scope &operator=(scope &&) = delete;
  // The heap counts a free that fails.
  ~scope() { (void)gpuheap_close_scope(inner_, nullptr); }

  // Ends the scope now, and returns its figures.
  result<gpuheap_scope_report> try_close() {
    if (inner_ == nullptr) {
      return failure(GPUHEAP_STATUS_REFUSED,
                     "gpuheap::scope::close: the scope was closed before, or moved from");
    }
    gpuheap_scope_report report{};
    report.size = sizeof report;
    gpuheap_status status = gpuheap_close_scope(inner_, &report);
    // If another thread opened the scope, the call is refused and the scope stays open.
    if (status != GPUHEAP_STATUS_REFUSED) inner_ = nullptr;
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return report;
  }

#ifndef GPUHEAP_NO_EXCEPTIONS
  gpuheap_scope_report close() { return try_close().value(); }
#endif

 private:
  friend class heap;
  explicit scope(gpuheap_scope *inner) noexcept : inner_(inner) {}

  gpuheap_scope *inner_ = nullptr;
};

// A heap for the memory of one device. It must outlive its buffers, scopes and snapshots.
class heap {
 public:
#ifndef GPUHEAP_NO_EXCEPTIONS
  // Opens the device with this name: "cuda:0", "emulated:16GiB", or the name of one of devices().
  // If the name is null, opens the device that GPUHEAP_DEVICE names. If that is unset, opens the
  // first GPU or, without a GPU, an emulated device.
  explicit heap(const char *device = nullptr, const gpuheap_options *options = nullptr)
      : heap(open(device, options).value()) {}
#endif

  static result<heap> open(const char *device = nullptr, const gpuheap_options *options = nullptr) {
    gpuheap_heap *opened = nullptr;
    gpuheap_status status = gpuheap_open(device, options, &opened);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return heap(opened);
  }

  heap(heap &&other) noexcept : inner_(std::exchange(other.inner_, nullptr)) {}
  heap &operator=(heap &&other) noexcept {
    std::swap(inner_, other.inner_);
    return *this;
  }
  // If the heap could not return some memory, that memory is freed at the end of the process.
  ~heap() { (void)gpuheap_close(inner_); }

  // Allocates elements for use on a stream. Their bytes are not initialised.
  template <class T>
  result<buffer<T>> try_allocate(std::size_t size, void *stream = nullptr) {
    if (size > std::numeric_limits<std::size_t>::max() / sizeof(T))
      return detail::too_many(size, sizeof(T));
    void *data = nullptr;
    gpuheap_status status = gpuheap_allocate(inner_, size * sizeof(T), stream, &data);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return buffer<T>(inner_, data, size);
  }

  // Allocates elements of unified or pinned memory for use on a stream. Before the host uses the
  // elements, call try_wait_for(stream).
  template <class T>
  result<buffer<T>> try_allocate_kind(gpuheap_kind kind, std::size_t size, void *stream = nullptr) {
    if (size > std::numeric_limits<std::size_t>::max() / sizeof(T))
      return detail::too_many(size, sizeof(T));
    void *data = nullptr;
    gpuheap_status status = gpuheap_allocate_kind(inner_, kind, size * sizeof(T), stream, &data);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return buffer<T>(inner_, data, size);
  }

  // Allocates elements and fills them with zeros, in the order of the stream.
  template <class T>
  result<buffer<T>> try_allocate_zeroed(std::size_t size, void *stream = nullptr) {
    result<buffer<T>> made = try_allocate<T>(size, stream);
    if (made) {
      outcome filled = made->try_fill(0, stream);
      if (!filled) return filled.why();
    }
    return made;
  }

  // Page-locks elements in memory of the program for the device. The elements must not move or be
  // freed while the returned owner exists.
  template <class T>
  result<registered<T>> try_register_memory(T *memory, std::size_t size) {
    if (size > std::numeric_limits<std::size_t>::max() / sizeof(T))
      return detail::too_many(size, sizeof(T));
    void *device = nullptr;
    gpuheap_status status = gpuheap_register(inner_, memory, size * sizeof(T), &device);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return registered<T>(inner_, memory, static_cast<T *>(device), size);
  }

  // Describes the heap's device.
  result<gpuheap_device> try_device() const {
    gpuheap_device device{};
    device.size = sizeof device;
    gpuheap_status status = gpuheap_get_heap_device(inner_, &device);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return device;
  }

  // Returns all cached memory to the driver, and reports the memory that the heap keeps.
  result<gpuheap_flushed> try_flush() {
    gpuheap_flushed flushed{};
    flushed.size = sizeof flushed;
    gpuheap_status status = gpuheap_flush(inner_, &flushed);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return flushed;
  }

  result<gpuheap_statistics> try_statistics() const {
    gpuheap_statistics now{};
    now.size = sizeof now;
    gpuheap_status status = gpuheap_get_statistics(inner_, &now);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return now;
  }

  // Forecasts whether a request of the given size would be served now.
  result<gpuheap_fit> try_would_fit(std::uint64_t bytes) const {
    gpuheap_fit fit = GPUHEAP_FIT_NO;
    gpuheap_status status = gpuheap_would_fit(inner_, bytes, &fit, nullptr, 0, nullptr);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return fit;
  }

  // Returns the status of the heap and its device as a text.
  result<std::string> try_status(gpuheap_format format = GPUHEAP_FORMAT_TEXT) const {
    return detail::text([&](char *buffer, std::size_t capacity, std::size_t *length) {
      return gpuheap_memory_status(inner_, format, buffer, capacity, length);
    });
  }

  // Returns the outstanding allocations by place and thread as a text. Needs tracking.
  result<std::string> try_leaks(gpuheap_format format = GPUHEAP_FORMAT_TEXT) const {
    return detail::text([&](char *buffer, std::size_t capacity, std::size_t *length) {
      return gpuheap_leaks(inner_, format, buffer, capacity, length, nullptr);
    });
  }

  // Returns the outstanding allocations by place, most bytes first. Needs tracking.
  result<std::vector<gpuheap_site>> try_list_leaks() const {
    return detail::sites([&](gpuheap_site *sites, std::size_t capacity, std::size_t *count) {
      return gpuheap_list_leaks(inner_, sites, capacity, count);
    });
  }

  // Records the outstanding allocations of this moment, for a later comparison. Needs tracking.
  result<snapshot> try_take_snapshot() const {
    gpuheap_snapshot *taken = nullptr;
    gpuheap_status status = gpuheap_take_snapshot(inner_, &taken);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return snapshot(taken);
  }

  // Opens a scope of the calling thread.
  result<scope> try_open_scope(const char *name = nullptr) {
    gpuheap_scope *opened = nullptr;
    gpuheap_status status = gpuheap_open_scope(inner_, name, &opened);
    if (status != GPUHEAP_STATUS_OK) return detail::last(status);
    return scope(opened);
  }

  // Waits for all work of the device.
  outcome try_wait() { return detail::done(gpuheap_wait(inner_)); }

  // Waits for all work that was enqueued on a stream so far.
  outcome try_wait_for(void *stream) {
    return detail::done(gpuheap_wait_for_stream(inner_, stream));
  }

  // Resets the device and closes this heap. All that the process has on the device ends.
  // gpuheap_reset_device lists the uses of the device that must end before the call. Every later
  // call of the heap and of its buffers fails because of the reset.
  outcome try_reset_device() { return detail::done(gpuheap_reset_device(inner_)); }

  // Announces that a stream is about to be destroyed.
  outcome try_stream_ended(void *stream) {
    return detail::done(gpuheap_stream_ended(inner_, stream));
  }

  // Changes the limits, in bytes. 0 removes a limit.
  outcome try_set_limits(std::uint64_t soft, std::uint64_t hard) {
    return detail::done(gpuheap_set_limits(inner_, soft, hard, nullptr));
  }

#ifndef GPUHEAP_NO_EXCEPTIONS
  template <class T>
  buffer<T> allocate(std::size_t size, void *stream = nullptr) {
    return try_allocate<T>(size, stream).value();
  }
  template <class T>
  buffer<T> allocate_kind(gpuheap_kind kind, std::size_t size, void *stream = nullptr) {
    return try_allocate_kind<T>(kind, size, stream).value();
  }
  template <class T>
  buffer<T> allocate_zeroed(std::size_t size, void *stream = nullptr) {
    return try_allocate_zeroed<T>(size, stream).value();
  }
  template <class T>
  registered<T> register_memory(T *memory, std::size_t size) {
    return try_register_memory(memory, size).value();
  }
  gpuheap_device device() const { return try_device().value(); }
  gpuheap_flushed flush() { return try_flush().value(); }
  gpuheap_statistics statistics() const { return try_statistics().value(); }
  gpuheap_fit would_fit(std::uint64_t bytes) const { return try_would_fit(bytes).value(); }
  std::string status(gpuheap_format format = GPUHEAP_FORMAT_TEXT) const {
    return try_status(format).value();
  }
  std::string leaks(gpuheap_format format = GPUHEAP_FORMAT_TEXT) const {
    return try_leaks(format).value();
  }
  std::vector<gpuheap_site> list_leaks() const { return try_list_leaks().value(); }
  snapshot take_snapshot() const { return try_take_snapshot().value(); }
  scope open_scope(const char *name = nullptr) { return try_open_scope(name).value(); }
  void wait() { try_wait().value(); }
  void wait_for(void *stream) { try_wait_for(stream).value(); }
  void reset_device() { try_reset_device().value(); }
  void stream_ended(void *stream) { try_stream_ended(stream).value(); }
  void set_limits(std::uint64_t soft, std::uint64_t hard) { try_set_limits(soft, hard).value(); }
#endif

  // Returns the heap's handle for calls of the C interface. This object still owns the heap.
  gpuheap_heap *get() const noexcept { return inner_; }

 private:
  explicit heap(gpuheap_heap *inner) noexcept : inner_(inner) {}

  gpuheap_heap *inner_ = nullptr;
};

#ifdef GPUHEAP_HAS_MEMORY_RESOURCE
// Resource that gives std::pmr containers unified or pinned memory of a heap. The host fills the
// containers, and the device reads them. The memory of a container is freed in the order of the
// resource's stream and of the streams that used_on() named for the container. An allocation waits
// for the work of the resource's stream, so that the host may use the memory immediately. Choose a
// stream with little work. The heap must outlive the resource.
class memory_resource : public std::pmr::memory_resource {
 public:
  explicit memory_resource(heap &of, gpuheap_kind kind = GPUHEAP_KIND_PINNED,
                           void *stream = nullptr)
      : heap_(of.get()), kind_(kind), stream_(stream) {
    if (kind == GPUHEAP_KIND_DEVICE) {
      throw error(failure(
          GPUHEAP_STATUS_REFUSED,
          "gpuheap::memory_resource: the host cannot construct elements in device memory; pass "
          "GPUHEAP_KIND_PINNED or GPUHEAP_KIND_UNIFIED"));
    }
  }

  // Names another stream that uses a container's memory until the free. `data` is the container's
  // data().
  void used_on(void *data, void *stream) {
    detail::done(gpuheap_used_on(heap_, data, stream)).value();
  }

 private:
  void *do_allocate(std::size_t bytes, std::size_t align) override {
    if (align > detail::alignment) throw bad_allocation(detail::aligned(align));
    void *data = nullptr;
    gpuheap_status status =
        gpuheap_allocate_kind(heap_, kind_, bytes > 0 ? bytes : 1, stream_, &data);
    if (status != GPUHEAP_STATUS_OK) throw bad_allocation(detail::last(status));
    status = gpuheap_wait_for_stream(heap_, stream_);
    if (status != GPUHEAP_STATUS_OK) {
      failure why = detail::last(status);
      (void)gpuheap_free(heap_, data);
      throw bad_allocation(std::move(why));
    }
    return data;
  }

  // The heap counts a free that fails.
  void do_deallocate(void *data, std::size_t, std::size_t) override {
    (void)gpuheap_free(heap_, data);
  }

  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
    const auto *same = dynamic_cast<const memory_resource *>(&other);
    return same != nullptr && same->heap_ == heap_;
  }

  gpuheap_heap *heap_;
  gpuheap_kind kind_;
  void *stream_;
};
#endif

#ifndef GPUHEAP_NO_EXCEPTIONS
// Allocator of device memory. It allocates in the order of a stream, and returns plain pointers.
// Thrust can use it for the temporary memory of algorithms:
// thrust::cuda::par(gpuheap::stream_allocator<char>(heap, stream)).on(stream). The heap must
// outlive the allocator.
template <class T>
class stream_allocator {
 public:
  using value_type = T;

  explicit stream_allocator(heap &of, void *stream = nullptr) noexcept
      : heap_(of.get()), stream_(stream) {}
  template <class U>
  stream_allocator(const stream_allocator<U> &other) noexcept
      : heap_(other.heap_), stream_(other.stream_) {}

  T *allocate(std::size_t size) {
    if (size > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
      throw bad_allocation(detail::too_many(size, sizeof(T)));
    }
    void *data = nullptr;
    gpuheap_status status = gpuheap_allocate(heap_, size * sizeof(T), stream_, &data);
    if (status != GPUHEAP_STATUS_OK) throw bad_allocation(detail::last(status));
    return static_cast<T *>(data);
  }

  // The heap counts a free that fails.
  void deallocate(T *data, std::size_t) noexcept { (void)gpuheap_free(heap_, data); }

  template <class U>
  bool operator==(const stream_allocator<U> &other) const noexcept {
    return heap_ == other.heap_ && stream_ == other.stream_;
  }
  template <class U>
  bool operator!=(const stream_allocator<U> &other) const noexcept {
    return !(*this == other);
  }

 private:
  template <class>
  friend class stream_allocator;
  gpuheap_heap *heap_;
  void *stream_;
};

#ifdef GPUHEAP_HAS_THRUST
// Allocator for thrust::device_vector. It allocates in the order of the stream on which the vector
// is used. The heap must outlive the vector.
template <class T>
class thrust_allocator {
 public:
  using value_type = T;
  using pointer = thrust::device_ptr<T>;
  using const_pointer = thrust::device_ptr<const T>;
  using reference = thrust::device_reference<T>;
  using const_reference = thrust::device_reference<const T>;
  using size_type = std::size_t;
  using difference_type = typename pointer::difference_type;
  template <class U>
  struct rebind {
    using other = thrust_allocator<U>;
  };

  explicit thrust_allocator(heap &of, void *stream = nullptr) noexcept : inner_(of, stream) {}
  template <class U>
  thrust_allocator(const thrust_allocator<U> &other) noexcept : inner_(other.inner_) {}

  pointer allocate(size_type size) { return pointer(inner_.allocate(size)); }
  void deallocate(pointer data, size_type size) noexcept { inner_.deallocate(data.get(), size); }

  bool operator==(const thrust_allocator &other) const noexcept { return inner_ == other.inner_; }
  bool operator!=(const thrust_allocator &other) const noexcept { return inner_ != other.inner_; }

 private:
  template <class>
  friend class thrust_allocator;
  stream_allocator<T> inner_;
};
#endif

// Memory resource of CCCL (cuda::mr) that allocates device memory of a heap. It models the concepts
// resource and async_resource. CCCL 3.1 renamed them to synchronous_resource and resource. A stream
// is a cuda::stream_ref. The heap must outlive the resource.
class device_resource {
  template <class Stream>
  using handle = decltype(std::declval<const Stream &>().get());

 public:
  explicit device_resource(heap &of) noexcept : heap_(of.get()) {}

  // Allocates in the order of a stream.
  template <class Stream, class = handle<Stream>>
  void *allocate(const Stream &stream, std::size_t bytes, std::size_t align = alignment) {
    return make(bytes, align, stream.get());
  }
  template <class Stream, class = handle<Stream>>
  void deallocate(const Stream &stream, void *data, std::size_t, std::size_t = alignment) noexcept {
    (void)gpuheap_free_on(heap_, data, stream.get());
  }
  template <class Stream, class = handle<Stream>>
  void *allocate_async(std::size_t bytes, std::size_t align, const Stream &stream) {
    return make(bytes, align, stream.get());
  }
  template <class Stream, class = handle<Stream>>
  void *allocate_async(std::size_t bytes, const Stream &stream) {
    return make(bytes, alignment, stream.get());
  }
  template <class Stream, class = handle<Stream>>
  void deallocate_async(void *data, std::size_t, std::size_t, const Stream &stream) noexcept {
    (void)gpuheap_free_on(heap_, data, stream.get());
  }
  template <class Stream, class = handle<Stream>>
  void deallocate_async(void *data, std::size_t, const Stream &stream) noexcept {
    (void)gpuheap_free_on(heap_, data, stream.get());
  }

  // Allocates memory on the default stream and waits for that stream, so that every stream may use
  // the memory. The function deallocate_sync waits for the device before it frees.
  void *allocate_sync(std::size_t bytes, std::size_t align = alignment) {
    void *data = make(bytes, align, nullptr);
    gpuheap_status status = gpuheap_wait_for_stream(heap_, nullptr);
    if (status != GPUHEAP_STATUS_OK) {
      failure why = detail::last(status);
      (void)gpuheap_free(heap_, data);
      throw bad_allocation(std::move(why));
    }
    return data;
  }
  void deallocate_sync(void *data, std::size_t, std::size_t = alignment) noexcept {
    (void)gpuheap_wait(heap_);
    (void)gpuheap_free(heap_, data);
  }
  void *allocate(std::size_t bytes, std::size_t align = alignment) {
    return allocate_sync(bytes, align);
  }
  void deallocate(void *data, std::size_t bytes, std::size_t align = alignment) noexcept {
    deallocate_sync(data, bytes, align);
  }

  bool operator==(const device_resource &other) const noexcept { return heap_ == other.heap_; }
  bool operator!=(const device_resource &other) const noexcept { return heap_ != other.heap_; }

#ifdef GPUHEAP_HAS_CCCL
  friend void get_property(const device_resource &, cuda::mr::device_accessible) noexcept {}
#endif

 private:
  static constexpr std::size_t alignment = detail::alignment;

  void *make(std::size_t bytes, std::size_t align, void *stream) {
    if (align > alignment) throw bad_allocation(detail::aligned(align));
    void *data = nullptr;
    gpuheap_status status = gpuheap_allocate(heap_, bytes, stream, &data);
    if (status != GPUHEAP_STATUS_OK) throw bad_allocation(detail::last(status));
    return data;
  }

  gpuheap_heap *heap_;
};
#endif

}  // namespace gpuheap

#endif  // GPUHEAP_HPP
