// Many threads, several policies, attaching and detaching under load.
#include <atomic>
#include <thread>

#include "check.h"
#include "cudnn/own_descriptor.h"

using namespace ortlock;
using cudnn::interposer;
using cudnn::Policy;

namespace {

void hammer(const char* name) {
  const Provider provider(name);
  const std::string library = std::string("lib") + name + ".so";
  interposer().attach(library);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto policy = static_cast<Policy>(i % 3);
      const int expected = policy == Policy::observe ? kNondeterministicEngine : kDeterministicEngine;
      for (int run = 0; run < 40; ++run) {
        const Scope scope(policy);
        void* handle = provider.create();
        wrong += provider.convolution(handle, kUsual, run % 2 == 0) != expected;
        if (policy != Policy::observe) wrong += provider.legacy(handle, kUsual, false, true) != 1;
        wrong += scope.records().calls == 0;
        provider.destroy(handle);
        cudnn::close_session(scope.token);
      }
    });
  }
  // Threads of nobody's session beside them must see stock behaviour.
  threads.emplace_back([&] {
    void* handle = provider.create();
    for (int run = 0; run < 200; ++run) {
      wrong += provider.convolution(handle, kUsual, false) != kNondeterministicEngine;
    }
    provider.destroy(handle);
  });
  for (auto& thread : threads) thread.join();
  EQUAL(wrong.load(), 0);
  EQUAL(interposer().state().faults.size(), 0U);
}

void toggle_under_load(const char* name) {
  const Provider provider(name);
  const std::string library = std::string("lib") + name + ".so";
  interposer().attach(library);
  // Resolved while attached: what a library asks dlsym for while detached bypasses the hooks for good.
  void* warm = provider.create();
  provider.convolution(warm, kUsual, false);
  provider.destroy(warm);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const Scope scope(Policy::pin);
      void* handle = provider.create();
      while (!stop) {
        const int engine = provider.convolution(handle, kUsual, false);
        wrong += engine != kDeterministicEngine && engine != kNondeterministicEngine;
        provider.touch();
        ++done;
      }
      provider.destroy(handle);
    });
  }
  for (int i = 0; i < 100; ++i) {
    interposer().detach([] { return cudnn::own_in_use() != 0; });
    interposer().attach(library);
  }
  while (done < 100) std::this_thread::yield();
  stop = true;
  for (auto& thread : threads) thread.join();
  EQUAL(wrong.load(), 0);
  const Scope scope(Policy::strict);
  void* handle = provider.create();
  EQUAL(provider.convolution(handle, kUsual, false), kDeterministicEngine);
  provider.destroy(handle);
}

}  // namespace

CASE(threads_direct) { hammer("provider_direct"); }
CASE(threads_dlsym) { hammer("provider_dlsym"); }
CASE(threads_both) { hammer("provider_both"); }
CASE(toggle_under_load_direct) { toggle_under_load("provider_direct"); }
CASE(toggle_under_load_dlsym) { toggle_under_load("provider_dlsym"); }
CASE(toggle_under_load_both) { toggle_under_load("provider_both"); }
