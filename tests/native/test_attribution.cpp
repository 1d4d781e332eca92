// Whose call it is: by thread, by handle, by what runs asynchronously.
#include <thread>

#include "check.h"
#include "cudnn/attribution.h"

using namespace ortlock;
using cudnn::interposer;
using cudnn::Policy;

namespace {

int engine_on_another_thread(const Provider& provider, void* handle) {
  int engine = 0;
  std::thread([&] { engine = provider.convolution(handle, kUsual, false); }).join();
  return engine;
}

}  // namespace

CASE(scopes_nest_and_restore) {
  const auto outer = cudnn::open_session(Policy::pin), inner = cudnn::open_session(Policy::strict);
  EQUAL(cudnn::enter(outer), 0);
  EQUAL(cudnn::enter(inner), outer);
  EQUAL(cudnn::leave(outer), 0);
  EQUAL(cudnn::enter(0), outer);
  cudnn::leave(0);
  EQUAL(cudnn::enter(outer), 0);
  cudnn::leave(0);
  TRUE(!cudnn::watching());
}

CASE(scopes_as_objects_nest_and_restore) {
  const auto outer = cudnn::open_session(Policy::pin), inner = cudnn::open_session(Policy::strict);
  {
    const cudnn::Scope first(cudnn::find_session(outer));
    TRUE(cudnn::watching());
    {
      const cudnn::Scope second(cudnn::find_session(inner));
      cudnn::close_session(inner);  // it stays in force all the same
      EQUAL(cudnn::enter(0), inner);
      cudnn::leave(outer);
      const cudnn::Scope nobody(nullptr);
      EQUAL(cudnn::enter(0), 0);
    }
    EQUAL(cudnn::enter(outer), outer);
  }
  EQUAL(cudnn::enter(0), 0);
  TRUE(!cudnn::watching());
}

CASE(a_closed_session_is_forgotten) {
  const auto token = cudnn::open_session(Policy::pin);
  cudnn::enter(token);
  cudnn::close_session(token);
  TRUE(!cudnn::find_session(token));
  cudnn::leave(0);
  EQUAL(cudnn::enter(token), 0);  // nobody's
  TRUE(!cudnn::watching());
}

CASE(asynchronous_runs_are_treated_by_the_strictest) {
  const Provider provider("provider_direct");
  interposer().attach("libprovider_direct.so");
  void* handle = nullptr;
  const auto observe = cudnn::open_session(Policy::observe), pin = cudnn::open_session(Policy::pin);
  cudnn::begin_async(observe);
  std::thread([&] { handle = provider.create(); }).join();
  EQUAL(engine_on_another_thread(provider, handle), kNondeterministicEngine);
  cudnn::begin_async(pin);
  // The handle was made for the observing session, and that decides.
  EQUAL(engine_on_another_thread(provider, handle), kNondeterministicEngine);
  void* second = nullptr;
  std::thread([&] { second = provider.create(); }).join();
  EQUAL(engine_on_another_thread(provider, second), kDeterministicEngine);
  cudnn::end_async(pin);
  cudnn::end_async(observe);
  TRUE(!cudnn::watching());
  EQUAL(engine_on_another_thread(provider, second), kNondeterministicEngine);
  provider.destroy(handle);
  provider.destroy(second);
}

CASE(handles_of_others_stay_theirs) {
  const Provider provider("provider_direct");
  interposer().attach("libprovider_direct.so");
  void* stock = provider.create();  // by nobody's session
  const auto strict = cudnn::open_session(Policy::strict);
  cudnn::begin_async(strict);
  EQUAL(engine_on_another_thread(provider, stock), kNondeterministicEngine);
  cudnn::end_async(strict);
  provider.destroy(stock);
}

CASE(worker_threads_of_a_session_are_known_by_the_handle) {
  const Provider provider("provider_direct");
  interposer().attach("libprovider_direct.so");
  const Scope scope(Policy::pin);
  void* handle = provider.create();
  EQUAL(engine_on_another_thread(provider, handle), kDeterministicEngine);
  provider.destroy(handle);
}

CASE(worker_threads_that_make_their_own_handle) {
  const Provider provider("provider_direct");
  interposer().attach("libprovider_direct.so");
  const auto token = cudnn::open_session(Policy::strict);
  cudnn::set_has_workers(token);
  const auto engine = [&] {
    int result = 0;
    std::thread([&] {
      void* handle = provider.create();
      result = provider.convolution(handle, kUsual, false);
      provider.destroy(handle);
    }).join();
    return result;
  };
  const auto previous = cudnn::enter(token);
  EQUAL(engine(), kDeterministicEngine);
  const auto inner = cudnn::enter(0);  // nobody's work in between
  EQUAL(engine(), kNondeterministicEngine);
  cudnn::leave(inner);
  EQUAL(engine(), kDeterministicEngine);
  cudnn::leave(previous);
  EQUAL(engine(), kNondeterministicEngine);
  TRUE(!cudnn::watching());
}

CASE(every_call_is_counted_once) {
  const Provider provider("provider_direct");
  interposer().attach("libprovider_direct.so");
  const auto finalize = static_cast<std::size_t>(cudnn::Function::cudnnBackendFinalize);
  const auto before = cudnn::call_counts()[finalize];
  constexpr int kThreads = 8, kRuns = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const Scope scope(Policy::pin);
      void* handle = provider.create();
      for (int run = 0; run < kRuns; ++run) provider.convolution(handle, kUsual, false);
      provider.destroy(handle);
    });
  }
  for (auto& thread : threads) thread.join();
  // Tensors 3, convolution, operation, graph, query, plan.
  EQUAL(cudnn::call_counts()[finalize] - before, 8U * kThreads * kRuns);
}
