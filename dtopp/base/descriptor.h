// Checks the results of system calls on file descriptors.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtopp/base/files.h"

namespace dtopp {

// Repeats the call while a signal interrupts it, and returns its result.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Closes the descriptor, which is invalid afterwards whatever close() returns. EINTR is not an error, because
// the data was synced before.
inline void close_checked(int descriptor, const std::filesystem::path& path) {
  if (::close(descriptor) != 0 && errno != EINTR) throw file_error("close", path, errno);
}

// An open descriptor that the destructor closes. `action` describes the purpose in the error message if
// open() fails.
class Descriptor {
 public:
  Descriptor(std::filesystem::path path, int flags, const std::string& action)
      : path_(std::move(path)),
        value_(retry([&] { return ::open(path_.c_str(), flags | O_CLOEXEC, 0666); })) {
    if (value_ < 0) throw file_error(action, path_, errno);
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : path_(std::move(other.path_)), value_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor(const Descriptor&) = delete;

  int get() const { return value_; }
  const std::filesystem::path& path() const { return path_; }
  int release() { return std::exchange(value_, -1); }

  uint64_t size() const { return static_cast<uint64_t>(status().st_size); }
  struct stat status() const {
    struct stat status {};
    if (::fstat(value_, &status) != 0) throw file_error("read", path_, errno);
    return status;
  }

  // A buffer for reading the file: at most 1 MiB, and smaller for small files.
  std::vector<std::byte> make_buffer() const {
    constexpr uint64_t kLargest = uint64_t{1} << 20;
    const auto file = status();
    const uint64_t size = S_ISREG(file.st_mode) ? static_cast<uint64_t>(file.st_size) + 1 : kLargest;
    return std::vector<std::byte>(std::min(size, kLargest));
  }

  // Reads up to `size` bytes; returns 0 at the end of the file.
  size_t read(void* data, size_t size) const {
    const auto count = retry([&] { return ::read(value_, data, size); });
    if (count < 0) throw file_error("read", path_, errno);
    return static_cast<size_t>(count);
  }

  // Fills `out` with the bytes from `offset` on. Any thread may call it. Throws DataError if the file ends
  // earlier, where a map would raise SIGBUS.
  void read_at(uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const auto count =
          retry([&] { return ::pread(value_, out.data(), out.size(), static_cast<off_t>(offset)); });
      if (count < 0) throw file_error("read", path_, errno);
      if (count == 0)
        throw DataError(path_, ": byte ", offset,
                        ": the file ends: it became shorter since it was opened; restore it");
      offset += static_cast<uint64_t>(count);
      out = out.subspan(static_cast<size_t>(count));
    }
  }

 private:
  std::filesystem::path path_;
  int value_;
};

// Opens a file for reading. Throws DataError if it is not a regular file. O_NONBLOCK: opening a named pipe
// must not wait for a writer.
inline Descriptor open_regular(const std::filesystem::path& path) {
  Descriptor descriptor(path, O_RDONLY | O_NONBLOCK, "open");
  if (!S_ISREG(descriptor.status().st_mode)) throw DataError(path, ": not a regular file; check the path");
  return descriptor;
}

}  // namespace dtopp
