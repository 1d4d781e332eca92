// A provider that is linked to its CUDA runtime, as ONNX Runtime's is.
extern "C" int cudaGetLastError();
extern "C" __attribute__((visibility("default"))) int provider_last_error();
int provider_last_error() { return cudaGetLastError(); }
