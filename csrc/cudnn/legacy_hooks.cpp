// The legacy API: cudnnFindConvolution* times the candidates, so its choice changes from session to session, and what
// it considers depends on the workspace offered. Both it and cudnnGetConvolution*_v7 are answered from cuDNN's untimed
// ranking, deterministic algorithms only.
#include <algorithm>
#include <string_view>

#include "cudnn/attribution.h"
#include "cudnn/hooks.h"
#include "cudnn/legacy_book.h"

namespace ortlock::cudnn {
namespace {

constexpr const char* kTimedSearch = "TIMED_SEARCH";

// What the provider runs where it names an algorithm itself (IMPLICIT_PRECOMP_GEMM; backward data: ALGO_1).
constexpr int kDefaultAlgorithm = 1;

PlanRecord algorithm_record(const Description& what, const AlgorithmPerf& perf, const char* status) {
  PlanRecord record;
  record.api = "legacy";
  record.what = what;
  record.engine = perf.algo;
  record.math_type = perf.math_type;
  record.workspace_bytes = static_cast<std::int64_t>(perf.memory);
  if (perf.determinism != CUDNN_DETERMINISTIC) record.numerical_notes.emplace_back("NONDETERMINISTIC");
  record.status = status;
  return record;
}

// What the caller wants filled in.
struct Answer {
  int requested;
  int* returned;
  AlgorithmPerf* results;
};

// Records the first algorithm of an answer that cuDNN gave to the provider itself.
void record_first(Session& session, const Convolution& convolution, const Answer& answer, bool timed) noexcept {
  try {
    if (*answer.returned < 1) return;
    const AlgorithmPerf& first = answer.results[0];
    const bool safe = first.determinism == CUDNN_DETERMINISTIC && !timed;
    PlanRecord record = algorithm_record(convolution.describe(), first, safe ? kUsed : kLetThrough);
    if (timed) record.behavior_notes.emplace_back(kTimedSearch);
    session.record(std::move(record));
  } catch (...) {
    interposer().note_fault("legacy convolution: a choice could not be recorded");
  }
}

// Answers a search. `original` is the call that the provider made, `timed` says whether it times the candidates.
template <typename Original>
Status choose(const Convolution& convolution, const Answer& answer, bool timed, Original original) {
  const SessionPtr session = session_for(convolution.handle);
  if (!session || answer.requested < 1 || !answer.returned || !answer.results) return original();
  const auto pass_through = [&] {
    const Status status = original();
    if (status == CUDNN_STATUS_SUCCESS) record_first(*session, convolution, answer, timed);
    return status;
  };
  if (!session->enforces()) return pass_through();

  const LockPtr lock = session->lock();
  const bool bound = lock && lock->exclusive && session->policy() == Policy::strict;
  const LegacyEntryPtr entry = legacy_book().entry(convolution, lock);
  if (bound && entry->source != std::string_view(kFromLockfile)) {
    session->record_failure({entry->what, 0, false, entry->lock_failed ? kCannotBeMade : kNotLocked, entry->id});
    *answer.returned = 0;
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  if (!entry->allowed.empty()) {
    const auto record = [&](const AlgorithmPerf& perf, const char* status) {
      PlanRecord made = algorithm_record(entry->what, perf, status);
      made.key = entry->id;
      made.source = entry->source;
      session->record(std::move(made));
    };
    for (const auto& perf : entry->refused) record(perf, kRefused);
    record(entry->allowed[0], kUsed);
    *answer.returned = std::min(answer.requested, static_cast<int>(entry->allowed.size()));
    std::copy_n(entry->allowed.begin(), *answer.returned, answer.results);
    return CUDNN_STATUS_SUCCESS;
  }

  const bool let_through = session->policy() == Policy::pin;
  session->record_failure({entry->what, entry->candidates, let_through, kNothingDeterministic, entry->id});
  if (let_through) return pass_through();
  *answer.returned = 0;
  return entry->status == CUDNN_STATUS_SUCCESS ? CUDNN_STATUS_NOT_SUPPORTED : entry->status;
}

template <typename Original>
Status search(Function function, bool timed, const Convolution& convolution, const Answer& answer, Original original) {
  count_call(function);
  if (!interposer().active()) return original();
  return guarded(function, [&] { return choose(convolution, answer, timed, original); }, original);
}

// The provider asks for the workspace of every algorithm before it searches one, which costs more than the search.
template <typename Original>
Status workspace(Function function, const Convolution& convolution, int algorithm, std::size_t* bytes,
                 Original original) {
  count_call(function);
  if (!interposer().active() || !bytes) return original();
  const auto judged = [&]() -> Status {
    const SessionPtr session = session_for(convolution.handle);
    if (!session || !session->enforces()) return original();
    const LegacyEntryPtr entry = legacy_book().entry(convolution, session->lock());
    if (entry->allowed.empty()) return original();
    if (algorithm == entry->allowed[0].algo) {
      *bytes = entry->allowed[0].memory;
      return CUDNN_STATUS_SUCCESS;
    }
    // What will not run needs no workspace, unless the provider names it itself.
    return algorithm == kDefaultAlgorithm ? original() : CUDNN_STATUS_NOT_SUPPORTED;
  };
  return guarded(function, judged, original);
}

// An algorithm that no search returned can still be nondeterministic: the provider may name one outright.
template <typename Original>
Status execute(Function function, const Convolution& convolution, bool nondeterministic, int algorithm,
               Original original) {
  count_call(function, true);
  if (!nondeterministic || !interposer().active()) return original();
  const auto judged = [&]() -> Status {
    const SessionPtr session = session_for(convolution.handle);
    if (!session) return original();
    const bool refuse = session->policy() == Policy::strict;
    const Description what = convolution.describe();
    if (session->enforces()) session->record_failure({what, 1, !refuse});
    AlgorithmPerf perf{};
    perf.algo = algorithm;
    session->record(algorithm_record(what, perf, refuse ? kRefused : kLetThrough));
    return refuse ? CUDNN_STATUS_NOT_SUPPORTED : original();
  };
  return guarded(function, judged, original);
}

}  // namespace

Status cudnnFindConvolutionForwardAlgorithm_hook(Handle handle, TensorDescriptor x, FilterDescriptor w,
                                                 ConvolutionDescriptor convolution, TensorDescriptor y, int requested,
                                                 int* returned, AlgorithmPerf* results) {
  return search(Function::cudnnFindConvolutionForwardAlgorithm, true, {handle, true, x, w, convolution, y},
                {requested, returned, results}, [&] {
                  return real<Function::cudnnFindConvolutionForwardAlgorithm>()(handle, x, w, convolution, y,
                                                                                requested, returned, results);
                });
}

Status cudnnFindConvolutionForwardAlgorithmEx_hook(Handle handle, TensorDescriptor x, const void* x_data,
                                                   FilterDescriptor w, const void* w_data,
                                                   ConvolutionDescriptor convolution, TensorDescriptor y, void* y_data,
                                                   int requested, int* returned, AlgorithmPerf* results,
                                                   void* workspace, std::size_t workspace_bytes) {
  return search(Function::cudnnFindConvolutionForwardAlgorithmEx, true, {handle, true, x, w, convolution, y},
                {requested, returned, results}, [&] {
                  return real<Function::cudnnFindConvolutionForwardAlgorithmEx>()(
                      handle, x, x_data, w, w_data, convolution, y, y_data, requested, returned, results, workspace,
                      workspace_bytes);
                });
}

Status cudnnGetConvolutionForwardAlgorithm_v7_hook(Handle handle, TensorDescriptor x, FilterDescriptor w,
                                                   ConvolutionDescriptor convolution, TensorDescriptor y,
                                                   int requested, int* returned, AlgorithmPerf* results) {
  return search(Function::cudnnGetConvolutionForwardAlgorithm_v7, false, {handle, true, x, w, convolution, y},
                {requested, returned, results}, [&] {
                  return real<Function::cudnnGetConvolutionForwardAlgorithm_v7>()(handle, x, w, convolution, y,
                                                                                  requested, returned, results);
                });
}

Status cudnnFindConvolutionBackwardDataAlgorithm_hook(Handle handle, FilterDescriptor w, TensorDescriptor dy,
                                                      ConvolutionDescriptor convolution, TensorDescriptor dx,
                                                      int requested, int* returned, AlgorithmPerf* results) {
  return search(Function::cudnnFindConvolutionBackwardDataAlgorithm, true, {handle, false, w, dy, convolution, dx},
                {requested, returned, results}, [&] {
                  return real<Function::cudnnFindConvolutionBackwardDataAlgorithm>()(handle, w, dy, convolution, dx,
                                                                                     requested, returned, results);
                });
}

Status cudnnFindConvolutionBackwardDataAlgorithmEx_hook(Handle handle, FilterDescriptor w, const void* w_data,
                                                        TensorDescriptor dy, const void* dy_data,
                                                        ConvolutionDescriptor convolution, TensorDescriptor dx,
                                                        void* dx_data, int requested, int* returned,
                                                        AlgorithmPerf* results, void* workspace,
                                                        std::size_t workspace_bytes) {
  return search(Function::cudnnFindConvolutionBackwardDataAlgorithmEx, true, {handle, false, w, dy, convolution, dx},
                {requested, returned, results}, [&] {
                  return real<Function::cudnnFindConvolutionBackwardDataAlgorithmEx>()(
                      handle, w, w_data, dy, dy_data, convolution, dx, dx_data, requested, returned, results,
                      workspace, workspace_bytes);
                });
}

Status cudnnGetConvolutionBackwardDataAlgorithm_v7_hook(Handle handle, FilterDescriptor w, TensorDescriptor dy,
                                                        ConvolutionDescriptor convolution, TensorDescriptor dx,
                                                        int requested, int* returned, AlgorithmPerf* results) {
  return search(Function::cudnnGetConvolutionBackwardDataAlgorithm_v7, false, {handle, false, w, dy, convolution, dx},
                {requested, returned, results}, [&] {
                  return real<Function::cudnnGetConvolutionBackwardDataAlgorithm_v7>()(handle, w, dy, convolution, dx,
                                                                                       requested, returned, results);
                });
}

Status cudnnGetConvolutionForwardWorkspaceSize_hook(Handle handle, TensorDescriptor x, FilterDescriptor w,
                                                    ConvolutionDescriptor convolution, TensorDescriptor y,
                                                    int algorithm, std::size_t* bytes) {
  return workspace(Function::cudnnGetConvolutionForwardWorkspaceSize, {handle, true, x, w, convolution, y}, algorithm,
                   bytes, [&] {
                     return real<Function::cudnnGetConvolutionForwardWorkspaceSize>()(handle, x, w, convolution, y,
                                                                                      algorithm, bytes);
                   });
}

Status cudnnGetConvolutionBackwardDataWorkspaceSize_hook(Handle handle, FilterDescriptor w, TensorDescriptor dy,
                                                         ConvolutionDescriptor convolution, TensorDescriptor dx,
                                                         int algorithm, std::size_t* bytes) {
  return workspace(Function::cudnnGetConvolutionBackwardDataWorkspaceSize, {handle, false, w, dy, convolution, dx},
                   algorithm, bytes, [&] {
                     return real<Function::cudnnGetConvolutionBackwardDataWorkspaceSize>()(handle, w, dy, convolution,
                                                                                           dx, algorithm, bytes);
                   });
}

Status cudnnConvolutionForward_hook(Handle handle, const void* alpha, TensorDescriptor x, const void* x_data,
                                    FilterDescriptor w, const void* w_data, ConvolutionDescriptor convolution,
                                    int algorithm, void* workspace, std::size_t workspace_bytes, const void* beta,
                                    TensorDescriptor y, void* y_data) {
  return execute(Function::cudnnConvolutionForward, {handle, true, x, w, convolution, y}, false, algorithm, [&] {
    return real<Function::cudnnConvolutionForward>()(handle, alpha, x, x_data, w, w_data, convolution, algorithm,
                                                     workspace, workspace_bytes, beta, y, y_data);
  });
}

Status cudnnConvolutionBiasActivationForward_hook(Handle handle, const void* alpha1, TensorDescriptor x,
                                                  const void* x_data, FilterDescriptor w, const void* w_data,
                                                  ConvolutionDescriptor convolution, int algorithm, void* workspace,
                                                  std::size_t workspace_bytes, const void* alpha2, TensorDescriptor z,
                                                  const void* z_data, TensorDescriptor bias, const void* bias_data,
                                                  void* activation, TensorDescriptor y, void* y_data) {
  return execute(Function::cudnnConvolutionBiasActivationForward, {handle, true, x, w, convolution, y}, false,
                 algorithm, [&] {
                   return real<Function::cudnnConvolutionBiasActivationForward>()(
                       handle, alpha1, x, x_data, w, w_data, convolution, algorithm, workspace, workspace_bytes,
                       alpha2, z, z_data, bias, bias_data, activation, y, y_data);
                 });
}

Status cudnnConvolutionBackwardData_hook(Handle handle, const void* alpha, FilterDescriptor w, const void* w_data,
                                         TensorDescriptor dy, const void* dy_data, ConvolutionDescriptor convolution,
                                         int algorithm, void* workspace, std::size_t workspace_bytes,
                                         const void* beta, TensorDescriptor dx, void* dx_data) {
  return execute(Function::cudnnConvolutionBackwardData, {handle, false, w, dy, convolution, dx},
                 algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, algorithm, [&] {
                   return real<Function::cudnnConvolutionBackwardData>()(handle, alpha, w, w_data, dy, dy_data,
                                                                         convolution, algorithm, workspace,
                                                                         workspace_bytes, beta, dx, dx_data);
                 });
}

}  // namespace ortlock::cudnn
