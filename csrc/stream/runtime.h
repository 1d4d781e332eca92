// The part of the CUDA runtime's ABI that ortlock calls, found in the runtime that ONNX Runtime has loaded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ortlock::stream {

using CudaStream = void*;
using CudaEvent = void*;

constexpr int kSuccess = 0;
constexpr int kNonBlocking = 1;     // cudaStreamNonBlocking
constexpr int kDisableTiming = 2;   // cudaEventDisableTiming
constexpr int kNoRuntime = -1;      // ours: no CUDA runtime in this process, or one without a function
constexpr int kUnknownStream = -2;  // ours: no stream of ours has that address

// Errors 900 to 909 tell of a stream capture. They last as long as the capture, but the context is whole.
constexpr bool of_capture(int code) { return code >= 900 && code <= 909; }

struct Status {
  int code = kSuccess;
  std::string text;  // CUDA's own: name and description

  bool ok() const { return code == kSuccess; }
};

struct Runtime {
  int (*get_device)(int*) = nullptr;
  int (*set_device)(int) = nullptr;
  int (*stream_create_with_priority)(CudaStream*, unsigned, int) = nullptr;
  int (*stream_destroy)(CudaStream) = nullptr;
  int (*stream_synchronize)(CudaStream) = nullptr;
  int (*device_synchronize)() = nullptr;
  int (*stream_wait_event)(CudaStream, CudaEvent, unsigned) = nullptr;
  int (*priority_range)(int*, int*) = nullptr;
  int (*event_create_with_flags)(CudaEvent*, unsigned) = nullptr;
  int (*event_record)(CudaEvent, CudaStream) = nullptr;
  int (*event_destroy)(CudaEvent) = nullptr;
  int (*get_last_error)() = nullptr;
  int (*mem_get_info)(std::size_t*, std::size_t*) = nullptr;
  const char* (*error_name)(int) = nullptr;
  const char* (*error_string)(int) = nullptr;

  // What a call returned, with CUDA's words for it.
  Status status(int code) const;
};

// The runtime that the library `provider` is linked to, else the first one in the process; null as long as there is
// none. Once found it stays.
const Runtime* runtime(std::string_view provider);

}  // namespace ortlock::stream
