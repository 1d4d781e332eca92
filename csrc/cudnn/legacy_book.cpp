#include "cudnn/legacy_book.h"

#include <algorithm>
#include <array>

#include "cudnn/attribution.h"
#include "cudnn/book.h"
#include "cudnn/describe.h"
#include "cudnn/functions.h"

namespace ortlock::cudnn {
namespace {

constexpr int kMaxAlgorithms = 16;  // eight algorithms at most, each with up to two math types
constexpr std::size_t kMaxEntries = 20000;

// cuDNN's untimed ranking, deterministic algorithms apart from those that came before the first of them.
void rank(const Convolution& convolution, LegacyEntry& entry) {
  auto* ranked = convolution.forward ? real<Function::cudnnGetConvolutionForwardAlgorithm_v7>()
                                     : real<Function::cudnnGetConvolutionBackwardDataAlgorithm_v7>();
  if (!ranked) {
    entry.status = CUDNN_STATUS_NOT_SUPPORTED;
    return;
  }
  std::array<AlgorithmPerf, kMaxAlgorithms> ranking{};
  int count = 0;
  plan_book().queries.fetch_add(1, std::memory_order_relaxed);
  entry.status = ranked(convolution.handle, convolution.first, convolution.second, convolution.parameters,
                        convolution.last, kMaxAlgorithms, &count, ranking.data());
  entry.candidates = entry.status == CUDNN_STATUS_SUCCESS ? std::min(count, kMaxAlgorithms) : 0;
  for (int i = 0; i < entry.candidates; ++i) {
    const AlgorithmPerf& perf = ranking[static_cast<std::size_t>(i)];
    if (perf.status != CUDNN_STATUS_SUCCESS) continue;
    if (perf.determinism == CUDNN_DETERMINISTIC) {
      entry.allowed.push_back(perf);
    } else if (entry.allowed.empty()) {
      entry.refused.push_back(perf);
    }
  }
}

// What a lockfile says; nothing if it is not a choice that may run.
std::vector<AlgorithmPerf> written(const Convolution& convolution, const Choice& choice) {
  const bool nondeterministic = !convolution.forward && choice.engine == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0;
  if (!choice.legacy || nondeterministic) return {};
  AlgorithmPerf perf{};
  perf.algo = static_cast<int>(choice.engine);
  perf.time = -1;  // as an untimed search answers
  perf.memory = static_cast<std::size_t>(choice.workspace_bytes);
  perf.determinism = CUDNN_DETERMINISTIC;
  perf.math_type = choice.math_type;
  return {perf};
}

}  // namespace

Description Convolution::describe() const {
  return forward ? describe_convolution("ConvolutionForward", {"x", "w", "y"}, first, second, parameters, last)
                 : describe_convolution("ConvolutionBackwardData", {"dy", "w", "dx"}, second, first, parameters, last);
}

LegacyEntryPtr LegacyBook::entry(const Convolution& convolution, const LockPtr& lock) {
  auto made = std::make_shared<LegacyEntry>();
  made->what = convolution.describe();
  const std::string operation = "legacy\n" + made->what.key();
  std::string key = operation + '\n' + std::to_string(device_of(convolution.handle));
  if (lock) key += '\n' + lock->name;
  const std::lock_guard guard(mutex_);
  const auto known = entries_.find(key);
  if (known != entries_.end()) {
    plan_book().hits.fetch_add(1, std::memory_order_relaxed);
    return known->second;
  }
  made->id = id_of(operation);
  if (const Choice* choice = lock ? lock->find(made->id) : nullptr) {
    made->allowed = written(convolution, *choice);
    made->lock_failed = made->allowed.empty();
    if (!made->lock_failed) made->source = kFromLockfile;
    made->candidates = 1;
  }
  if (made->allowed.empty()) rank(convolution, *made);
  // Made again, the same, if they come back.
  if (entries_.size() >= kMaxEntries) entries_.clear();
  return entries_.emplace(std::move(key), std::move(made)).first->second;
}

LegacyBook& legacy_book() {
  static auto* book = new LegacyBook;
  return *book;
}

}  // namespace ortlock::cudnn
