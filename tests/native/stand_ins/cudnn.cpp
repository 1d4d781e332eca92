// A stand-in for cuDNN with its binary interface and the behaviour that matters here: a ranking of engines some of
// which are nondeterministic, plans that cannot be made, and a timed search whose winner changes from call to call.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "cudnn/abi.h"
#include "stand_ins/cudnn.h"

using namespace ortlock::cudnn;

namespace {

struct Value {
  int type;
  std::vector<std::byte> bytes;
};

struct Descriptor {
  int kind;
  std::map<int, Value> values;
  int engine = 0;
};

struct LegacyDescriptor {
  int type;
  std::vector<int> dims;
};

std::atomic<long> live{0};
std::atomic<long> calls{0};  // of the graph API, but for executions and what they need
std::atomic<long> executed{0};
std::atomic<unsigned> timed{0};
std::atomic<long> finalized{0};
std::atomic<long> workspace_asked{0};

const Descriptor* follow(const Descriptor* from, int name) {
  const auto found = from->values.find(name);
  if (found == from->values.end()) return nullptr;
  const Descriptor* target = nullptr;
  std::memcpy(&target, found->second.bytes.data(), sizeof target);
  return target;
}

// The batch size of the first operation's input tells which case is asked for.
std::int64_t batch_of(const Descriptor* graph) {
  const Descriptor* operation = follow(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  for (const int name : {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}) {
    if (const Descriptor* tensor = follow(operation, name)) {
      std::int64_t batch = 0;
      std::memcpy(&batch, tensor->values.at(CUDNN_ATTR_TENSOR_DIMENSIONS).bytes.data(), sizeof batch);
      return batch;
    }
  }
  return 0;
}

std::vector<int> ranking_for(std::int64_t batch) {
  if (batch == kOnlyNondeterministic) return {kNondeterministicEngine, kNondeterministicEngine + 1};
  if (batch == kDeterministicCannotBeMade) return {kNondeterministicEngine, kBrokenEngine};
  if (batch == kSecondDeterministicWorks) return {kNondeterministicEngine, kBrokenEngine, kDeterministicEngine};
  if (batch == kHasPlainEngine) return {kNondeterministicEngine, kDeterministicEngine, kPlainEngine};
  if (batch == kFirstIsDeterministic) return {kDeterministicEngine, kNondeterministicEngine};
  return {kNondeterministicEngine, kDeterministicEngine, kOtherDeterministicEngine};
}

AlgorithmPerf perf(int algorithm, bool deterministic) {
  AlgorithmPerf result{};
  result.algo = algorithm;
  result.memory = 1000 + static_cast<std::size_t>(algorithm);
  result.determinism = deterministic ? CUDNN_DETERMINISTIC : 0;
  return result;
}

Status answer(const std::vector<AlgorithmPerf>& ranking, int requested, int* returned, AlgorithmPerf* results) {
  *returned = std::min<int>(requested, static_cast<int>(ranking.size()));
  std::copy_n(ranking.begin(), *returned, results);
  return CUDNN_STATUS_SUCCESS;
}

std::vector<AlgorithmPerf> legacy_ranking(bool forward, const LegacyDescriptor* input) {
  if (forward) return {perf(1, true), perf(6, true), perf(0, true)};
  if (input->dims[0] == kOnlyNondeterministic) return {perf(0, false)};
  return {perf(0, false), perf(1, true), perf(4, true)};
}

// Another winner at every call, as timing gives.
Status timed_search(bool forward, const void* input, int requested, int* returned, AlgorithmPerf* results) {
  auto ranking = legacy_ranking(forward, static_cast<const LegacyDescriptor*>(input));
  std::rotate(ranking.begin(), ranking.begin() + timed++ % ranking.size(), ranking.end());
  return answer(ranking, requested, returned, results);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT long stand_in_calls() { return calls; }
EXPORT long stand_in_live_descriptors() { return live; }
EXPORT long stand_in_executed() { return executed; }
EXPORT long stand_in_finalized() { return finalized; }
EXPORT long stand_in_workspace_asked() { return workspace_asked; }

EXPORT void* stand_in_legacy_descriptor(int type, const int* dims, int count) {
  return new LegacyDescriptor{type, {dims, dims + count}};
}
EXPORT void stand_in_free_legacy_descriptor(void* descriptor) { delete static_cast<LegacyDescriptor*>(descriptor); }

EXPORT std::size_t cudnnGetVersion() { return 91900; }

EXPORT Status cudnnCreate(Handle* handle) {
  *handle = new int(0);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT Status cudnnDestroy(Handle handle) {
  delete static_cast<int*>(handle);
  return CUDNN_STATUS_SUCCESS;
}

EXPORT Status cudnnBackendCreateDescriptor(int kind, BackendDescriptor* descriptor) {
  calls += kind != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
  *descriptor = new Descriptor{kind, {}, 0};
  ++live;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT Status cudnnBackendDestroyDescriptor(BackendDescriptor descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  --live;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT Status cudnnBackendSetAttribute(BackendDescriptor descriptor, int name, int type, std::int64_t count,
                                       const void* values) {
  const std::size_t width = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_BACKEND_DESCRIPTOR || type == CUDNN_TYPE_HANDLE ? 8 : 4;
  const auto* bytes = static_cast<const std::byte*>(values);
  static_cast<Descriptor*>(descriptor)->values[name] = {type, {bytes, bytes + static_cast<std::size_t>(count) * width}};
  return CUDNN_STATUS_SUCCESS;
}

EXPORT Status cudnnBackendGetAttribute(BackendDescriptor descriptor, int name, int, std::int64_t requested,
                                       std::int64_t* count, void* values) {
  const auto* from = static_cast<const Descriptor*>(descriptor);
  ++calls;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const auto ranking = ranking_for(batch_of(follow(from, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)));
      if (!values) {
        *count = static_cast<std::int64_t>(ranking.size());
        return CUDNN_STATUS_SUCCESS;
      }
      *count = std::min(requested, static_cast<std::int64_t>(ranking.size()));
      for (std::int64_t i = 0; i < *count; ++i) {
        static_cast<Descriptor**>(values)[i]->engine = ranking[static_cast<std::size_t>(i)];
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      (*static_cast<Descriptor**>(values))->engine = from->engine;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
      *count = std::min<std::int64_t>(requested, 2);  // asked for none, it tells none, as the real one does
      for (std::int64_t i = 0; i < *count; ++i) {
        static_cast<Descriptor**>(values)[i]->engine = static_cast<int>(i) + 2;  // knob types 2 and 3
      }
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
      *static_cast<int*>(values) = from->engine;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE:
      *static_cast<std::int64_t*>(values) = from->engine == 2 ? 2 : 0;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      *static_cast<std::int64_t*>(values) = from->engine;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
      auto* notes = static_cast<int*>(values);
      *count = 0;
      if (from->engine != kPlainEngine) notes[(*count)++] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
      if (from->engine / 10 == kNondeterministicEngine / 10) notes[(*count)++] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      *count = 0;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      *static_cast<std::int64_t*>(values) = 4096;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    default:
      return 2000;  // CUDNN_STATUS_BAD_PARAM
  }
}

EXPORT Status cudnnBackendFinalize(BackendDescriptor descriptor) {
  auto* made = static_cast<Descriptor*>(descriptor);
  ++calls;
  if (made->kind == CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    // An engine that was named by hand, not filled in by a query.
    std::int64_t index = 0;
    std::memcpy(&index, made->values.at(CUDNN_ATTR_ENGINE_GLOBAL_INDEX).bytes.data(), sizeof index);
    made->engine = static_cast<int>(index);
  }
  if (const Descriptor* engine = follow(made, CUDNN_ATTR_ENGINECFG_ENGINE)) made->engine = engine->engine;
  if (made->kind != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  const Descriptor* config = follow(made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (!config || config->engine == kBrokenEngine) return CUDNN_STATUS_NOT_SUPPORTED;
  ++finalized;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT Status cudnnBackendExecute(Handle, BackendDescriptor, BackendDescriptor) {
  ++executed;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT Status cudnnGetTensorNdDescriptor(void* descriptor, int, int* type, int* count, int* dims, int* strides) {
  const auto* tensor = static_cast<const LegacyDescriptor*>(descriptor);
  *type = tensor->type;
  *count = static_cast<int>(tensor->dims.size());
  int stride = 1;
  for (std::size_t i = tensor->dims.size(); i-- > 0;) {
    dims[i] = tensor->dims[i];
    strides[i] = stride;
    stride *= tensor->dims[i];
  }
  return CUDNN_STATUS_SUCCESS;
}

EXPORT Status cudnnGetFilterNdDescriptor(void* descriptor, int, int* type, int* format, int* count, int* dims) {
  int strides[8];
  *format = 0;
  return cudnnGetTensorNdDescriptor(descriptor, 8, type, count, dims, strides);
}

EXPORT Status cudnnGetConvolutionNdDescriptor(void*, int, int* count, int* pads, int* strides, int* dilations,
                                              int* mode, int* type) {
  *count = 2;
  for (int i = 0; i < 2; ++i) {
    pads[i] = 1;
    strides[i] = 2;
    dilations[i] = 1;
  }
  *mode = 1;
  *type = 0;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT Status cudnnGetConvolutionGroupCount(void*, int* groups) {
  *groups = 4;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT Status cudnnGetConvolutionForwardAlgorithm_v7(Handle, void* x, void*, void*, void*, int requested, int* returned,
                                                     AlgorithmPerf* results) {
  return answer(legacy_ranking(true, static_cast<LegacyDescriptor*>(x)), requested, returned, results);
}
EXPORT Status cudnnGetConvolutionBackwardDataAlgorithm_v7(Handle, void*, void* dy, void*, void*, int requested,
                                                          int* returned, AlgorithmPerf* results) {
  return answer(legacy_ranking(false, static_cast<LegacyDescriptor*>(dy)), requested, returned, results);
}
EXPORT Status cudnnFindConvolutionForwardAlgorithmEx(Handle, void* x, const void*, void*, const void*, void*, void*,
                                                     void*, int requested, int* returned, AlgorithmPerf* results,
                                                     void*, std::size_t) {
  return timed_search(true, x, requested, returned, results);
}
EXPORT Status cudnnFindConvolutionBackwardDataAlgorithmEx(Handle, void*, const void*, void* dy, const void*, void*,
                                                          void*, void*, int requested, int* returned,
                                                          AlgorithmPerf* results, void*, std::size_t) {
  return timed_search(false, dy, requested, returned, results);
}
// Algorithm 2 is not supported; the others want 2000 bytes and more.
static Status workspace_of(int algorithm, std::size_t* bytes) {
  ++workspace_asked;
  *bytes = 2000 + static_cast<std::size_t>(algorithm);
  return algorithm == 2 ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}
EXPORT Status cudnnGetConvolutionForwardWorkspaceSize(Handle, void*, void*, void*, void*, int algorithm,
                                                      std::size_t* bytes) {
  return workspace_of(algorithm, bytes);
}
EXPORT Status cudnnGetConvolutionBackwardDataWorkspaceSize(Handle, void*, void*, void*, void*, int algorithm,
                                                           std::size_t* bytes) {
  return workspace_of(algorithm, bytes);
}
EXPORT Status cudnnConvolutionForward(Handle, const void*, void*, const void*, void*, const void*, void*, int, void*,
                                      std::size_t, const void*, void*, void*) {
  ++executed;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT Status cudnnConvolutionBackwardData(Handle, const void*, void*, const void*, void*, const void*, void*, int,
                                           void*, std::size_t, const void*, void*, void*) {
  ++executed;
  return CUDNN_STATUS_SUCCESS;
}
