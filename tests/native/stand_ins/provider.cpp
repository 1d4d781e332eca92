// A stand-in for ONNX Runtime's CUDA provider: reaches cuDNN's graph and legacy API through imports or dlsym, as built.
#include "stand_ins/provider.h"

#include <dlfcn.h>

#include <cstdint>
#include <vector>

#include "cudnn/abi.h"
#include "cudnn/functions.h"

using namespace ortlock::cudnn;

extern "C" {
#define DECLARE(name, ...) Signature<Function::name>::Type name;
ORTLOCK_CUDNN_HOOKED(DECLARE)
#undef DECLARE
void* stand_in_legacy_descriptor(int type, const int* dims, int count);
void stand_in_free_legacy_descriptor(void* descriptor);
}

namespace {

[[maybe_unused]] void* resolve(const char* name) {
  static void* library = dlopen(STAND_INS "/libcudnn.so.9", RTLD_NOW);
  return dlsym(library, name);
}

// As cudnn-frontend does it: looked up at the first call, kept in a static.
#define THROUGH_DLSYM(name)                                                                    \
  []() -> Signature<Function::name>::Type* {                                                   \
    static void* const resolved = resolve(#name);                                              \
    return reinterpret_cast<Signature<Function::name>::Type*>(resolved);                       \
  }()
#define THROUGH_IMPORT(name) (&name)

#ifdef GRAPH_DLSYM
#define GRAPH(name) THROUGH_DLSYM(name)
#else
#define GRAPH(name) THROUGH_IMPORT(name)
#endif
#ifdef LEGACY_DLSYM
#define LEGACY(name) THROUGH_DLSYM(name)
#define HELPER(name) reinterpret_cast<decltype(&name)>(resolve(#name))
#else
#define LEGACY(name) THROUGH_IMPORT(name)
#define HELPER(name) (&name)
#endif

// A frontend may leave the handle of a plan to its graph.
bool names_handle = true;

// Writable data of this library; the call slots stand on the pages before it.
long touched = 0;

class Made {
 public:
  explicit Made(int kind) { GRAPH(cudnnBackendCreateDescriptor)(kind, &descriptor_); }
  ~Made() {
    if (descriptor_) GRAPH(cudnnBackendDestroyDescriptor)(descriptor_);
  }
  Made(Made&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = nullptr; }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  Made& operator=(Made&&) = delete;
  BackendDescriptor get() const { return descriptor_; }

  void set(int name, int type, std::int64_t count, const void* values) const {
    GRAPH(cudnnBackendSetAttribute)(descriptor_, name, type, count, values);
  }
  void set(int name, const Made& other) const {
    BackendDescriptor value = other.get();
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
  }
  int finalize() const { return GRAPH(cudnnBackendFinalize)(descriptor_); }

 private:
  BackendDescriptor descriptor_ = nullptr;
};

Made tensor(const std::vector<std::int64_t>& dims) {
  Made made(17);
  const int type = 0;
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * dims[i + 1];
  const auto count = static_cast<std::int64_t>(dims.size());
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, count, dims.data());
  made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, count, strides.data());
  made.finalize();
  return made;
}

Made convolution() {
  Made made(1);
  const int type = 0;
  const std::int64_t pads[] = {1, 1}, strides[] = {2, 2}, dilations[] = {1, 1};
  made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  made.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
  made.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
  made.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
  made.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
  made.finalize();
  return made;
}

struct LegacyConvolution {
  void* input;
  void* filter;
  void* output;

  explicit LegacyConvolution(int batch) {
    const int small[] = {batch, 128, 28, 28}, weights[] = {128, 64, 4, 4}, large[] = {batch, 64, 56, 56};
    input = HELPER(stand_in_legacy_descriptor)(0, small, 4);
    filter = HELPER(stand_in_legacy_descriptor)(0, weights, 4);
    output = HELPER(stand_in_legacy_descriptor)(0, large, 4);
  }
  ~LegacyConvolution() {
    for (void* descriptor : {input, filter, output}) HELPER(stand_in_free_legacy_descriptor)(descriptor);
  }
  LegacyConvolution(const LegacyConvolution&) = delete;
  LegacyConvolution& operator=(const LegacyConvolution&) = delete;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* provider_create() {
  void* handle = nullptr;
  GRAPH(cudnnCreate)(&handle);
  return handle;
}

EXPORT void provider_destroy(void* handle) { GRAPH(cudnnDestroy)(handle); }

EXPORT void provider_plans_without_handle() { names_handle = false; }

EXPORT int provider_convolution(void* handle, int batch, bool forward) {
  const Made small = tensor({batch, 128, 28, 28}), weights = tensor({128, 64, 4, 4}), large = tensor({batch, 64, 56, 56});
  const Made parameters = convolution();
  const Made operation(forward ? 10 : 12);
  operation.set(forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, small);
  operation.set(forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, weights);
  operation.set(forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, large);
  operation.set(forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, parameters);
  operation.finalize();
  const Made graph(15);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  graph.finalize();
  const Made query(4);
  query.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  query.finalize();

  std::int64_t count = 0;
  GRAPH(cudnnBackendGetAttribute)(query.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr);
  std::vector<Made> configs;
  std::vector<BackendDescriptor> pointers;
  for (std::int64_t i = 0; i < count; ++i) {
    configs.emplace_back(3);
    pointers.push_back(configs.back().get());
  }
  GRAPH(cudnnBackendGetAttribute)(query.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, pointers.data());
  for (const Made& config : configs) {
    const Made plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (names_handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (plan.finalize() != CUDNN_STATUS_SUCCESS) continue;
    const Made pack(16);
    GRAPH(cudnnBackendExecute)(handle, plan.get(), pack.get());
    const Made engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    BackendDescriptor pointer = engine.get();
    GRAPH(cudnnBackendGetAttribute)(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &pointer);
    std::int64_t index = -1;
    GRAPH(cudnnBackendGetAttribute)(pointer, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &index);
    return static_cast<int>(index);
  }
  return -1;
}

EXPORT int provider_legacy(void* handle, int batch, bool forward, bool timed) {
  const LegacyConvolution conv(batch);
  AlgorithmPerf result{};
  int returned = 0;
  Status status;
  if (forward && timed) {
    status = LEGACY(cudnnFindConvolutionForwardAlgorithmEx)(handle, conv.input, nullptr, conv.filter, nullptr, nullptr,
                                                            conv.output, nullptr, 1, &returned, &result, nullptr, 0);
  } else if (forward) {
    status = LEGACY(cudnnGetConvolutionForwardAlgorithm_v7)(handle, conv.input, conv.filter, nullptr, conv.output, 1,
                                                            &returned, &result);
  } else if (timed) {
    status = LEGACY(cudnnFindConvolutionBackwardDataAlgorithmEx)(handle, conv.filter, nullptr, conv.input, nullptr,
                                                                 nullptr, conv.output, nullptr, 1, &returned, &result,
                                                                 nullptr, 0);
  } else {
    status = LEGACY(cudnnGetConvolutionBackwardDataAlgorithm_v7)(handle, conv.filter, conv.input, nullptr, conv.output,
                                                                 1, &returned, &result);
  }
  if (status != CUDNN_STATUS_SUCCESS || returned != 1) return -1;
  if (forward) {
    status = LEGACY(cudnnConvolutionForward)(handle, nullptr, conv.input, nullptr, conv.filter, nullptr, nullptr,
                                             result.algo, nullptr, result.memory, nullptr, conv.output, nullptr);
  } else {
    status = LEGACY(cudnnConvolutionBackwardData)(handle, nullptr, conv.filter, nullptr, conv.input, nullptr, nullptr,
                                                  result.algo, nullptr, result.memory, nullptr, conv.output, nullptr);
  }
  return status == CUDNN_STATUS_SUCCESS ? result.algo : -1;
}

EXPORT long provider_workspace(void* handle, int batch, bool forward) {
  const LegacyConvolution conv(batch);
  std::size_t largest = 0;
  for (int algorithm = 0; algorithm < 8; ++algorithm) {
    std::size_t bytes = 0;
    const Status status =
        forward ? LEGACY(cudnnGetConvolutionForwardWorkspaceSize)(handle, conv.input, conv.filter, nullptr, conv.output,
                                                                  algorithm, &bytes)
                : LEGACY(cudnnGetConvolutionBackwardDataWorkspaceSize)(handle, conv.filter, conv.input, nullptr,
                                                                       conv.output, algorithm, &bytes);
    if (status == CUDNN_STATUS_SUCCESS && bytes > largest) largest = bytes;
  }
  return static_cast<long>(largest);
}

EXPORT int provider_named(void* handle, int batch, int algorithm) {
  const LegacyConvolution conv(batch);
  return LEGACY(cudnnConvolutionBackwardData)(handle, nullptr, conv.filter, nullptr, conv.input, nullptr, nullptr,
                                              algorithm, nullptr, 0, nullptr, conv.output, nullptr);
}

EXPORT long provider_touch() { return __atomic_add_fetch(&touched, 1, __ATOMIC_RELAXED); }
