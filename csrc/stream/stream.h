// Streams of ortlock's own: made, ordered after others, drained, destroyed. Nothing here throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stream/runtime.h"

namespace ortlock::stream {

// One non-blocking CUDA stream; destroyed with the object.
class Stream {
 public:
  Stream(const Runtime& cuda, int device, CudaStream handle) : cuda_(&cuda), device_(device), handle_(handle) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  Stream(Stream&&) = delete;
  Stream& operator=(Stream&&) = delete;

  int device() const { return device_; }
  CudaStream handle() const { return handle_; }

 private:
  const Runtime* cuda_;
  int device_;
  CudaStream handle_;
};

struct Made {
  Status status;
  std::uintptr_t address = 0;
};

// What is left of a stream's work.
struct Drained {
  Status status;        // what the work had run into; success for a stream that is clean
  bool sticky = false;  // and every later call gets it too: the context is lost
};

struct Memory {
  Status status;
  std::size_t free = 0;
  std::size_t total = 0;
};

// A new stream on `device`, of the highest priority where `high`. It lives until destroy(), and is left to the
// operating system when the process ends before that.
Made make(std::string_view provider, int device, bool high) noexcept;
Status destroy(std::uintptr_t address) noexcept;

// Waits until all work of the stream is done; any stream of `device` may be given, not only ours. Address 0: of all
// streams of the device.
Drained drain(std::string_view provider, int device, std::uintptr_t address) noexcept;

// Makes later work of `stream` wait for what is in `earlier` now; the calling thread does not wait.
Status order(std::string_view provider, int device, std::uintptr_t stream, std::uintptr_t earlier) noexcept;

Memory memory(std::string_view provider, int device) noexcept;

// How many streams of ours there are.
std::size_t count() noexcept;

}  // namespace ortlock::stream
