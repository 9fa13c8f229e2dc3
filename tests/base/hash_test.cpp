#include "dtopp/base/hash.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "dtopp/base/stop.h"

namespace dtopp::hash_test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The input of xxHash's own sanity test: bytes of a multiplicative generator.
std::string sanity_buffer(size_t length) {
  std::string text;
  uint64_t generator = 2654435761u;
  for (size_t i = 0; i < length; ++i) {
    text += static_cast<char>(generator >> 56);
    generator *= 11400714785074694797u;
  }
  return text;
}

struct Vector {
  size_t length;
  const char* digest;
};

// The digests for seed 0 that xxHash publishes for xxhsum's self-test, high half first; one length per
// branch.
constexpr Vector kVectors[] = {
    {0, "99aa06d3014798d86001c324468d497f"},    {1, "a6cd5e9392000f6ac44bdff4074eecdb"},
    {6, "082afe0b8162d12a3e7039bdda43cfc6"},    {12, "6e3efd8fc7802b18061a192713f69ad9"},
    {24, "0ce966e4678d37611e7044d28b1b901d"},   {48, "a002ac4e5478227ef942219aed80f67b"},
    {81, "4952f58181ab00425e8bafb9f95fb803"},   {222, "337e09641b948717f1aebd597cec6b3a"},
    {403, "1b6de21e332dd73dcdeb804d65c6dea4"},  {512, "18d2d110dcc9bca1617e49599013cb6b"},
    {2048, "f736557fd47073a5dd59e2c3a5f038e0"}, {2240, "ccb134fbfa7ce49d6e73a90539cf2948"},
    {2367, "e89c0f6ff369b427cb37aeb9e5d361ed"},
};

TEST(Hash, matches_the_published_vectors) {
  for (const auto& [length, digest] : kVectors)
    EXPECT_EQ(hash_bytes(bytes_of(sanity_buffer(length))), digest) << length;
}

TEST(Hash, does_not_depend_on_how_the_bytes_arrive) {
  const auto text = sanity_buffer(5000);
  for (const size_t step : {size_t{1}, size_t{7}, size_t{64}, size_t{999}, size_t{5000}}) {
    Hasher hasher;
    for (size_t i = 0; i < text.size(); i += step) hasher.update(bytes_of(text.substr(i, step)));
    EXPECT_EQ(hasher.hexdigest(), hash_bytes(bytes_of(text))) << step;
  }
}

TEST(Hash, of_a_file_is_the_hash_of_its_bytes) {
  const auto path = std::filesystem::temp_directory_path() / ("dtopp_hash_" + std::to_string(::getpid()));
  const auto text = sanity_buffer((size_t{1} << 20) + 12345);
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(hash_file(path), hash_bytes(bytes_of(text)));
  std::filesystem::remove(path);
  EXPECT_THROW(hash_file(path), DataError);
  EXPECT_THROW(hash_file(path.parent_path()), DataError);
}

TEST(Hash, of_a_file_ends_at_a_stop_within_a_scope_only) {
  std::atomic<bool> requested = false;
  {
    const StopScope scope{StopToken(requested)};
    EXPECT_EQ(hash_file("/proc/self/exe").size(), 32U);
    requested = true;
    EXPECT_THROW(hash_file("/proc/self/exe"), StoppedEarly);
  }
  EXPECT_EQ(hash_file("/proc/self/exe").size(), 32U);
}

}  // namespace
}  // namespace dtopp::hash_test
