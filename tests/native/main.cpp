// native_tests: lists the cases; native_tests NAME: runs one. Each runs in a process of its own, because what is
// patched and resolved lasts as long as the process.
#include "check.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    for (const auto& entry : cases()) std::cout << entry.first << '\n';
    return 0;
  }
  const auto found = cases().find(argv[1]);
  if (found == cases().end()) {
    std::cerr << "no case " << argv[1] << '\n';
    return 2;
  }
  found->second();
  std::cout << "ok\n";
  return 0;
}
