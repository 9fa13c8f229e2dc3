#include "dtopp/base/hash.h"

#include <new>
#include <vector>

#include <xxhash.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/stop_scope.h"

namespace dtopp {
namespace {

std::string hexadecimal(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

struct Hasher::State {
  State() : xxh3(XXH3_createState()) {
    if (!xxh3) throw std::bad_alloc();
    XXH3_128bits_reset(xxh3);
  }
  ~State() { XXH3_freeState(xxh3); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* xxh3;  // allocated by the library, which aligns it
};

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;

void Hasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh3, bytes.data(), bytes.size());
}

std::string Hasher::hexdigest() const { return hexadecimal(XXH3_128bits_digest(state_->xxh3)); }

std::string hash_bytes(std::span<const std::byte> bytes) {
  return hexadecimal(XXH3_128bits(bytes.data(), bytes.size()));
}

// Reads instead of mapping: if the device fails, read() returns an error, whereas a map raises SIGBUS.
std::string hash_file(const std::filesystem::path& path) {
  const Descriptor descriptor = open_regular(path);
  Hasher hasher;
  auto chunk = descriptor.make_buffer();
  while (const size_t count = descriptor.read(chunk.data(), chunk.size())) {
    end_if_stopped();
    hasher.update(std::span(chunk).first(count));
  }
  return hasher.hexdigest();
}

}  // namespace dtopp
