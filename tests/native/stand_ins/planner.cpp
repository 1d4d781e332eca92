// A stand-in for ONNX Runtime's CUDA provider that plans with the real cuDNN, for a device described in words.
// It reaches cuDNN through dlsym, as ONNX Runtime 1.31 does.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "cudnn/abi.h"
#include "cudnn/functions.h"

using namespace ortlock::cudnn;

namespace {

void* library = nullptr;

template <Function F>
typename Signature<F>::Type* call(const char* name) {
  static void* const resolved = dlsym(library, name);
  return reinterpret_cast<typename Signature<F>::Type*>(resolved);
}
#define CUDNN(name) call<Function::name>(#name)

class Made {
 public:
  explicit Made(int kind) { CUDNN(cudnnBackendCreateDescriptor)(kind, &descriptor_); }
  ~Made() {
    if (descriptor_) CUDNN(cudnnBackendDestroyDescriptor)(descriptor_);
  }
  Made(Made&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = nullptr; }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  Made& operator=(Made&&) = delete;
  BackendDescriptor get() const { return descriptor_; }

  void set(int name, int type, std::int64_t count, const void* values) {
    failed_ |= CUDNN(cudnnBackendSetAttribute)(descriptor_, name, type, count, values) != CUDNN_STATUS_SUCCESS;
  }
  void set(int name, const Made& other) {
    BackendDescriptor value = other.get();
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
  }
  bool finalize() { return CUDNN(cudnnBackendFinalize)(descriptor_) == CUDNN_STATUS_SUCCESS && !failed_; }

 private:
  BackendDescriptor descriptor_ = nullptr;
  bool failed_ = false;
};

Made tensor(const std::int64_t* dims, std::int64_t id) {
  Made made(17);
  const int type = 0;
  const std::int64_t alignment = 16;
  std::int64_t strides[4] = {0, 0, 0, 1};
  for (int i = 2; i >= 0; --i) strides[i] = strides[i + 1] * dims[i + 1];
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
  made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
  made.set(906, CUDNN_TYPE_INT64, 1, &id);
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  made.finalize();
  return made;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT bool planner_open(const char* path) { return (library = dlopen(path, RTLD_NOW | RTLD_GLOBAL)) != nullptr; }

// Plans a float convolution (kernel k, stride s, padding 1) for the device of `device_json` and takes the first
// candidate whose plan can be made. `small` and `large` are the shapes on its strided and unstrided side.
// Returns the engine; negative where something failed: the number of the step.
EXPORT std::int64_t planner_plan(const char* device_json, bool forward, int mode, const std::int64_t* small,
                                 const std::int64_t* weights, const std::int64_t* large, std::int64_t stride,
                                 std::int64_t padding) {
  const Made small_tensor = tensor(small, 1), filter = tensor(weights, 2), large_tensor = tensor(large, 3);
  Made parameters(1);
  const int type = 0, cross_correlation = 1;
  const std::int64_t pads[] = {padding, padding}, strides[] = {stride, stride}, dilations[] = {1, 1}, spatial = 2;
  parameters.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  parameters.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, 7, 1, &cross_correlation);
  parameters.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
  parameters.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
  parameters.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
  parameters.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
  parameters.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial);
  if (!parameters.finalize()) return -1;

  Made operation(forward ? 10 : 12);
  const float one = 1, zero = 0;
  const int first = forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA;
  operation.set(first, CUDNN_TYPE_FLOAT, 1, &one);
  operation.set(first + 1, CUDNN_TYPE_FLOAT, 1, &zero);
  operation.set(first + 2, parameters);
  operation.set(first + 3, filter);
  operation.set(forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, small_tensor);
  operation.set(forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, large_tensor);
  if (!operation.finalize()) return -2;
  Made graph(15);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  if (!graph.finalize()) return -3;

  Made device(38);
  device.set(2702, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(std::strlen(device_json)) + 1, device_json);
  if (!device.finalize()) return -4;
  Made query(4);
  query.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  query.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  query.set(204, device);
  if (!query.finalize()) return -5;

  std::int64_t count = 0;
  CUDNN(cudnnBackendGetAttribute)(query.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr);
  std::vector<Made> configs;
  std::vector<BackendDescriptor> pointers;
  for (std::int64_t i = 0; i < count; ++i) {
    configs.emplace_back(3);
    pointers.push_back(configs.back().get());
  }
  CUDNN(cudnnBackendGetAttribute)(query.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, pointers.data());
  for (std::int64_t i = 0; i < count; ++i) {
    Made plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[static_cast<std::size_t>(i)]);
    if (!plan.finalize()) continue;
    const Made engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    BackendDescriptor pointer = engine.get();
    CUDNN(cudnnBackendGetAttribute)(pointers[static_cast<std::size_t>(i)], CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &pointer);
    std::int64_t index = -1;
    CUDNN(cudnnBackendGetAttribute)(pointer, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &index);
    return index;
  }
  return -6;
}
