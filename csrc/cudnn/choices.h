// Choices that were written down: what a lockfile says for a session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ortlock::cudnn {

// Knob types and values, sorted.
using Knobs = std::vector<std::pair<std::int64_t, std::int64_t>>;

// An engine with its knobs (graph API) or an algorithm with its math type (legacy API).
struct Choice {
  bool legacy = false;
  std::int64_t engine = -1;
  Knobs knobs;
  int math_type = 0;
  std::int64_t workspace_bytes = 0;
};

// The choices that a session replays. Constant once made.
struct Lock {
  // Stands for the content: sessions with the same choices share what the plan book keeps.
  std::string name;
  // Nothing else may run: an operation without a choice is refused.
  bool exclusive = false;
  std::unordered_map<std::string, Choice> choices;  // by id

  const Choice* find(const std::string& id) const {
    const auto found = choices.find(id);
    return found == choices.end() ? nullptr : &found->second;
  }
};
using LockPtr = std::shared_ptr<const Lock>;

// Where a choice came from.
inline constexpr const char* kFromRanking = "ranking";
inline constexpr const char* kFromLockfile = "lockfile";

// The name of an operation in a lockfile: 32 hexadecimal digits over its canonical key (FNV-1a, 128 bits).
std::string id_of(const std::string& key);

}  // namespace ortlock::cudnn
