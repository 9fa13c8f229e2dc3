// Files that are complete or absent. Everything dtopp writes that must survive a crash goes through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/base/errors.h"

namespace dtopp {

class Hasher;

// The error of a failed system call: what was tried, the path, the system's reason and what to do about it.
DataError file_error(const std::string& action, const std::filesystem::path& path, int error_number);

// The whole file. DataError when it is missing, unreadable or larger than `limit` bytes.
std::string read_file(const std::filesystem::path& path, uint64_t limit = uint64_t{1} << 32);

// A file being written: every call checks the system's answer and throws DataError naming path and cause.
class OutputFile {
 public:
  enum class Existing { kTruncated, kRefused };

  // Creates `path`; a file that is there is truncated or refused, a link is never followed. Every byte
  // written also goes through `hasher`, where there is one.
  explicit OutputFile(std::filesystem::path path, Hasher* hasher = nullptr,
                      Existing existing = Existing::kTruncated);
  ~OutputFile();  // closes without a report; call close() to learn of errors
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Flushes buffers and forces the bytes to the device (fsync).
  void sync();
  void close();
  void sync_and_close() {
    sync();
    close();
  }
  uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);

  std::filesystem::path path_;
  Hasher* hasher_ = nullptr;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

// What `fill` writes is written beside `path`, synced and renamed over it; the directory is synced too. Of
// several writers the last one to end wins, and a reader sees the whole of one or of another. What an
// interrupted write of `path` left is removed. DataError where `path` is there and no file (a device, a
// pipe).
void write_file_atomically(const std::filesystem::path& path, const std::function<void(OutputFile&)>& fill);
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

// What lies in a directory. DataError where it cannot be listed.
std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory);

// Creates `path` and the parents it lacks, each one durable.
void make_directories(const std::filesystem::path& path);

// Renames within one directory; returns once the new name is durable.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// Removes a file or a directory with all it holds; one that is not there is no error.
void remove_tree(const std::filesystem::path& path);

// The same so that its name is gone, durably, before any of its
// content: what a crash leaves behind carries a temporary name.
void remove_durably(const std::filesystem::path& path);

// Removes what interrupted writes and removals left in `directory`: files and directories with a temporary
// name. Links stay, and so does every other name. Only for who alone writes there (DirectoryLock).
void remove_leftovers(const std::filesystem::path& directory);

// fsync of a file that others have written: what it holds survives a power loss.
void sync_file(const std::filesystem::path& path);

// fsync of a directory, so that renames and new names in it survive a power loss.
void sync_directory(const std::filesystem::path& path);

// A read-only memory map of a whole file. DataError when it cannot be mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// An exclusive lock on a directory (flock on "<directory>/.lock"), held for the object's life. UsageError
// when another process holds it: two processes never write one run directory.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace dtopp
