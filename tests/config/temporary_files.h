// A fixture with a directory per test, removed with its contents at the end, and the message of a thrown
// error.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "dtopp/base/errors.h"

namespace dtopp::config {

class TemporaryFiles : public ::testing::Test {
 protected:
  TemporaryFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dtopp-config-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFiles() override {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << text;
    return root_ / name;
  }

  // The message of the UsageError that `call` throws, with the test's directory cut out.
  template <class Call>
  std::string usage_error(Call call) const {
    try {
      call();
    } catch (const UsageError& error) {
      std::string message = error.what();
      const std::string prefix = root_.string() + "/";
      for (size_t at = message.find(prefix); at != std::string::npos; at = message.find(prefix))
        message.erase(at, prefix.size());
      return message;
    }
    return "no error";
  }

  std::filesystem::path root_;
};

}  // namespace dtopp::config
