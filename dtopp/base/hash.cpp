#include "dtopp/base/hash.h"

#include <array>
#include <new>
#include <stdexcept>

#include <openssl/evp.h>
#include <xxhash.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/stop.h"

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

namespace {

void require(int success) {
  if (success != 1) throw std::runtime_error("libcrypto cannot compute a checksum");
}

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

Context start(const EVP_MD* algorithm) {
  Context context(EVP_MD_CTX_new());
  if (!context) throw std::bad_alloc();
  require(EVP_DigestInit_ex(context.get(), algorithm, nullptr));
  return context;
}

void add(const Context& context, std::string_view bytes) {
  require(EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()));
}

std::string finish(const Context& context) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned size = 0;
  require(EVP_DigestFinal_ex(context.get(), digest.data(), &size));
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : std::span(digest).first(size)) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

struct Sha256::State {
  Context context = start(EVP_sha256());
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
void Sha256::update(std::string_view bytes) { add(state_->context, bytes); }
std::string Sha256::hexdigest() { return finish(state_->context); }

// The SHA-1 of "blob SIZE", a zero byte, and the bytes.
std::string git_blob_id(std::string_view bytes) {
  const Context context = start(EVP_sha1());
  add(context, "blob " + std::to_string(bytes.size()) + '\0');
  add(context, bytes);
  return finish(context);
}

}  // namespace dtopp
