// The plan book: one choice for each operation, and no work for cuDNN once it is known.
#include <set>
#include <thread>

#include "check.h"
#include "cudnn/book.h"
#include "cudnn/own_descriptor.h"

using namespace ortlock;
using cudnn::interposer;
using cudnn::OwnDescriptor;
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

std::uint64_t plan_book_entries() { return cudnn::plan_book().statistics().entries; }

using Own = cudnn::OwnRef;

Own own(int type) {
  OwnDescriptor* made = cudnn::make_own(type);
  Own reference(made);
  cudnn::release_own(made);
  return reference;
}

struct Shape {
  std::vector<std::int64_t> dims{1, 128, 28, 28};
  std::vector<std::int64_t> strides{100352, 784, 28, 1};
  int type = 0;
  std::int64_t id = 1;
};

Own tensor(const Shape& shape, bool backwards = false) {
  Own made = own(17);
  const auto dims = [&] { made->set(cudnn::CUDNN_ATTR_TENSOR_DIMENSIONS, cudnn::CUDNN_TYPE_INT64, 4, shape.dims.data()); };
  const auto type = [&] { made->set(cudnn::CUDNN_ATTR_TENSOR_DATA_TYPE, cudnn::CUDNN_TYPE_DATA_TYPE, 1, &shape.type); };
  backwards ? type() : dims();
  made->set(cudnn::CUDNN_ATTR_TENSOR_STRIDES, cudnn::CUDNN_TYPE_INT64, 4, shape.strides.data());
  backwards ? dims() : type();
  made->set(906, cudnn::CUDNN_TYPE_INT64, 1, &shape.id);
  return made;
}

struct Convolution {
  Shape x;
  std::vector<std::int64_t> pads{1, 1}, strides{2, 2}, dilations{1, 1};
  std::int64_t output_id = 3;
};

// The operation graph of a convolution, its parts made in the usual order or the other way round.
std::string key(const Convolution& what, bool backwards = false, void* handle = nullptr, int operations = 1) {
  std::vector<Own> kept;
  std::vector<cudnn::BackendDescriptor> pointers;
  for (int i = 0; i < operations; ++i) {
    const int number = backwards ? operations - 1 - i : i;
    Shape output;
    output.id = what.output_id + number;
    Own y = backwards ? tensor(output, true) : Own();
    const Own x = tensor(what.x, backwards);
    if (!y) y = tensor(output);
    const Own parameters = own(1);
    parameters->set(cudnn::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, cudnn::CUDNN_TYPE_INT64, 2, what.pads.data());
    parameters->set(cudnn::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, cudnn::CUDNN_TYPE_INT64, 2, what.strides.data());
    parameters->set(cudnn::CUDNN_ATTR_CONVOLUTION_DILATIONS, cudnn::CUDNN_TYPE_INT64, 2, what.dilations.data());
    const Own operation = own(10);
    cudnn::BackendDescriptor values[] = {x.get(), y.get(), parameters.get()};
    const int names[] = {cudnn::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, cudnn::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                         cudnn::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC};
    for (int j = 0; j < 3; ++j) {
      const int which = backwards ? 2 - j : j;
      operation->set(names[which], cudnn::CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &values[which]);
    }
    kept.push_back(operation);
    pointers.push_back(operation.get());
  }
  const Own graph = own(15);
  graph->set(cudnn::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, cudnn::CUDNN_TYPE_HANDLE, 1, &handle);
  graph->set(cudnn::CUDNN_ATTR_OPERATIONGRAPH_OPS, cudnn::CUDNN_TYPE_BACKEND_DESCRIPTOR, operations, pointers.data());
  return cudnn::key_of(*graph);
}

}  // namespace

CASE(a_known_operation_costs_cudnn_nothing) {
  const Attached a;
  const Scope scope(Policy::pin);
  EQUAL(a.provider.convolution(a.handle, kUsual, false), kDeterministicEngine);
  const auto calls = stand_in("stand_in_calls"), executed = stand_in("stand_in_executed");
  for (int i = 0; i < 100; ++i) EQUAL(a.provider.convolution(a.handle, kUsual, false), kDeterministicEngine);
  EQUAL(stand_in("stand_in_calls"), calls);
  EQUAL(stand_in("stand_in_executed") - executed, 100);
  const auto statistics = cudnn::plan_book().statistics();
  EQUAL(statistics.queries, 1U);
  EQUAL(statistics.finalized, 1U);
  EQUAL(statistics.hits, 101U);
  const auto plans = scope.records().plans;
  EQUAL(plans.size(), 2U);
  EQUAL(plans.back().count, 101U);
}

CASE(sessions_and_threads_share_the_choice) {
  const Attached a;
  std::set<int> engines;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const Scope scope(i % 2 == 0 ? Policy::pin : Policy::strict);
      void* handle = a.provider.create();
      const int engine = a.provider.convolution(handle, kSecondDeterministicWorks, false);
      a.provider.destroy(handle);
      const std::lock_guard lock(mutex);
      engines.insert(engine);
    });
  }
  for (auto& thread : threads) thread.join();
  EQUAL(engines.size(), 1U);
  EQUAL(*engines.begin(), kDeterministicEngine);
  EQUAL(cudnn::plan_book().statistics().queries, 1U);
}

CASE(every_handle_has_its_own_plan) {
  const Attached a;
  const Scope scope(Policy::pin);
  void* second = a.provider.create();
  a.provider.convolution(a.handle, kUsual, false);
  a.provider.convolution(second, kUsual, false);
  EQUAL(cudnn::plan_book().statistics().plans, 2U);
  EQUAL(cudnn::plan_book().statistics().queries, 1U);
  a.provider.destroy(second);
  EQUAL(cudnn::plan_book().statistics().plans, 1U);
}

CASE(a_plan_without_a_handle_is_for_that_of_its_graph) {
  const Attached a;
  a.provider.symbol<void (*)()>("provider_plans_without_handle")();
  void* second = a.provider.create();
  const Scope scope(Policy::pin);
  for (int i = 0; i < 3; ++i) {
    a.provider.convolution(a.handle, kUsual, false);
    a.provider.convolution(second, kUsual, false);
  }
  EQUAL(cudnn::plan_book().statistics().finalized, 2U);
  EQUAL(cudnn::plan_book().statistics().plans, 2U);
  a.provider.destroy(second);
  EQUAL(cudnn::plan_book().statistics().plans, 1U);
}

CASE(plans_are_bounded) {
  const Attached a;
  const Scope scope(Policy::pin);
  cudnn::plan_book().set_bound(8, 1000);
  for (int round = 0; round < 3; ++round) {
    for (int batch = 1; batch <= 20; ++batch) {
      EQUAL(a.provider.convolution(a.handle, batch, false), kDeterministicEngine);
    }
  }
  const auto statistics = cudnn::plan_book().statistics();
  EQUAL(statistics.plans, 8U);
  EQUAL(statistics.entries, 20U);
  EQUAL(statistics.evicted, 52U);
  EQUAL(statistics.queries, 20U);  // a choice outlives its plans
  EQUAL(statistics.finalized, 60U);
}

CASE(choices_that_nobody_uses_make_room) {
  const Attached a;
  cudnn::plan_book().set_bound(4, 16);
  for (int round = 0; round < 2; ++round) {
    for (int batch = 1; batch <= 90; ++batch) {
      // A session of its own each: its records keep what it used.
      const Scope scope(Policy::pin);
      EQUAL(a.provider.convolution(a.handle, batch, false), kDeterministicEngine);
      EQUAL(scope.records().plans.size(), 2U);
      cudnn::close_session(scope.token);
    }
  }
  TRUE(cudnn::plan_book().statistics().entries <= 16U);
  EQUAL(cudnn::plan_book().statistics().plans, 4U);
}

CASE(pin_and_strict_differ_only_where_nothing_is_deterministic) {
  const Attached a;
  {
    const Scope scope(Policy::pin);
    EQUAL(a.provider.convolution(a.handle, kOnlyNondeterministic, false), kNondeterministicEngine);
    EQUAL(scope.records().plans.at(0).status == std::string("let through"), true);
  }
  const Scope scope(Policy::strict);
  EQUAL(a.provider.convolution(a.handle, kOnlyNondeterministic, false), -1);
  EQUAL(scope.records().failures.size(), 1U);
  TRUE(!scope.records().failures[0].let_through);
}

CASE(tensor_cores_are_avoided_where_the_provider_avoids_them) {
  const Attached a;
  for (const bool avoids : {false, true, false}) {
    const Scope scope(Policy::strict);
    if (avoids) cudnn::find_session(scope.token)->set_avoids_tensor_cores();
    EQUAL(a.provider.convolution(a.handle, kHasPlainEngine, false), avoids ? kPlainEngine : kDeterministicEngine);
    // The nondeterministic one was refused, not those that were only passed over.
    EQUAL(scope.records().plans.size(), 2U);
    // There is no other.
    EQUAL(a.provider.convolution(a.handle, kUsual, false), kDeterministicEngine);
  }
  EQUAL(plan_book_entries(), 4U);
}

CASE(keys_do_not_depend_on_order_or_pointers) {
  const Attached a;
  const Convolution what;
  int one = 0, two = 0;
  const std::string usual = key(what);
  TRUE(!usual.empty());
  EQUAL(key(what, true) == usual, true);
  EQUAL(key(what, false, &one) == key(what, true, &two), true);
  EQUAL(key(what, false, nullptr, 3) == key(what, true, nullptr, 3), true);
  EQUAL(key(what, false, nullptr, 2) == usual, false);
  std::thread([&] { EQUAL(key(what) == usual, true); }).join();
}

CASE(keys_depend_on_everything_else) {
  const Attached a;
  std::vector<Convolution> variants(9);
  variants[1].x.dims[0] = 2;
  variants[2].x.strides = {100352, 1, 3584, 128};
  variants[3].x.type = 2;
  variants[4].pads = {0, 1};
  variants[5].strides = {1, 2};
  variants[6].dilations = {2, 1};
  variants[7].x.id = 9;
  variants[8].output_id = 4;
  std::set<std::string> keys;
  for (const auto& variant : variants) keys.insert(key(variant));
  EQUAL(keys.size(), variants.size());
}
