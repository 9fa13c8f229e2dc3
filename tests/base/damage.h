// Damages a file for tests of its readers. tests/base/manifest_test.cpp flips every bit of what a manifest
// covers; tests of readers that rely on a manifest need one flip and one cut per file.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>

#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"

namespace dtopp {

inline std::string with_flipped_bit(std::string bytes, size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  return bytes;
}

// Expects that `open` throws an Error that names the file: after a bit of it is flipped, and after its last
// byte is cut.
template <class Error>
void expect_damage_is_named(const std::filesystem::path& path, const auto& open) {
  const std::string good = read_file(path);
  for (const std::string& bad :
       {with_flipped_bit(good, good.size() / 2 * 8), good.substr(0, good.size() - 1)}) {
    std::ofstream(path, std::ios::binary) << bad;
    EXPECT_THAT(error_of<Error>(open), testing::StartsWith(path.string() + ": "));
  }
  std::ofstream(path, std::ios::binary) << good;
}

}  // namespace dtopp
