// The timed and untimed searches of the legacy API.
#include <set>

#include "check.h"

using namespace ortlock;
using cudnn::interposer;
using cudnn::Policy;

namespace {

struct Attached {
  Provider provider{"provider_direct"};
  void* handle;
  Attached() {
    interposer().attach("libprovider_direct.so");
    handle = provider.create();
  }
  ~Attached() { provider.destroy(handle); }

  std::set<int> distinct(bool forward, bool timed, int batch = kUsual) const {
    std::set<int> algorithms;
    for (int i = 0; i < 12; ++i) algorithms.insert(provider.legacy(handle, batch, forward, timed));
    return algorithms;
  }
};

}  // namespace

CASE(stock_timing_gives_changing_algorithms) {
  const Attached a;
  EQUAL(a.distinct(true, true).size(), 3U);
  EQUAL(a.distinct(false, true).size(), 3U);
}

CASE(timed_searches_are_answered_from_the_untimed_ranking) {
  for (const Policy policy : {Policy::pin, Policy::strict}) {
    const Attached a;
    const Scope scope(policy);
    for (const bool timed : {true, false}) {
      const auto forward = a.distinct(true, timed);
      EQUAL(forward.size(), 1U);
      EQUAL(*forward.begin(), 1);
      const auto backward = a.distinct(false, timed);
      EQUAL(backward.size(), 1U);
      EQUAL(*backward.begin(), 1);  // 0 comes first and is nondeterministic
    }
    const auto records = scope.records();
    EQUAL(records.plans.size(), 3U);
    EQUAL(scope.events(), 0);
    EQUAL(records.executions, 48U);
    for (const auto& plan : records.plans) {
      EQUAL(std::string(plan.api), "legacy");
      EQUAL(plan.count, 24U);
      EQUAL(plan.what.attributes, "pad=1,1 stride=2,2 dilation=1,1 group=4 compute=f32");
      EQUAL(std::string(plan.status), plan.engine == 0 ? "refused" : "used");
      EQUAL(plan.workspace_bytes, 1000 + plan.engine);
    }
  }
}

CASE(observe_reports_a_timed_search) {
  const Attached a;
  const Scope scope(Policy::observe);
  TRUE(a.distinct(true, true).size() > 1);
  for (const auto& plan : scope.records().plans) {
    EQUAL(std::string(plan.status), "let through");
    EQUAL(plan.behavior_notes.at(0), "TIMED_SEARCH");
  }
  EQUAL(scope.events(), 3);
}

CASE(no_deterministic_algorithm_left) {
  const Attached a;
  {
    const Scope scope(Policy::strict);
    EQUAL(a.provider.legacy(a.handle, kOnlyNondeterministic, false, true), -1);
    EQUAL(a.provider.legacy(a.handle, kOnlyNondeterministic, false, false), -1);
    const auto failures = scope.records().failures;
    EQUAL(failures.size(), 1U);
    EQUAL(failures[0].what.tensors[0], "dy f32[101,128,28,28]");
    EQUAL(failures[0].candidates, 1);
  }
  const Scope scope(Policy::pin);
  EQUAL(a.provider.legacy(a.handle, kOnlyNondeterministic, false, true), 0);
  TRUE(scope.records().failures.at(0).let_through);
}

CASE(an_algorithm_named_outright_is_judged) {
  const Attached a;
  {
    const Scope scope(Policy::strict);
    EQUAL(a.provider.named(a.handle, kUsual, 1), 0);
    EQUAL(scope.events(), 0);
    EQUAL(a.provider.named(a.handle, kUsual, 0), cudnn::CUDNN_STATUS_NOT_SUPPORTED);
    EQUAL(scope.records().failures.size(), 1U);
  }
  const Scope scope(Policy::pin);
  EQUAL(a.provider.named(a.handle, kUsual, 0), 0);
  TRUE(scope.records().failures.at(0).let_through);
}
