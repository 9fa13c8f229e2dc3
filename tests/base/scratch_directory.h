// An empty directory for one test. It lies in memory if the system has such a file system, and it is removed
// with its contents when the test ends.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

namespace dtopp {

class ScratchDirectory {
 public:
  ScratchDirectory() {
    const bool has_memory = ::access("/dev/shm", W_OK) == 0;
    const auto parent = has_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    auto name = (parent / "dtopp_test_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("cannot create " + name);
    path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// Returns the message of the error of type T that the action throws. The test fails if it throws nothing or
// another type.
template <class T>
std::string error_of(const auto& action) {
  try {
    action();
  } catch (const T& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "more than one line";
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace dtopp
