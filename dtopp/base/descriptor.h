// System calls on file descriptors with their results checked.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtopp/base/files.h"

namespace dtopp {

// The call's answer once no signal interrupts it.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// The descriptor is gone afterwards whatever close() answers; EINTR is no loss, since data were synced
// before.
inline void close_checked(int descriptor, const std::filesystem::path& path) {
  if (::close(descriptor) != 0 && errno != EINTR) throw file_error("close", path, errno);
}

// An open descriptor, closed on every way out. `action` names the purpose in the error when it cannot be
// opened. `path` must outlive it.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags, const std::string& action)
      : path_(path), value_(retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); })) {
    if (value_ < 0) throw file_error(action, path, errno);
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

  struct stat status() const {
    struct stat status {};
    if (::fstat(value_, &status) != 0) throw file_error("read", path_, errno);
    return status;
  }

  // A buffer for reading it through: small for small files.
  std::vector<std::byte> make_buffer() const {
    constexpr uint64_t kLargest = uint64_t{1} << 20;
    const auto file = status();
    const uint64_t size = S_ISREG(file.st_mode) ? static_cast<uint64_t>(file.st_size) + 1 : kLargest;
    return std::vector<std::byte>(std::min(size, kLargest));
  }

  // Up to `size` bytes; 0 at the end.
  size_t read(void* data, size_t size) const {
    const auto count = retry([&] { return ::read(value_, data, size); });
    if (count < 0) throw file_error("read", path_, errno);
    return static_cast<size_t>(count);
  }

 private:
  const std::filesystem::path& path_;
  int value_;
};

}  // namespace dtopp
