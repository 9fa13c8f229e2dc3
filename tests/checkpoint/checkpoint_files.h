// Sample checkpoints on disk, and ways to damage them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/checkpoint/checkpoint_contents.h"

namespace dtopp::checkpoint::checkpoint_test {

inline void overwrite(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

inline std::filesystem::path save(const std::filesystem::path& checkpoints, int64_t step, int64_t keep = 0) {
  return save_checkpoint(checkpoints, SampleContents(step).contents, keep);
}

}  // namespace dtopp::checkpoint::checkpoint_test
