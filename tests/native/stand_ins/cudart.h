// A CUDA runtime without a device that keeps account of what it is asked.
#pragma once

struct CudartAccount {
  int streams_made;
  int streams_alive;
  int high_priority;
  int events_made;
  int events_alive;
  int records;
  int waits;
  int synchronized;
  int devices_synchronized;
  int device;  // of the calling thread
};

using CudartAsk = CudartAccount (*)();
// The next `times` synchronizations fail with `code`; -1: all of them, as after a fault on the device.
using CudartFail = void (*)(int code, int times);
// The next stream cannot be made.
using CudartRefuse = void (*)(int code);
