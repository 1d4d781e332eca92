// Judging execution plans.
#include <algorithm>

#include "check.h"
#include "cudnn/book.h"
#include "cudnn/own_descriptor.h"

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
};

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += part + ';';
  return text;
}

}  // namespace

CASE(pin_refuses_the_nondeterministic_engine) {
  const Attached a;
  const Scope scope(Policy::pin);
  EQUAL(a.provider.convolution(a.handle, kUsual, false), kDeterministicEngine);
  EQUAL(a.provider.convolution(a.handle, kUsual, false), kDeterministicEngine);
  const auto records = scope.records();
  EQUAL(records.failures.size(), 0U);
  EQUAL(records.plans.size(), 2U);
  EQUAL(scope.events(), 0);
  for (const auto& plan : records.plans) {
    EQUAL(std::string(plan.api), "graph");
    EQUAL(plan.what.operation, "ConvolutionBackwardData");
    EQUAL(joined(plan.what.tensors), "dy f32[1,128,28,28];w f32[128,64,4,4];dx f32[1,64,56,56];");
    EQUAL(plan.what.attributes, "pad=1,1 stride=2,2 dilation=1,1 compute=f32");
    EQUAL(plan.count, 2U);
    EQUAL(plan.knobs.size(), 2U);
    EQUAL(plan.knobs[0].first, 2);
    EQUAL(plan.knobs[0].second, 2);
    const bool refused = plan.engine == kNondeterministicEngine;
    EQUAL(std::string(plan.status), refused ? "refused" : "used");
    EQUAL(joined(plan.numerical_notes), refused ? "TENSOR_CORE;NONDETERMINISTIC;" : "TENSOR_CORE;");
    EQUAL(plan.workspace_bytes, refused ? 0 : 4096);
  }
}

CASE(strict_refuses_the_nondeterministic_engine) {
  const Attached a;
  const Scope scope(Policy::strict);
  EQUAL(a.provider.convolution(a.handle, kUsual, true), kDeterministicEngine);
  EQUAL(scope.records().plans.front().what.operation, "ConvolutionForward");
  EQUAL(scope.events(), 0);
}

CASE(observe_changes_nothing_and_reports) {
  const Attached a;
  const Scope scope(Policy::observe);
  EQUAL(a.provider.convolution(a.handle, kUsual, false), kNondeterministicEngine);
  const auto records = scope.records();
  EQUAL(records.plans.size(), 1U);
  EQUAL(std::string(records.plans[0].status), "let through");
  EQUAL(records.failures.size(), 0U);
  EQUAL(scope.events(), 1);
}

CASE(calls_of_nobody_pass_unchanged) {
  const Attached a;
  const auto finalized = stand_in("stand_in_finalized");
  EQUAL(a.provider.convolution(a.handle, kUsual, false), kNondeterministicEngine);
  EQUAL(stand_in("stand_in_finalized") - finalized, 1);
}

CASE(none_left_raises_in_strict) {
  const Attached a;
  const Scope scope(Policy::strict);
  for (const int batch : {kOnlyNondeterministic, kDeterministicCannotBeMade}) {
    EQUAL(a.provider.convolution(a.handle, batch, false), -1);
  }
  const auto records = scope.records();
  EQUAL(records.failures.size(), 2U);
  EQUAL(scope.events(), 2);
  EQUAL(records.failures[0].what.operation, "ConvolutionBackwardData");
  EQUAL(records.failures[0].what.tensors[0], "dy f32[101,128,28,28]");
  EQUAL(records.failures[0].candidates, 2);
  TRUE(!records.failures[0].let_through);
}

CASE(none_left_is_let_through_in_pin) {
  const Attached a;
  const Scope scope(Policy::pin);
  EQUAL(a.provider.convolution(a.handle, kOnlyNondeterministic, false), kNondeterministicEngine);
  EQUAL(a.provider.convolution(a.handle, kDeterministicCannotBeMade, false), kNondeterministicEngine);
  const auto records = scope.records();
  EQUAL(records.failures.size(), 2U);
  TRUE(records.failures[0].let_through);
  EQUAL(records.plans.size(), 2U);
  EQUAL(std::string(records.plans[0].status), "let through");
  EQUAL(scope.events(), 4);  // two failures, two nondeterministic plans in use
}

CASE(an_unusable_alternative_is_not_counted_on) {
  const Attached a;
  const Scope scope(Policy::pin);
  EQUAL(a.provider.convolution(a.handle, kSecondDeterministicWorks, false), kDeterministicEngine);
  EQUAL(scope.events(), 0);
}

CASE(a_deterministic_first_choice_is_taken_as_it_is) {
  const Attached a;
  const Scope scope(Policy::strict);
  const auto finalized = stand_in("stand_in_finalized");
  EQUAL(a.provider.convolution(a.handle, kFirstIsDeterministic, false), kDeterministicEngine);
  EQUAL(stand_in("stand_in_finalized") - finalized, 1);
  EQUAL(scope.records().plans.size(), 1U);
}

CASE(no_descriptor_is_left_behind) {
  const auto before = stand_in("stand_in_live_descriptors");
  {
    const Attached a;
    const Scope scope(Policy::pin);
    for (int i = 0; i < 1000; ++i) a.provider.convolution(a.handle, 1 + i % 110, i % 2 == 0);
    EQUAL(cudnn::plan_book().statistics().plans, 110U);
  }
  // The plans went with their handle.
  EQUAL(cudnn::plan_book().statistics().plans, 0U);
  EQUAL(cudnn::own_in_use(), 0U);
  EQUAL(stand_in("stand_in_live_descriptors"), std::max(before, 0L));
}

namespace {

// A function was resolved before ortlock came, so that no descriptor of its own may be handed out; the graph API itself
// is intercepted all the same, and plans are judged one by one.
struct PartlyLate {
  Provider provider{"provider_dlsym"};
  void* handle = provider.create();
  PartlyLate() { EQUAL(interposer().attach("libprovider_dlsym.so").resolved_before.size(), 1U); }
  ~PartlyLate() { provider.destroy(handle); }
};

}  // namespace

CASE(plans_outside_the_book_are_judged_too) {
  const PartlyLate a;
  {
    const Scope scope(Policy::pin);
    EQUAL(a.provider.convolution(a.handle, kUsual, false), kDeterministicEngine);
    EQUAL(a.provider.convolution(a.handle, kSecondDeterministicWorks, false), kDeterministicEngine);
    EQUAL(cudnn::plan_book().statistics().entries, 0U);
    EQUAL(cudnn::own_in_use(), 0U);
    const auto records = scope.records();
    EQUAL(records.failures.size(), 0U);
    EQUAL(records.plans.size(), 4U);
    EQUAL(scope.events(), 0);
    EQUAL(a.provider.convolution(a.handle, kDeterministicCannotBeMade, false), kNondeterministicEngine);
    EQUAL(scope.records().failures.size(), 1U);
    TRUE(scope.records().failures[0].let_through);
  }
  const Scope scope(Policy::strict);
  EQUAL(a.provider.convolution(a.handle, kOnlyNondeterministic, false), -1);
  EQUAL(scope.records().failures.size(), 1U);
  EQUAL(scope.records().failures[0].candidates, 2);
  const auto before = stand_in("stand_in_live_descriptors");
  for (int i = 0; i < 200; ++i) a.provider.convolution(a.handle, 1 + i % 110, i % 2 == 0);
  EQUAL(stand_in("stand_in_live_descriptors"), before);
}
