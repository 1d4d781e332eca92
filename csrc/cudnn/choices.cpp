#include "cudnn/choices.h"

namespace ortlock::cudnn {

std::string id_of(const std::string& key) {
  __extension__ using Wide = unsigned __int128;
  // http://www.isthe.com/chongo/tech/comp/fnv: offset basis and prime for 128 bits.
  Wide hash = (Wide{0x6c62272e07bb0142} << 64) | Wide{0x62b821756295c58d};
  constexpr Wide kPrime = (Wide{1} << 88) | Wide{0x13b};
  for (const char byte : key) hash = (hash ^ static_cast<unsigned char>(byte)) * kPrime;
  std::string id(32, '0');
  for (auto digit = id.rbegin(); digit != id.rend(); ++digit, hash >>= 4) {
    *digit = "0123456789abcdef"[static_cast<unsigned>(hash & 15)];
  }
  return id;
}

}  // namespace ortlock::cudnn
