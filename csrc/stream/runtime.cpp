#include "stream/runtime.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "interpose/elf_image.h"

namespace ortlock::stream {
namespace {

// A handle to a library that is loaded already; null otherwise. It is never closed: what is called must stay.
void* loaded(std::string_view prefix) {
  const auto image = interpose::ElfImage::find(prefix);
  return image ? dlopen(image->path().c_str(), RTLD_LAZY | RTLD_NOLOAD) : nullptr;
}

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::unique_ptr<Runtime> bind(void* library) {
  if (!library) return nullptr;
  auto made = std::make_unique<Runtime>();
  const bool complete = find(library, "cudaGetDevice", made->get_device) &&
                        find(library, "cudaSetDevice", made->set_device) &&
                        find(library, "cudaStreamCreateWithPriority", made->stream_create_with_priority) &&
                        find(library, "cudaStreamDestroy", made->stream_destroy) &&
                        find(library, "cudaStreamSynchronize", made->stream_synchronize) &&
                        find(library, "cudaDeviceSynchronize", made->device_synchronize) &&
                        find(library, "cudaStreamWaitEvent", made->stream_wait_event) &&
                        find(library, "cudaDeviceGetStreamPriorityRange", made->priority_range) &&
                        find(library, "cudaEventCreateWithFlags", made->event_create_with_flags) &&
                        find(library, "cudaEventRecord", made->event_record) &&
                        find(library, "cudaEventDestroy", made->event_destroy) &&
                        find(library, "cudaGetLastError", made->get_last_error) &&
                        find(library, "cudaMemGetInfo", made->mem_get_info) &&
                        find(library, "cudaGetErrorName", made->error_name) &&
                        find(library, "cudaGetErrorString", made->error_string);
  return complete ? std::move(made) : nullptr;
}

}  // namespace

Status Runtime::status(int code) const {
  if (code == kSuccess) return {};
  const char* name = error_name(code);
  const char* description = error_string(code);
  return {code, std::string(name ? name : "unknown error") + ": " + (description ? description : "no description")};
}

const Runtime* runtime(std::string_view provider) {
  static std::atomic<const Runtime*> known{nullptr};
  static std::mutex mutex;
  if (const Runtime* found = known.load(std::memory_order_acquire)) return found;
  const std::lock_guard lock(mutex);
  if (const Runtime* found = known.load(std::memory_order_acquire)) return found;
  // A handle's symbols are those of the library and of what it is linked to: with two CUDA runtimes in the process
  // (PyTorch's beside ONNX Runtime's) this is the right one.
  auto made = bind(loaded(provider));
  if (!made) made = bind(loaded("libcudart.so"));
  const Runtime* found = made.release();
  known.store(found, std::memory_order_release);
  return found;
}

}  // namespace ortlock::stream
