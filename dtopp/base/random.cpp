#include "dtopp/base/random.h"

#include <bit>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace dtopp {
namespace {

constexpr unsigned kFeistelRounds = 6;

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, uint64_t key) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53U} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(product0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return counter;
}

RandomStream::RandomStream(uint64_t seed, std::string_view purpose) : key_(seed), stream_(fnv1a(purpose)) {}

std::array<uint32_t, 4> RandomStream::bits(uint64_t index) const {
  return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                     static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                    key_);
}

double RandomStream::uniform(uint64_t index) const {
  const auto words = bits(index);
  const uint64_t mantissa = ((uint64_t{words[0]} << 32) | words[1]) >> 11;
  return static_cast<double>(mantissa) * 0x1.0p-53;
}

void RandomStream::normals(uint64_t index, std::span<float> out) const {
  constexpr size_t kOfBlock = 4;
  const uint64_t blocks = (out.size() + kOfBlock - 1) / kOfBlock;
  for (uint64_t block = 0; block < blocks; ++block) {
    const auto words = bits(index * blocks + block);
    std::array<double, kOfBlock> values{};
    for (size_t pair = 0; pair < kOfBlock; pair += 2) {
      const double radius = std::sqrt(-2.0 * std::log((words[pair] + 0.5) * 0x1.0p-32));
      const double angle = 2.0 * std::numbers::pi * (words[pair + 1] * 0x1.0p-32);
      values[pair] = radius * std::cos(angle);
      values[pair + 1] = radius * std::sin(angle);
    }
    for (size_t i = 0; i < kOfBlock && block * kOfBlock + i < out.size(); ++i)
      out[block * kOfBlock + i] = static_cast<float>(values[i]);
  }
}

Permutation::Permutation(const RandomStream& stream, uint64_t epoch, uint64_t size)
    : stream_(stream),
      epoch_(epoch),
      size_(size),
      half_bits_((std::bit_width(size > 1 ? size - 1 : 1) + 1) / 2) {
  if (size == 0 || half_bits_ > 26) throw std::invalid_argument("Permutation: size must be in [1, 2^52]");
}

uint64_t Permutation::operator()(uint64_t position) const {
  if (position >= size_) throw std::out_of_range("Permutation: position beyond size");
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  // The counter of the round function packs epoch (34 bits), round (4 bits) and half block (26 bits).
  do {
    uint64_t left = position >> half_bits_;
    uint64_t right = position & mask;
    for (unsigned round = 0; round < kFeistelRounds; ++round) {
      const auto words = stream_.bits((epoch_ << 30) | (uint64_t{round} << 26) | right);
      const uint64_t next = left ^ (words[0] & mask);
      left = right;
      right = next;
    }
    position = (left << half_bits_) | right;
  } while (position >= size_);
  return position;
}

}  // namespace dtopp
