#include "stream/stream.h"

#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace ortlock::stream {
namespace {

// Never destroyed: when the process ends, sessions that still use a stream may outlive this library's data.
struct Registry {
  std::mutex mutex;
  std::unordered_map<std::uintptr_t, std::unique_ptr<Stream>> streams;
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

CudaStream handle_of(std::uintptr_t address) { return reinterpret_cast<CudaStream>(address); }

// The calling thread's device is `device` while this lives, and is put back after.
class DeviceScope {
 public:
  DeviceScope(const Runtime& cuda, int device) : cuda_(cuda) {
    if (cuda_.get_device(&before_) != kSuccess) before_ = -1;
    if (before_ == device) {
      before_ = -1;
      return;
    }
    code_ = cuda_.set_device(device);
  }
  ~DeviceScope() {
    if (before_ >= 0) cuda_.set_device(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  int code() const { return code_; }

 private:
  const Runtime& cuda_;
  int before_ = -1;
  int code_ = kSuccess;
};

class Event {
 public:
  explicit Event(const Runtime& cuda) : cuda_(cuda) { code_ = cuda_.event_create_with_flags(&handle_, kDisableTiming); }
  ~Event() {
    // Allowed while work waits for it: CUDA frees it when it has happened.
    if (handle_) cuda_.event_destroy(handle_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  int code() const { return code_; }
  CudaEvent handle() const { return handle_; }

 private:
  const Runtime& cuda_;
  CudaEvent handle_ = nullptr;
  int code_ = kSuccess;
};

// Calls work(runtime) on `device` and returns what it returns; what goes wrong before or inside ends in `result.status`.
template <typename Result, typename Work>
Result on_device(std::string_view provider, int device, Work work) noexcept {
  Result result;
  try {
    const Runtime* cuda = runtime(provider);
    if (!cuda) {
      result.status = {kNoRuntime, "no CUDA runtime is loaded in this process"};
      return result;
    }
    const DeviceScope scope(*cuda, device);
    if (scope.code() != kSuccess) {
      result.status = cuda->status(scope.code());
      // Reading an error clears it: it was ours, and nobody else shall find it.
      cuda->get_last_error();
      return result;
    }
    work(*cuda, result);
    if (!result.status.ok()) cuda->get_last_error();
  } catch (const std::exception& error) {
    result.status.code = kNoRuntime;
    try {
      result.status.text = error.what();
    } catch (...) {  // no memory for the text: the code says enough
    }
  }
  return result;
}

struct Only {
  Status status;
};

}  // namespace

Stream::~Stream() {
  const DeviceScope scope(*cuda_, device_);
  if (cuda_->stream_destroy(handle_) != kSuccess) cuda_->get_last_error();
}

Made make(std::string_view provider, int device, bool high) noexcept {
  return on_device<Made>(provider, device, [&](const Runtime& cuda, Made& made) {
    int least = 0;
    int greatest = 0;
    if (made.status = cuda.status(cuda.priority_range(&least, &greatest)); !made.status.ok()) return;
    CudaStream handle = nullptr;
    // Priority 0 is what every other stream has; smaller numbers come first.
    const int code = cuda.stream_create_with_priority(&handle, kNonBlocking, high ? greatest : 0);
    if (made.status = cuda.status(code); !made.status.ok()) return;
    auto stream = std::make_unique<Stream>(cuda, device, handle);
    made.address = reinterpret_cast<std::uintptr_t>(handle);
    auto& all = registry();
    const std::lock_guard lock(all.mutex);
    all.streams[made.address] = std::move(stream);
  });
}

Status destroy(std::uintptr_t address) noexcept {
  std::unique_ptr<Stream> gone;
  try {
    auto& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto found = all.streams.find(address);
    if (found == all.streams.end()) return {kUnknownStream, "no such stream"};
    gone = std::move(found->second);
    all.streams.erase(found);
  } catch (const std::exception&) {
    return {kUnknownStream, {}};
  }
  return {};
}

Drained drain(std::string_view provider, int device, std::uintptr_t address) noexcept {
  return on_device<Drained>(provider, device, [&](const Runtime& cuda, Drained& drained) {
    const auto wait = [&] { return address ? cuda.stream_synchronize(handle_of(address)) : cuda.device_synchronize(); };
    // What an earlier call on this thread left behind says nothing about this stream.
    cuda.get_last_error();
    drained.status = cuda.status(wait());
    if (drained.status.ok()) return;
    cuda.get_last_error();
    // An error of one call is gone now. One that stays is the context's, but for a capture that is under way.
    const int again = wait();
    drained.sticky = again != kSuccess && !of_capture(again);
  });
}

Status order(std::string_view provider, int device, std::uintptr_t stream, std::uintptr_t earlier) noexcept {
  return on_device<Only>(provider, device, [&](const Runtime& cuda, Only& result) {
           const Event event(cuda);
           int code = event.code();
           if (code == kSuccess) code = cuda.event_record(event.handle(), handle_of(earlier));
           if (code == kSuccess) code = cuda.stream_wait_event(handle_of(stream), event.handle(), 0);
           result.status = cuda.status(code);
         })
      .status;
}

Memory memory(std::string_view provider, int device) noexcept {
  return on_device<Memory>(provider, device, [](const Runtime& cuda, Memory& memory) {
    memory.status = cuda.status(cuda.mem_get_info(&memory.free, &memory.total));
  });
}

std::size_t count() noexcept {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.streams.size();
}

}  // namespace ortlock::stream
