// Nanoseconds per intercepted call for an operation that the plan book knows, on 1 and 8 threads. Prints JSON lines.
// A frontend's work for one plan is replayed: about 145 descriptors, most of them knob choices that are only read.
#include <algorithm>
#include <chrono>
#include <thread>

#include "check.h"
#include "cudnn/attribution.h"
#include "cudnn/hooks.h"
#include "cudnn/own_descriptor.h"

using namespace ortlock;
using cudnn::Policy;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kDescriptors = 100;  // created, read twice and destroyed, as the knob choices of a plan's name tag are
constexpr int kCallsEach = 4;

// What a frontend does to name a plan, through the hooks.
void tag() {
  cudnn::BackendDescriptor made[kDescriptors];
  std::int64_t value = 0, count = 0;
  for (auto& descriptor : made) cudnn::cudnnBackendCreateDescriptor_hook(7, &descriptor);
  for (auto& descriptor : made) {
    cudnn::as_own(descriptor)->knob_type = 2;
    cudnn::cudnnBackendGetAttribute_hook(descriptor, 600, 9, 1, &count, &value);
    cudnn::cudnnBackendGetAttribute_hook(descriptor, 601, 3, 1, &count, &value);
  }
  for (auto& descriptor : made) cudnn::cudnnBackendDestroyDescriptor_hook(descriptor);
}

double nanoseconds_per_call(int rounds) {
  const auto started = Clock::now();
  for (int i = 0; i < rounds; ++i) tag();
  const std::chrono::duration<double, std::nano> elapsed = Clock::now() - started;
  return elapsed.count() / (static_cast<double>(rounds) * kDescriptors * kCallsEach);
}

double median_over(int threads) {
  std::vector<double> medians(static_cast<std::size_t>(threads));
  std::vector<std::thread> workers;
  for (auto& median : medians) {
    workers.emplace_back([&median] {
      const Scope scope(Policy::pin);
      std::vector<double> samples;
      nanoseconds_per_call(200);
      for (int i = 0; i < 101; ++i) samples.push_back(nanoseconds_per_call(20));
      std::nth_element(samples.begin(), samples.begin() + 50, samples.end());
      median = samples[50];
    });
  }
  for (auto& worker : workers) worker.join();
  std::nth_element(medians.begin(), medians.begin() + threads / 2, medians.end());
  return medians[static_cast<std::size_t>(threads / 2)];
}

}  // namespace

int main() {
  const Provider provider("provider_direct");
  cudnn::interposer().attach("libprovider_direct.so");
  for (const int threads : {1, 2, 8}) {
    std::cout << "{\"threads\": " << threads << ", \"ns_per_call\": " << median_over(threads) << "}" << std::endl;
  }
  return 0;
}
