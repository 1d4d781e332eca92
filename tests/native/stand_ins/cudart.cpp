#include "stand_ins/cudart.h"

#include <atomic>
#include <cstddef>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

std::atomic<int> streams_made{0}, streams_alive{0}, high_priority{0}, events_made{0}, events_alive{0}, records{0},
    waits{0}, synchronized{0}, devices_synchronized{0}, failing{0}, fail_times{0}, refused{0};
thread_local int device = 0;
thread_local int last_error = 0;

int result(int code) {
  if (code != 0) last_error = code;
  return code;
}

}  // namespace

#define DECLARED(type, name, ...) \
  EXPORTED type name(__VA_ARGS__); \
  type name(__VA_ARGS__)

DECLARED(CudartAccount, cudart_account) {
  return {streams_made, streams_alive, high_priority, events_made, events_alive, records, waits, synchronized,
          devices_synchronized, device};
}
DECLARED(void, cudart_fail, int code, int times) {
  failing = code;
  fail_times = times;
}
DECLARED(void, cudart_refuse, int code) { refused = code; }

DECLARED(int, cudaGetDevice, int* number) {
  *number = device;
  return 0;
}
DECLARED(int, cudaSetDevice, int number) {
  if (number < 0 || number > 1) return result(101);
  device = number;
  return 0;
}
DECLARED(int, cudaDeviceGetStreamPriorityRange, int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}
DECLARED(int, cudaStreamCreateWithPriority, void** stream, unsigned flags, int priority) {
  if (const int code = refused.exchange(0)) return result(code);
  if (flags != 1) return result(1);
  *stream = new int(device);
  ++streams_made;
  ++streams_alive;
  high_priority += priority == -5;
  return 0;
}
DECLARED(int, cudaStreamDestroy, void* stream) {
  delete static_cast<int*>(stream);
  --streams_alive;
  return 0;
}
DECLARED(int, cudaStreamSynchronize, void*) {
  ++synchronized;
  const int left = fail_times.load();
  if (left == 0) return 0;
  if (left > 0) --fail_times;
  return result(failing);
}
DECLARED(int, cudaDeviceSynchronize) {
  ++devices_synchronized;
  return 0;
}
DECLARED(int, cudaStreamWaitEvent, void*, void*, unsigned) {
  ++waits;
  return 0;
}
DECLARED(int, cudaEventCreateWithFlags, void** event, unsigned flags) {
  if (flags != 2) return result(1);
  *event = new int;
  ++events_made;
  ++events_alive;
  return 0;
}
DECLARED(int, cudaEventRecord, void*, void*) {
  ++records;
  return 0;
}
DECLARED(int, cudaEventDestroy, void* event) {
  delete static_cast<int*>(event);
  --events_alive;
  return 0;
}
DECLARED(int, cudaGetLastError) {
  const int code = last_error;
  last_error = 0;
  return code;
}
DECLARED(int, cudaMemGetInfo, std::size_t* free, std::size_t* total) {
  *free = 1000;
  *total = 4000;
  return 0;
}
DECLARED(const char*, cudaGetErrorName, int code) {
  return code == 700 ? "cudaErrorIllegalAddress" : "cudaErrorOther";
}
DECLARED(const char*, cudaGetErrorString, int code) {
  return code == 700 ? "an illegal memory access was encountered" : "another error";
}
