// The intercepted functions of cuDNN: names, types, and how to call the real ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cudnn/abi.h"
#include "interpose/interposer.h"

namespace ortlock::cudnn {

// X(function, return type (arguments)): every function that a hook stands in for.
#define ORTLOCK_CUDNN_HOOKED(X)                                                                                       \
  X(cudnnCreate, Status(Handle*))                                                                                     \
  X(cudnnDestroy, Status(Handle))                                                                                     \
  X(cudnnBackendCreateDescriptor, Status(int, BackendDescriptor*))                                                    \
  X(cudnnBackendDestroyDescriptor, Status(BackendDescriptor))                                                         \
  X(cudnnBackendSetAttribute, Status(BackendDescriptor, int, int, std::int64_t, const void*))                         \
  X(cudnnBackendGetAttribute, Status(BackendDescriptor, int, int, std::int64_t, std::int64_t*, void*))                \
  X(cudnnBackendFinalize, Status(BackendDescriptor))                                                                  \
  X(cudnnBackendExecute, Status(Handle, BackendDescriptor, BackendDescriptor))                                        \
  X(cudnnBackendInitialize, Status(BackendDescriptor))                                                                \
  X(cudnnBackendPopulateCudaGraph, Status(Handle, BackendDescriptor, BackendDescriptor, void*))                       \
  X(cudnnBackendUpdateCudaGraph, Status(Handle, BackendDescriptor, BackendDescriptor, void*))                         \
  X(cudnnFindConvolutionForwardAlgorithm,                                                                             \
    Status(Handle, TensorDescriptor, FilterDescriptor, ConvolutionDescriptor, TensorDescriptor, int, int*,            \
           AlgorithmPerf*))                                                                                           \
  X(cudnnFindConvolutionForwardAlgorithmEx,                                                                           \
    Status(Handle, TensorDescriptor, const void*, FilterDescriptor, const void*, ConvolutionDescriptor,               \
           TensorDescriptor, void*, int, int*, AlgorithmPerf*, void*, std::size_t))                                   \
  X(cudnnGetConvolutionForwardAlgorithm_v7,                                                                           \
    Status(Handle, TensorDescriptor, FilterDescriptor, ConvolutionDescriptor, TensorDescriptor, int, int*,            \
           AlgorithmPerf*))                                                                                           \
  X(cudnnFindConvolutionBackwardDataAlgorithm,                                                                        \
    Status(Handle, FilterDescriptor, TensorDescriptor, ConvolutionDescriptor, TensorDescriptor, int, int*,            \
           AlgorithmPerf*))                                                                                           \
  X(cudnnFindConvolutionBackwardDataAlgorithmEx,                                                                      \
    Status(Handle, FilterDescriptor, const void*, TensorDescriptor, const void*, ConvolutionDescriptor,               \
           TensorDescriptor, void*, int, int*, AlgorithmPerf*, void*, std::size_t))                                   \
  X(cudnnGetConvolutionBackwardDataAlgorithm_v7,                                                                      \
    Status(Handle, FilterDescriptor, TensorDescriptor, ConvolutionDescriptor, TensorDescriptor, int, int*,            \
           AlgorithmPerf*))                                                                                           \
  X(cudnnGetConvolutionForwardWorkspaceSize,                                                                          \
    Status(Handle, TensorDescriptor, FilterDescriptor, ConvolutionDescriptor, TensorDescriptor, int, std::size_t*))   \
  X(cudnnGetConvolutionBackwardDataWorkspaceSize,                                                                     \
    Status(Handle, FilterDescriptor, TensorDescriptor, ConvolutionDescriptor, TensorDescriptor, int, std::size_t*))   \
  X(cudnnConvolutionForward,                                                                                          \
    Status(Handle, const void*, TensorDescriptor, const void*, FilterDescriptor, const void*, ConvolutionDescriptor,  \
           int, void*, std::size_t, const void*, TensorDescriptor, void*))                                            \
  X(cudnnConvolutionBiasActivationForward,                                                                            \
    Status(Handle, const void*, TensorDescriptor, const void*, FilterDescriptor, const void*, ConvolutionDescriptor,  \
           int, void*, std::size_t, const void*, TensorDescriptor, const void*, TensorDescriptor, const void*, void*, \
           TensorDescriptor, void*))                                                                                  \
  X(cudnnConvolutionBackwardData,                                                                                     \
    Status(Handle, const void*, FilterDescriptor, const void*, TensorDescriptor, const void*, ConvolutionDescriptor,  \
           int, void*, std::size_t, const void*, TensorDescriptor, void*))

// Index of each hooked function in counters and in the hook table.
enum class Function : std::size_t {
#define ORTLOCK_ENUM(name, type) name,
  ORTLOCK_CUDNN_HOOKED(ORTLOCK_ENUM)
#undef ORTLOCK_ENUM
      count_
};
constexpr std::size_t kFunctionCount = static_cast<std::size_t>(Function::count_);

// The type of a hooked function.
template <Function>
struct Signature;
#define ORTLOCK_SIGNATURE(name, ...)   \
  template <>                          \
  struct Signature<Function::name> {   \
    using Type = __VA_ARGS__;          \
  };
ORTLOCK_CUDNN_HOOKED(ORTLOCK_SIGNATURE)
#undef ORTLOCK_SIGNATURE

const char* function_name(Function function);

// The hook table, in the order of Function.
const std::vector<interpose::Hook*>& hook_table();

// The interposer of this process. Never destroyed: hooks may run during exit.
interpose::Interposer& interposer();

// The real function: the one that the provider would have called, or that its cuDNN exports; null if there is none.
void* real_address(Function function);

template <Function F>
typename Signature<F>::Type* real() {
  return reinterpret_cast<typename Signature<F>::Type*>(real_address(F));
}

}  // namespace ortlock::cudnn
