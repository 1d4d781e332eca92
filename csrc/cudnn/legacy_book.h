// The legacy API's part of the plan book: which algorithm each convolution runs, chosen once.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cudnn/abi.h"
#include "cudnn/choices.h"
#include "cudnn/session.h"

namespace ortlock::cudnn {

// A convolution as a search is asked about it; `first` and `second` are x and w, or w and dy.
struct Convolution {
  Handle handle;
  bool forward;
  void* first;
  void* second;
  ConvolutionDescriptor parameters;
  TensorDescriptor last;

  Description describe() const;
};

// What was chosen for one convolution. Constant once made.
struct LegacyEntry {
  std::string id;  // the operation's name in a lockfile
  Description what;
  const char* source = kFromRanking;
  bool lock_failed = false;
  Status status = CUDNN_STATUS_SUCCESS;  // of cuDNN's ranking
  int candidates = 0;
  std::vector<AlgorithmPerf> refused;  // what came before the choice
  std::vector<AlgorithmPerf> allowed;  // the choice, and what may run in its place; empty if there is nothing
};
using LegacyEntryPtr = std::shared_ptr<const LegacyEntry>;

class LegacyBook {
 public:
  // The entry of a convolution for the sessions with that lock (or none), chosen now if new: what the lock says, else
  // the deterministic algorithms of cuDNN's untimed ranking.
  LegacyEntryPtr entry(const Convolution& convolution, const LockPtr& lock);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, LegacyEntryPtr> entries_;
};

// The legacy book of this process. Never destroyed.
LegacyBook& legacy_book();

}  // namespace ortlock::cudnn
