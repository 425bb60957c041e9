/* gpuheap: GPU memory that can be accounted for, and that comes back.
 *
 * The C interface. Made by cbindgen from crates/gpuheap-capi: change the sources, not this file.
 *
 * Every function may be called from any thread, but not from a callback that a stream runs on the
 * host (cudaLaunchHostFunc): the heap may be waiting for that very stream. Close every heap before the
 * device is reset. None of the functions ends the process by itself, unless the host has no memory left.
 * All but those that only name something return a gpuheap_status; with any other than
 * GPUHEAP_STATUS_OK, gpuheap_last_error() says what, where, the numbers and what to do.
 *
 * Memory may be allocated and freed on a stream that is captured into a graph, if it was used here before
 * the capture began, and beside it: the calls are no part of the graph and do not break the capture,
 * unless they say so. A stream that is captured and was not used here before is refused, and so are all
 * that are captured where streams end unannounced: the driver does not say which stream a handle stands
 * for then. The heap does not know of
 * graphs: what a graph uses is to be kept as long as the graph may run. Fills that zero_on_alloc or
 * zero_on_free asks for become part of the graph. Where nothing can be had without a wait the request
 * fails, and the pool "driver" has nothing for a stream that is captured.
 */

#ifndef GPUHEAP_H
#define GPUHEAP_H

#include <stddef.h>
#include <stdint.h>

// The version that the header is of, as in MAJOR.MINOR.PATCH.
#define GPUHEAP_VERSION_MAJOR 0

// See GPUHEAP_VERSION_MAJOR.
#define GPUHEAP_VERSION_MINOR 1

// See GPUHEAP_VERSION_MAJOR.
#define GPUHEAP_VERSION_PATCH 0

// How a call went.
typedef enum gpuheap_status {
  // It did what it says.
  GPUHEAP_STATUS_OK = 0,
  // There is no memory for the request, after everything was tried to make some, or none for a
  // driver call.
  GPUHEAP_STATUS_OUT_OF_MEMORY = 1,
  // The request means nothing or cannot be done: a null pointer, a name, a limit, a stream.
  GPUHEAP_STATUS_REFUSED = 2,
  // No allocation of this heap is at the address: it was freed before, or is somebody else's.
  GPUHEAP_STATUS_UNKNOWN_ADDRESS = 3,
  // A driver call failed for another reason than memory; the text has its name and code.
  GPUHEAP_STATUS_DRIVER = 4,
  // The machine lacks the device, or a driver that can be used.
  GPUHEAP_STATUS_UNAVAILABLE = 5,
  // The heap can be used no more: it was closed, this is a forked child, or the device was reset
  // through gpuheap.
  GPUHEAP_STATUS_GONE = 6,
  // A bug of gpuheap's, caught. The text is for its issue tracker.
  GPUHEAP_STATUS_INTERNAL = 7,
} gpuheap_status;

// The memory of one device. From gpuheap_open; ended by gpuheap_close.
//
// 128 bytes stay of each that was closed, so that its use is an error and no crash.
typedef struct gpuheap_heap gpuheap_heap;

// Options that gpuheap_open makes a heap of. Set all of it to zero and size to
// sizeof(gpuheap_options): what is zero is as the environment says (the variables GPUHEAP_*), and
// by default as said here.
//
// Later versions add fields at the end. A program that was compiled with fewer gets their defaults;
// one that sets more than the library knows is refused.
typedef struct gpuheap_options {
  // sizeof(gpuheap_options).
  size_t size;
  // How memory is cached: "stitched" (the default; "split" where the device
  // has no virtual memory management), "split", "binned", "simple", "driver" or "none".
  const char *pool;
  // Record that is kept of each allocation for gpuheap_memory_status: "off" (the default),
  // "counts" or "backtraces". Only the last one says where: the lines of a C program are in its
  // stacks alone.
  const char *tracking;
  // Bytes never to be exceeded by what is taken from the driver; 0: as the environment
  // says, else none, and on WSL2 80 % of what is free.
  uint64_t hard_limit;
  // Bytes above which cached memory is given back; 0: as the environment says,
  // else none.
  uint64_t soft_limit;
  // Give all cached memory back once nothing was allocated or freed for that many milliseconds,
  // from a thread that the heap has for it; 0: no such thread.
  uint64_t idle_trim_milliseconds;
  // Fill memory with zeros when it is freed: 1, or -1 for not, whatever the environment says.
  int32_t zero_on_free;
  // Fill memory with zeros when it is allocated: 1, or -1 for not, whatever the environment says.
  int32_t zero_on_alloc;
  // 1: take nothing from the environment.
  int32_t without_environment;
  // 1: streams may end without gpuheap_stream_ended, for hooks that are not told of it. A stream has to
  // be alive in the calls that it is passed to, and in gpuheap_free of what was allocated on it. For
  // that every free asks the driver whether the stream captures a graph and records an event (140 ns
  // on an H200), with 32 of them in use asks about older ones too (130 ns each, one or two), and the
  // driver is asked at every call with a stream whether its handle is a new one's. Frees go past the
  // caches of threads.
  int32_t unannounced_streams;
} gpuheap_options;

// Memory of the device that a heap holds at one moment, in bytes unless said otherwise. Set size
// to sizeof(gpuheap_statistics) before gpuheap_get_statistics; later versions add fields at the
// end, of which a program gets as many as it was compiled with.
typedef struct gpuheap_statistics {
  // sizeof(gpuheap_statistics).
  size_t size;
  // Handed out, as requested.
  uint64_t live;
  // The high-water mark of live.
  uint64_t live_peak;
  // Handed out, rounding included.
  uint64_t live_blocks;
  // How many allocations are handed out.
  uint64_t live_allocations;
  // Freed, their streams not known to be there yet; part of cached.
  uint64_t pending;
  // Free, and held for the next request.
  uint64_t cached;
  // The largest of these in one piece.
  uint64_t largest_cached_block;
  // Counted by the driver for the heap, its own rounding included.
  uint64_t reserved;
  // The high-water mark of reserved.
  uint64_t reserved_peak;
  // How many allocations were ever made.
  uint64_t allocations;
  // Their bytes, as requested.
  uint64_t allocated_bytes;
  // How many were freed.
  uint64_t frees;
  // How many frees there were during which a driver call failed. Their memory is accounted for
  // all the same.
  uint64_t failed_frees;
  // Bytes ever given back to the driver.
  uint64_t given_back;
  // How many driver calls were made for memory, order and figures.
  uint64_t driver_calls;
} gpuheap_statistics;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a device and makes a heap of its memory. Takes no memory yet; blocks while the driver makes
// the device's context, about 0.1 s.
//
// device: "cuda:0" (a real one by its number), "emulated:16GiB" (one of this process, over host
// memory), or null for the one of GPUHEAP_DEVICE, else the first real GPU, else an emulated one.
// options: null for what the environment says.
// heap: where the heap goes; null if this fails.
enum gpuheap_status gpuheap_open(const char *device,
                                 const struct gpuheap_options *options,
                                 struct gpuheap_heap **heap);

// Ends a heap: after a wait for all work of the device everything goes back to the driver, what is
// still allocated too. No other thread may use the heap meanwhile; what uses it afterwards gets
// GPUHEAP_STATUS_GONE. The streams that it was used with may be gone by now, even unannounced if the
// heap was not used since and has no idle trim, which uses it by itself. The wait breaks a capture of a
// graph that a stream of the device is at.
//
// The heap is gone whatever is returned: anything but GPUHEAP_STATUS_OK says what may not have gone
// back. Null is fine. A program need not close its heaps before it ends.
enum gpuheap_status gpuheap_close(struct gpuheap_heap *heap);

// Memory for use on a stream from this point of it on, aligned to 512 bytes, not initialised. A
// request that the cache serves does not wait for the device. Before it gives up for want of memory
// it waits for frees in flight and gives cached memory back, also that of the process's other heaps.
//
// stream: a CUstream or cudaStream_t of the heap's device that is alive; null for the legacy default
// stream. A thread's own default stream (0x2) is refused: it means another one on every thread.
// Before a stream is destroyed, gpuheap_stream_ended has to be called, unless the heap was opened for
// unannounced_streams.
// address: where the address goes; null if this fails, and for 0 bytes, which need no free.
enum gpuheap_status gpuheap_allocate(struct gpuheap_heap *heap,
                                     uint64_t bytes,
                                     void *stream,
                                     void **address);

// Gives memory back in the order of the stream that it was allocated on: it may still be in use
// there, and on no other stream. That stream may have ended, if that was announced; where streams end
// unannounced it is alive, or gpuheap_free_on is called. Any thread may free what another allocated.
// Does not wait for the device, unless memory goes back to the driver by it.
//
// With GPUHEAP_STATUS_UNKNOWN_ADDRESS nothing was freed; with GPUHEAP_STATUS_DRIVER it is freed all
// the same. Null is fine.
enum gpuheap_status gpuheap_free(struct gpuheap_heap *heap,
                                 void *address);

// Gives memory back in the order of another stream than the one that it was allocated on. That stream
// comes after all work on the memory: it has waited, by an event, for the stream that the memory was
// allocated on, at a point after the allocation, and for each other stream that used the memory.
// Otherwise what is allocated next meets work that is not over. The stream is as for
// gpuheap_allocate; where it is refused, nothing is freed.
enum gpuheap_status gpuheap_free_on(struct gpuheap_heap *heap,
                                    void *address,
                                    void *stream);

// Says that a stream is about to be destroyed. To be called before that, when all work on the heap's
// memory was given to it. Afterwards the heap does not touch the handle any more, and what was freed
// on the stream is handed out again once the stream got there. Does not wait for the device. What
// was allocated on the stream may live on, and be freed later.
//
// A stream that ends unannounced is undefined behaviour: the driver may crash when the heap asks it
// how far that stream has got, and where the driver gave the handle to a new stream, memory goes to
// that one while the old one's work on it still runs.
//
// Once for a stream, to each heap that it was used with, while no other thread is in a call with it, and
// after all work on memory that was allocated before, unless that is freed on another stream. If
// this fails the heap still needs the stream: call it again. A stream that the heap never saw, or a
// default stream, is fine and changes nothing. With unannounced_streams it need not be called, and spares
// the heap what it keeps of the stream; then the stream may have ended already, if its handle is not
// another one's yet. No event marks the end of such a stream: memory that is freed on it after this call
// is handed out again only once the heap waited for the whole device since that free, in
// gpuheap_reclaim or gpuheap_reclaim_all, or for a request that would fail otherwise. While a
// stream that the heap knows captures a graph, it does not wait.
enum gpuheap_status gpuheap_stream_ended(struct gpuheap_heap *heap,
                                         void *stream);

// How many bytes were asked for at an address that is allocated.
enum gpuheap_status gpuheap_allocation_size(struct gpuheap_heap *heap,
                                            void *address,
                                            uint64_t *bytes);

// Gives cached memory back to the driver until at least that many bytes went, in few pieces and little
// more than asked for. Waits for frees in flight.
//
// given_back: where the bytes that went are written, less than asked for where less was cached; null
// if nobody wants to know.
enum gpuheap_status gpuheap_reclaim(struct gpuheap_heap *heap,
                                    uint64_t bytes,
                                    uint64_t *given_back);

// Gives all cached memory back to the driver. Waits for frees in flight.
//
// given_back: as for gpuheap_reclaim.
enum gpuheap_status gpuheap_reclaim_all(struct gpuheap_heap *heap, uint64_t *given_back);

// Changes the limits, in bytes taken from the driver, 0 for none, and gives cached memory above them
// back, for which it waits for frees in flight. What is live stays: a heap above its limit takes
// nothing more. The hard limit of the pool "driver" cannot be raised above the one that it was made
// with. What is refused changes nothing.
//
// given_back: as for gpuheap_reclaim.
enum gpuheap_status gpuheap_set_limits(struct gpuheap_heap *heap,
                                       uint64_t soft,
                                       uint64_t hard,
                                       uint64_t *given_back);

// Reads what the heap holds at this moment. Does not wait for the device, unless there is a soft
// limit: then cached memory above it goes back to the driver first.
//
// statistics: its size has to be set to sizeof(gpuheap_statistics).
enum gpuheap_status gpuheap_get_statistics(struct gpuheap_heap *heap,
                                           struct gpuheap_statistics *statistics);

// The heap and its device for people, in several lines of UTF-8: what is taken, allocated and
// cached, the limits and, with tracking on, what is outstanding. Does not wait for the device.
//
// Writes as much as there is room for and a null, which always ends the text; nothing for a capacity
// of 0.
// buffer: may be null if capacity is 0.
// length: where the length of the whole text goes, its null not counted; null if nobody wants to
// know.
enum gpuheap_status gpuheap_memory_status(struct gpuheap_heap *heap,
                                          char *buffer,
                                          size_t capacity,
                                          size_t *length);

// Returns the text of this thread's last call that did not return GPUHEAP_STATUS_OK, in UTF-8:
// what, where, the numbers, what to do. It may have several lines. Empty if there was none; never
// null. Valid until this thread's next call that fails, or its end.
const char *gpuheap_last_error(void);

// The version of the library that was loaded, such as "0.1.0". Never null; needs no freeing.
const char *gpuheap_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GPUHEAP_H */
