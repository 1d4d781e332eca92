#include "cudnn/session.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "cudnn/book.h"

namespace ortlock::cudnn {
namespace {

// Enough for any model whose shapes settle; past it further choices are counted, not listed.
constexpr std::size_t kMaxPlans = 10000;

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) {
    text += part;
    text += '\n';
  }
  return text;
}

PlanRecord record_of(const BookEntry& entry, std::uint64_t count) {
  PlanRecord record;
  record.key = entry.id;
  record.source = entry.source;
  record.what = entry.what;
  record.engine = entry.notes.engine;
  record.knobs = entry.knobs;
  record.numerical_notes = note_names(entry.notes.numerical, kNumericalNotes, std::size(kNumericalNotes));
  record.behavior_notes = note_names(entry.notes.behavior, kBehaviorNotes, std::size(kBehaviorNotes));
  record.workspace_bytes = entry.workspace_bytes;
  record.status = entry.deterministic ? kUsed : kLetThrough;
  record.count = count;
  return record;
}

}  // namespace

std::string Description::key() const { return operation + '\n' + join(tensors) + attributes; }

void Session::set_lock(LockPtr lock) {
  const std::lock_guard guard(mutex_);
  lock_ = std::move(lock);
}

LockPtr Session::lock() const {
  const std::lock_guard guard(mutex_);
  return lock_;
}

void Session::add_calls(std::uint64_t calls, std::uint64_t executions) {
  calls_.fetch_add(calls, std::memory_order_relaxed);
  executions_.fetch_add(executions, std::memory_order_relaxed);
}

void Session::record(PlanRecord plan) {
  const std::string operation = plan.what.key();
  std::string key = operation + '\n' + plan.api + '\n' + plan.status + '\n' + std::to_string(plan.engine);
  for (const auto& [type, value] : plan.knobs) key += ' ' + std::to_string(type) + '=' + std::to_string(value);
  if (plan.math_type) key += " math " + std::to_string(*plan.math_type);

  const std::lock_guard lock(mutex_);
  // A deterministic plan after all: another query of the provider's found one.
  if (plan.status == std::string_view(kUsed) && failures_.erase(operation + '\n' + kNothingDeterministic) != 0) {
    events_.fetch_sub(1, std::memory_order_relaxed);
  }
  const auto found = plans_.find(key);
  if (found != plans_.end()) {
    ++found->second.count;
    return;
  }
  const bool to_record = recording_.load(std::memory_order_relaxed) && !plan.key.empty() &&
                         plan.status == std::string_view(kUsed) && plan.source == std::string_view(kFromRanking);
  if (plan.status == std::string_view(kLetThrough) || to_record) events_.fetch_add(1, std::memory_order_relaxed);
  if (plans_.size() >= kMaxPlans) {
    ++dropped_;
    return;
  }
  plans_.emplace(std::move(key), std::move(plan));
}

void Session::record_use(const std::shared_ptr<BookEntry>& entry) {
  const std::lock_guard lock(mutex_);
  const auto found = uses_.find(entry.get());
  if (found != uses_.end()) {
    ++found->second.second;
    return;
  }
  const bool to_record =
      recording_.load(std::memory_order_relaxed) && entry->source == std::string_view(kFromRanking);
  if (!entry->deterministic || to_record) events_.fetch_add(1, std::memory_order_relaxed);
  if (uses_.size() >= kMaxPlans) {
    ++dropped_;
    return;
  }
  uses_.emplace(entry.get(), std::make_pair(entry, std::uint64_t{1}));
}

void Session::record_failure(PlanFailure failure) {
  std::string key = failure.what.key() + '\n' + failure.cause;
  const std::lock_guard lock(mutex_);
  if (failures_.size() < kMaxPlans && failures_.emplace(std::move(key), std::move(failure)).second) {
    events_.fetch_add(1, std::memory_order_relaxed);
  }
}

Session::Snapshot Session::snapshot() const {
  Snapshot copy{calls_.load(std::memory_order_relaxed), executions_.load(std::memory_order_relaxed), 0, {}, {}};
  const std::lock_guard lock(mutex_);
  copy.dropped = dropped_;
  for (const auto& entry : plans_) copy.plans.push_back(entry.second);
  for (const auto& use : uses_) {
    const BookEntry& entry = *use.second.first;
    for (PlanRecord refused : entry.refused) {
      refused.count = use.second.second;
      copy.plans.push_back(std::move(refused));
    }
    copy.plans.push_back(record_of(entry, use.second.second));
  }
  std::sort(copy.plans.begin(), copy.plans.end(), [](const PlanRecord& a, const PlanRecord& b) {
    return std::make_tuple(a.what.key(), std::string_view(a.status), a.engine) <
           std::make_tuple(b.what.key(), std::string_view(b.status), b.engine);
  });
  for (const auto& entry : failures_) copy.failures.push_back(entry.second);
  return copy;
}

}  // namespace ortlock::cudnn
