// Denies access to a directory, also when tests run as root: the process gives up root's rights.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

namespace dtopp {

class ForbiddenDirectory {
 public:
  explicit ForbiddenDirectory(std::filesystem::path path)
      : path_(std::move(path)), is_root_(::geteuid() == 0) {
    constexpr uid_t kNobody = 65534;
    ::chmod(path_.c_str(), is_root_ ? 0700 : 0);
    if (is_root_ && ::seteuid(kNobody) != 0) std::abort();
  }
  ~ForbiddenDirectory() {
    if (is_root_ && ::seteuid(0) != 0) std::abort();
    ::chmod(path_.c_str(), 0700);
  }
  ForbiddenDirectory(const ForbiddenDirectory&) = delete;
  ForbiddenDirectory& operator=(const ForbiddenDirectory&) = delete;

 private:
  std::filesystem::path path_;
  bool is_root_;
};

}  // namespace dtopp
