#include "dtopp/base/sha256.h"

#include <array>
#include <new>
#include <stdexcept>

#include <openssl/evp.h>

namespace dtopp {

namespace {

void require(int success) {
  if (success != 1) throw std::runtime_error("libcrypto cannot compute SHA-256");
}

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, FreeContext> context{EVP_MD_CTX_new()};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (!state_->context) throw std::bad_alloc();
  require(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr));
}
Sha256::~Sha256() = default;

void Sha256::update(std::string_view bytes) {
  require(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()));
}

std::string Sha256::hexdigest() {
  std::array<unsigned char, 32> digest = {};
  require(EVP_DigestFinal_ex(state_->context.get(), digest.data(), nullptr));
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace dtopp
