#include "dtopp/base/hash.h"

#include <array>
#include <new>

#include <openssl/evp.h>
#include <xxhash.h>

#include "dtopp/base/files.h"
#include "dtopp/base/stop.h"

namespace dtopp {
namespace {

std::string hexadecimal(std::span<const unsigned char> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string hexadecimal(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return hexadecimal(canonical.digest);
}

void require(int success) {
  if (success != 1) throw std::runtime_error("libcrypto cannot compute a checksum");
}

}  // namespace

Hasher::Hasher() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void Hasher::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void Hasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

std::string Hasher::hexdigest() const { return hexadecimal(XXH3_128bits_digest(state_.get())); }

std::string hash_bytes(std::span<const std::byte> bytes) {
  return hexadecimal(XXH3_128bits(bytes.data(), bytes.size()));
}

// Reads instead of mapping: if the device fails, read() returns an error, whereas a map raises SIGBUS.
std::string hash_file(const fs::path& path) {
  const Descriptor descriptor = open_regular(path);
  Hasher hasher;
  auto chunk = descriptor.make_buffer();
  while (const size_t count = descriptor.read(chunk.data(), chunk.size())) {
    end_if_stopped();
    hasher.update(std::span(chunk).first(count));
  }
  return hasher.hexdigest();
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (!context_) throw std::bad_alloc();
  require(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
}

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

void Sha256::update(std::string_view bytes) {
  require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string Sha256::hexdigest() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned size = 0;
  require(EVP_DigestFinal_ex(context_.get(), digest.data(), &size));
  return hexadecimal(std::span(digest).first(size));
}

// The SHA-1 of "blob SIZE", a zero byte, and the bytes.
std::string git_blob_id(std::string_view bytes) {
  const std::string blob = concat("blob ", bytes.size(), std::string_view("\0", 1), bytes);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned size = 0;
  require(EVP_Digest(blob.data(), blob.size(), digest.data(), &size, EVP_sha1(), nullptr));
  return hexadecimal(std::span(digest).first(size));
}

}  // namespace dtopp
