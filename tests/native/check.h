// A case is a function that registers itself; a failed check ends the process with the place and the values.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "cudnn/functions.h"
#include "cudnn/session.h"
#include "stand_ins/cudnn.h"
#include "stand_ins/provider.h"

inline std::map<std::string, void (*)()>& cases() {
  static std::map<std::string, void (*)()> all;
  return all;
}

#define CASE(name)                                              \
  static void name();                                           \
  static const bool name##_registered = (cases()[#name] = &name, true); \
  static void name()

template <typename A, typename B>
void check_equal(const A& actual, const B& expected, const char* text, const char* file, int line) {
  if (actual == expected) return;
  std::cerr << file << ':' << line << ": " << text << ": got " << actual << ", expected " << expected << std::endl;
  std::abort();
}

#define EQUAL(actual, expected) check_equal(actual, expected, #actual, __FILE__, __LINE__)
#define TRUE(condition) check_equal(static_cast<bool>(condition), true, #condition, __FILE__, __LINE__)

// One of the stand-ins for ONNX Runtime's CUDA provider, loaded.
struct Provider {
  void* library;
  ProviderCreate create;
  ProviderDestroy destroy;
  ProviderConvolution convolution;
  ProviderLegacy legacy;
  ProviderNamed named;
  ProviderWorkspace workspace;
  ProviderTouch touch;

  explicit Provider(const std::string& name) {
    library = dlopen((std::string(STAND_INS) + "/lib" + name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      std::cerr << dlerror() << std::endl;
      std::abort();
    }
    create = symbol<ProviderCreate>("provider_create");
    destroy = symbol<ProviderDestroy>("provider_destroy");
    convolution = symbol<ProviderConvolution>("provider_convolution");
    legacy = symbol<ProviderLegacy>("provider_legacy");
    workspace = symbol<ProviderWorkspace>("provider_workspace");
    named = symbol<ProviderNamed>("provider_named");
    touch = symbol<ProviderTouch>("provider_touch");
  }

  template <typename T>
  T symbol(const char* name) const {
    return reinterpret_cast<T>(dlsym(library, name));
  }
};

// A counter of the stand-in for cuDNN.
inline long stand_in(const char* name) {
  void* library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
  auto* counter = library ? reinterpret_cast<long (*)()>(dlsym(library, name)) : nullptr;
  return counter ? counter() : -1;
}

// The calls of this thread belong to a new session while this lives.
struct Scope {
  std::int64_t token;
  std::int64_t previous;

  explicit Scope(ortlock::cudnn::Policy policy)
      : token(ortlock::cudnn::open_session(policy)), previous(ortlock::cudnn::enter(token)) {}
  ~Scope() { ortlock::cudnn::leave(previous); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // Counts reach the session when a thread leaves it.
  ortlock::cudnn::Session::Snapshot records() const {
    ortlock::cudnn::leave(previous);
    ortlock::cudnn::enter(token);
    return ortlock::cudnn::find_session(token)->snapshot();
  }
  std::int64_t events() const { return ortlock::cudnn::find_session(token)->events(); }
};
