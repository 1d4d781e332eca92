// Reading an engine configuration through the real cuDNN.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/abi.h"

namespace ortlock::cudnn {

// Owns a descriptor made by the real cuDNN, out of the provider's sight.
class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int type) noexcept;
  ~OwnedDescriptor();
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = nullptr; }
  OwnedDescriptor(const OwnedDescriptor&) = delete;
  OwnedDescriptor& operator=(const OwnedDescriptor&) = delete;
  OwnedDescriptor& operator=(OwnedDescriptor&&) = delete;

  BackendDescriptor get() const { return descriptor_; }
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
};

EngineNotes read_notes(BackendDescriptor config);
std::vector<std::pair<std::int64_t, std::int64_t>> read_knobs(BackendDescriptor config);
std::int64_t read_workspace(BackendDescriptor plan);

// True if cuDNN can make a plan of `config` for `handle`; the plan is destroyed again.
bool plan_can_be_made(Handle handle, BackendDescriptor config);

std::vector<std::string> note_names(const std::vector<int>& notes, const char* const* names, std::size_t count);

}  // namespace ortlock::cudnn
