// Reading an engine configuration through the real cuDNN.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/abi.h"
#include "cudnn/choices.h"
#include "cudnn/descriptors.h"

namespace ortlock::cudnn {

// Owns a descriptor made by the real cuDNN, out of the provider's sight.
class OwnedDescriptor {
 public:
  OwnedDescriptor() noexcept = default;
  explicit OwnedDescriptor(int type) noexcept;
  ~OwnedDescriptor();
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  OwnedDescriptor(const OwnedDescriptor&) = delete;
  OwnedDescriptor& operator=(const OwnedDescriptor&) = delete;

  BackendDescriptor get() const { return descriptor_; }
  BackendDescriptor release() { return std::exchange(descriptor_, nullptr); }
  explicit operator bool() const { return descriptor_ != nullptr; }

 private:
  BackendDescriptor descriptor_ = nullptr;
};

struct EngineNotes {
  bool known = false;  // cuDNN answered
  std::int64_t engine = -1;
  std::vector<int> numerical;
  std::vector<int> behavior;

  bool nondeterministic() const;
  bool tensor_core() const;
};

EngineNotes read_engine_notes(BackendDescriptor engine);
EngineNotes read_notes(BackendDescriptor config);
Knobs read_knobs(BackendDescriptor config);
std::int64_t read_workspace(BackendDescriptor plan);

// True if cuDNN can make a plan of `config` for the device of the plan `like`; it is destroyed again.
bool plan_can_be_made(const Watched& like, BackendDescriptor config);

std::vector<std::string> note_names(const std::vector<int>& notes, const char* const* names, std::size_t count);

}  // namespace ortlock::cudnn
