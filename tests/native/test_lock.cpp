// Choices that were written down: replayed without a query, and never silently replaced.
#include <set>
#include <thread>

#include "check.h"
#include "cudnn/book.h"
#include "cudnn/own_descriptor.h"

using namespace ortlock;
using cudnn::Choice;
using cudnn::interposer;
using cudnn::Lock;
using cudnn::plan_book;
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

  // The id that a lockfile has for one of the provider's convolutions.
  std::string graph_id(int batch) const {
    const Scope scope(Policy::pin);
    provider.convolution(handle, batch, false);
    return scope.records().plans.back().key;
  }
  std::string legacy_id(int batch, bool forward) const {
    const Scope scope(Policy::pin);
    provider.legacy(handle, batch, forward, true);
    return scope.records().plans.back().key;
  }
};

cudnn::LockPtr lock_of(const char* name, bool exclusive, std::unordered_map<std::string, Choice> choices) {
  auto lock = std::make_shared<Lock>();
  lock->name = name;
  lock->exclusive = exclusive;
  lock->choices = std::move(choices);
  return lock;
}

const Choice kOther{false, kOtherDeterministicEngine, {{2, 2}, {3, 0}}, 0, 4096};

void use(const Scope& scope, cudnn::LockPtr lock) { cudnn::find_session(scope.token)->set_lock(std::move(lock)); }

}  // namespace

CASE(a_locked_choice_is_replayed_without_a_query) {
  const Attached a;
  const std::string id = a.graph_id(kUsual);
  EQUAL(id.size(), 32U);
  const auto queries = plan_book().statistics().queries;
  for (const Policy policy : {Policy::pin, Policy::strict}) {
    const Scope scope(policy);
    use(scope, lock_of("a", true, {{id, kOther}}));
    for (int i = 0; i < 3; ++i) EQUAL(a.provider.convolution(a.handle, kUsual, false), kOtherDeterministicEngine);
    const auto plans = scope.records().plans;
    EQUAL(plans.size(), 1U);
    EQUAL(plans[0].count, 3U);
    EQUAL(std::string(plans[0].source), "lockfile");
    EQUAL(plans[0].key, id);
    EQUAL(plans[0].knobs.size(), 2U);
    EQUAL(scope.events(), 0);
  }
  EQUAL(plan_book().statistics().queries, queries);
  // Sessions without the lock keep their own choice.
  const Scope scope(Policy::pin);
  EQUAL(a.provider.convolution(a.handle, kUsual, false), kDeterministicEngine);
}

CASE(sessions_with_the_same_lock_share_what_is_kept) {
  const Attached a;
  const std::string id = a.graph_id(kUsual);
  const auto entries = plan_book().statistics().entries;
  std::set<int> engines;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const Scope scope(Policy::strict);
      use(scope, lock_of(i % 2 == 0 ? "a" : "b", true, {{id, kOther}}));
      const int engine = a.provider.convolution(a.handle, kUsual, false);
      const std::lock_guard guard(mutex);
      engines.insert(engine);
    });
  }
  for (auto& thread : threads) thread.join();
  EQUAL(engines.size(), 1U);
  EQUAL(*engines.begin(), kOtherDeterministicEngine);
  EQUAL(plan_book().statistics().entries, entries + 2);
}

CASE(strict_refuses_what_the_lockfile_does_not_hold) {
  const Attached a;
  const std::string id = a.graph_id(kUsual);
  const auto queries = plan_book().statistics().queries;
  {
    const Scope scope(Policy::strict);
    use(scope, lock_of("a", true, {{id, kOther}}));
    EQUAL(a.provider.convolution(a.handle, 7, false), -1);
    const auto failures = scope.records().failures;
    EQUAL(failures.size(), 1U);
    EQUAL(std::string(failures[0].cause), "not in the lockfile");
    EQUAL(failures[0].what.tensors[0], "dy f32[7,128,28,28]");
    EQUAL(failures[0].key.size(), 32U);
    EQUAL(scope.events(), 1);
    EQUAL(plan_book().statistics().queries, queries);
  }
  // A lock that may be added to, or one in pin, lets the rule choose.
  const Scope open(Policy::strict);
  use(open, lock_of("b", false, {{id, kOther}}));
  EQUAL(a.provider.convolution(a.handle, 7, false), kDeterministicEngine);
  const Scope pin(Policy::pin);
  use(pin, lock_of("a", true, {{id, kOther}}));
  EQUAL(a.provider.convolution(a.handle, 7, false), kDeterministicEngine);
  EQUAL(std::string(pin.records().plans.back().source), "ranking");
}

CASE(a_locked_engine_that_cannot_be_made_is_not_silently_replaced) {
  const Attached a;
  const std::string id = a.graph_id(kUsual);
  for (const int engine : {kBrokenEngine, kNondeterministicEngine}) {
    const auto lock = lock_of(std::to_string(engine).c_str(), true, {{id, {false, engine, {}, 0, 0}}});
    {
      const Scope scope(Policy::strict);
      use(scope, lock);
      EQUAL(a.provider.convolution(a.handle, kUsual, false), -1);
      EQUAL(std::string(scope.records().failures.at(0).cause), "locked choice cannot be made");
    }
    const Scope scope(Policy::pin);
    use(scope, lock);
    EQUAL(a.provider.convolution(a.handle, kUsual, false), kDeterministicEngine);
    EQUAL(std::string(scope.records().plans.back().source), "ranking");
  }
}

CASE(a_recording_session_is_told_of_new_choices) {
  const Attached a;
  const std::string id = a.graph_id(kUsual);
  const Scope scope(Policy::pin);
  cudnn::find_session(scope.token)->set_recording();
  use(scope, lock_of("a", false, {{id, kOther}}));
  a.provider.convolution(a.handle, kUsual, false);
  EQUAL(scope.events(), 0);
  a.provider.convolution(a.handle, 2, false);
  a.provider.convolution(a.handle, 2, false);
  EQUAL(scope.events(), 1);
  a.provider.legacy(a.handle, 2, true, true);
  a.provider.legacy(a.handle, 2, true, true);
  EQUAL(scope.events(), 2);
}

CASE(legacy_algorithms_are_replayed) {
  const Attached a;
  for (const bool forward : {true, false}) {
    const std::string id = a.legacy_id(kUsual, forward);
    const auto queries = plan_book().statistics().queries;
    const Scope scope(Policy::strict);
    use(scope, lock_of(forward ? "f" : "b", true, {{id, {true, 4, {}, 3, 77}}}));
    for (const bool timed : {true, false}) EQUAL(a.provider.legacy(a.handle, kUsual, forward, timed), 4);
    const auto plan = scope.records().plans.at(0);
    EQUAL(plan.math_type.value(), 3);
    EQUAL(plan.workspace_bytes, 77);
    EQUAL(std::string(plan.source), "lockfile");
    EQUAL(plan.key, id);
    EQUAL(plan_book().statistics().queries, queries);
    EQUAL(a.provider.legacy(a.handle, 9, forward, true), -1);
    EQUAL(std::string(scope.records().failures.at(0).cause), "not in the lockfile");
  }
}

CASE(a_known_legacy_convolution_is_not_ranked_again) {
  const Attached a;
  const auto queries = plan_book().statistics().queries;
  for (int session = 0; session < 3; ++session) {
    const Scope scope(Policy::pin);
    for (int batch = 1; batch <= 5; ++batch) EQUAL(a.provider.legacy(a.handle, batch, true, true), 1);
  }
  EQUAL(plan_book().statistics().queries - queries, 5U);
}

CASE(the_workspace_query_is_answered_from_the_choice) {
  const Attached a;
  {
    const Scope scope(Policy::observe);
    EQUAL(a.provider.workspace(a.handle, kUsual, true), 2007);
    EQUAL(stand_in("stand_in_workspace_asked"), 8);
  }
  const Scope scope(Policy::pin);
  // The choice, 1, and nothing that is not run.
  EQUAL(a.provider.workspace(a.handle, kUsual, true), 1001);
  EQUAL(stand_in("stand_in_workspace_asked"), 8);
  EQUAL(a.provider.workspace(a.handle, kUsual, false), 1001);
  EQUAL(stand_in("stand_in_workspace_asked"), 8);
  EQUAL(a.provider.workspace(a.handle, kOnlyNondeterministic, false), 2007);
  // Another choice than the algorithm that the provider names itself: that one's true size is told too.
  use(scope, lock_of("a", true, {{a.legacy_id(kUsual, true), {true, 6, {}, 0, 5}}}));
  EQUAL(a.provider.workspace(a.handle, kUsual, true), 2001);
}

CASE(a_hundred_thousand_changes_of_shape_leave_memory_flat) {
  const Attached a;
  const Scope scope(Policy::pin);
  plan_book().set_bound(512, 20000);
  long live = 0;
  std::size_t own = 0;
  std::uint32_t random = 1;
  for (int i = 0; i < 100000; ++i) {
    random = random * 1664525 + 1013904223;
    const int batch = 200 + static_cast<int>((random >> 8) % 5000);
    EQUAL(a.provider.convolution(a.handle, batch, false), kDeterministicEngine);
    if (i == 50000) {
      live = stand_in("stand_in_live_descriptors");
      own = cudnn::own_in_use();
    }
  }
  const auto statistics = plan_book().statistics();
  EQUAL(statistics.plans, 512U);
  EQUAL(statistics.entries, 5000U);
  EQUAL(statistics.queries, 5000U);
  EQUAL(stand_in("stand_in_live_descriptors"), live);
  EQUAL(cudnn::own_in_use(), own);
  TRUE(live < 512 * 16);
}

CASE(ids_are_those_of_fnv) {
  // The test vectors of the hash's authors: 128 bits, of nothing and of "a".
  EQUAL(cudnn::id_of(""), "6c62272e07bb014262b821756295c58d");
  EQUAL(cudnn::id_of("a"), "d228cb696f1a8caf78912b704e4a8964");
}
