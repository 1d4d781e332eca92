// Streams of a CUDA runtime that the process has loaded.
#include <thread>
#include <vector>

#include "check.h"
#include "stand_ins/cudart.h"
#include "stream/stream.h"

using namespace ortlock;

namespace {

constexpr const char* kProvider = "libprovider_with_cudart.so";

struct Cudart {
  void* library;
  CudartAsk account;
  CudartFail fail;
  CudartRefuse refuse;

  explicit Cudart(const std::string& file = "cudart/libcudart.so.13") {
    library = dlopen((std::string(STAND_INS) + "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      std::cerr << dlerror() << std::endl;
      std::abort();
    }
    account = reinterpret_cast<CudartAsk>(dlsym(library, "cudart_account"));
    fail = reinterpret_cast<CudartFail>(dlsym(library, "cudart_fail"));
    refuse = reinterpret_cast<CudartRefuse>(dlsym(library, "cudart_refuse"));
  }
};

}  // namespace

CASE(stream_without_a_runtime) {
  const auto made = stream::make(kProvider, 0, false);
  EQUAL(made.status.code, stream::kNoRuntime);
  EQUAL(made.address, 0U);
  EQUAL(made.status.text, "no CUDA runtime is loaded in this process");
  EQUAL(stream::drain(kProvider, 0, 0).status.code, stream::kNoRuntime);
  // It is looked for again: the provider may be loaded later.
  const Cudart cuda;
  TRUE(stream::make(kProvider, 0, false).status.ok());
  EQUAL(cuda.account().streams_made, 1);
}

CASE(stream_lives_until_it_is_destroyed) {
  const Cudart cuda;
  const auto made = stream::make(kProvider, 1, true);
  TRUE(made.status.ok());
  TRUE(made.address != 0);
  const auto usual = stream::make(kProvider, 1, false);
  EQUAL(stream::count(), 2U);
  EQUAL(cuda.account().streams_alive, 2);
  EQUAL(cuda.account().high_priority, 1);
  EQUAL(cuda.account().device, 0);  // put back
  TRUE(stream::destroy(made.address).ok());
  TRUE(stream::destroy(usual.address).ok());
  EQUAL(cuda.account().streams_alive, 0);
  EQUAL(stream::destroy(made.address).code, stream::kUnknownStream);
}

CASE(stream_of_the_runtime_that_the_provider_uses) {
  const Cudart other("cudart_other/libcudart.so.12");
  void* provider = dlopen((std::string(STAND_INS) + "/" + kProvider).c_str(), RTLD_NOW | RTLD_LOCAL);
  TRUE(provider != nullptr);
  const Cudart own;
  TRUE(stream::make(kProvider, 0, false).status.ok());
  EQUAL(own.account().streams_made, 1);
  EQUAL(other.account().streams_made, 0);
}

CASE(stream_errors_in_the_words_of_cuda) {
  const Cudart cuda;
  EQUAL(stream::make(kProvider, 7, false).status.code, 101);
  cuda.refuse(700);
  const auto made = stream::make(kProvider, 0, false);
  EQUAL(made.status.code, 700);
  EQUAL(made.status.text, "cudaErrorIllegalAddress: an illegal memory access was encountered");
  EQUAL(made.address, 0U);
  EQUAL(stream::count(), 0U);
}

CASE(stream_drained) {
  const Cudart cuda;
  const auto address = stream::make(kProvider, 0, false).address;
  const auto clean = stream::drain(kProvider, 0, address);
  TRUE(clean.status.ok());
  TRUE(!clean.sticky);
  // An error of one call passes.
  cuda.fail(2, 1);
  const auto passing = stream::drain(kProvider, 0, address);
  EQUAL(passing.status.code, 2);
  TRUE(!passing.sticky);
  TRUE(stream::drain(kProvider, 0, address).status.ok());
  // One that stays is the context's.
  cuda.fail(700, -1);
  const auto lost = stream::drain(kProvider, 0, address);
  EQUAL(lost.status.code, 700);
  TRUE(lost.sticky);
  TRUE(stream::drain(kProvider, 0, 0).status.ok());
  EQUAL(cuda.account().devices_synchronized, 1);
  // A capture under way stays as well, and nothing is lost.
  cuda.fail(900, -1);
  const auto captured = stream::drain(kProvider, 0, address);
  EQUAL(captured.status.code, 900);
  TRUE(!captured.sticky);
}

CASE(stream_ordered_after_another) {
  const Cudart cuda;
  const auto stream = stream::make(kProvider, 0, false).address;
  TRUE(stream::order(kProvider, 0, stream, 0).ok());
  EQUAL(cuda.account().records, 1);
  EQUAL(cuda.account().waits, 1);
  EQUAL(cuda.account().events_made, 1);
  EQUAL(cuda.account().events_alive, 0);
}

CASE(stream_memory) {
  const Cudart cuda;
  const auto memory = stream::memory(kProvider, 0);
  TRUE(memory.status.ok());
  EQUAL(memory.free, 1000U);
  EQUAL(memory.total, 4000U);
}

CASE(streams_on_many_threads) {
  const Cudart cuda;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      for (int round = 0; round < 200; ++round) {
        const auto made = stream::make(kProvider, i % 2, round % 2 == 0);
        TRUE(made.status.ok());
        TRUE(stream::order(kProvider, i % 2, made.address, 0).ok());
        TRUE(stream::drain(kProvider, i % 2, made.address).status.ok());
        TRUE(stream::destroy(made.address).ok());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EQUAL(stream::count(), 0U);
  EQUAL(cuda.account().streams_made, 1600);
  EQUAL(cuda.account().streams_alive, 0);
  EQUAL(cuda.account().events_alive, 0);
}
