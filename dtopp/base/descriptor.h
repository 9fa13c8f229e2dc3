// Calls the system on file descriptors and checks the results.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtopp/base/errors.h"

namespace dtopp {

// The error of a failed system call.
struct FileError : DataError {
  FileError(const std::string& message, int error_number) : DataError(message), error_number(error_number) {}
  int error_number;
};

// Builds such an error: the path, the action, the system's reason and a remedy.
FileError file_error(const std::string& action, const fs::path& path, int error_number);

// Repeats the call while a signal interrupts it, and returns its result.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// An open descriptor that the destructor closes. `action` describes the purpose in the error message if
// open() fails.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, const std::string& action)
      : Descriptor(path, flags, action, path) {}
  // Errors name `shown` instead of the path.
  Descriptor(const fs::path& path, int flags, const std::string& action, fs::path shown)
      : path_(std::move(shown)),
        value_(retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); })) {
    if (value_ < 0) throw file_error(action, path_, errno);
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : path_(std::move(other.path_)), value_(other.release()) {}

  int get() const { return value_; }
  const fs::path& path() const { return path_; }
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

  void write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const auto count = retry([&] { return ::write(value_, bytes.data(), bytes.size()); });
      if (count <= 0) throw file_error("write", path_, count < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }
  void sync() const {
    if (retry([&] { return ::fsync(value_); }) != 0) throw file_error("sync", path_, errno);
  }
  // The descriptor is invalid afterwards whatever close() returns. EINTR is no error, because the data was
  // synced before.
  void close() {
    if (::close(release()) != 0 && errno != EINTR) throw file_error("close", path_, errno);
  }

 private:
  fs::path path_;
  int value_;
};

// Opens a file for reading. Throws DataError if it is not a regular file. O_NONBLOCK: opening a named pipe
// must not wait for a writer.
inline Descriptor open_regular(const fs::path& path) {
  Descriptor descriptor(path, O_RDONLY | O_NONBLOCK, "open");
  if (!S_ISREG(descriptor.status().st_mode)) throw DataError(path, ": not a regular file; check the path");
  return descriptor;
}

}  // namespace dtopp
