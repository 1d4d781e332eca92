// A CUDA driver that has no device: cuDNN can be loaded and asked to plan for a device described to it in words.
#define NO_DEVICE(name)                                                  \
  extern "C" __attribute__((visibility("default"))) int name();          \
  int name() { return 100; /* CUDA_ERROR_NO_DEVICE */ }
NO_DEVICE(cuInit)
NO_DEVICE(cuDriverGetVersion)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuDeviceGetCount)
NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuGetProcAddress)
NO_DEVICE(cuGetProcAddress_v2)
