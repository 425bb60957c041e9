// The allocation function that PyTorch calls. Out of memory is a C++ exception there: a null pointer
// would become a tensor at address 0. The text begins as PyTorch's own, by which Accelerate and
// Lightning recognise it.

#include <cstddef>
#include <stdexcept>

extern "C" {

// In torch.rs. Writes why it failed, with a null at its end, if it returns null for more than no bytes.
void *gpuheap_torch_allocate(std::ptrdiff_t bytes, int device, void *stream, char *text,
                             std::size_t room);

void *gpuheap_torch_entry(std::ptrdiff_t bytes, int device, void *stream) {
  char text[4096];
  text[0] = 0;
  void *address = gpuheap_torch_allocate(bytes, device, stream, text, sizeof text);
  if (address == nullptr && text[0] != 0) {
    throw std::runtime_error(text);
  }
  return address;
}
}
