// A file that several runs of a program append to, one after another.
//
// The caller records the file's size after each sync(). The next run passes the recorded size, and the
// constructor cuts off the bytes beyond it, which an interrupted run left.
//
// A head of `head_bytes` bytes may be reserved at the start of the file and written last. It counts neither
// in size() nor in hash().
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/hash.h"

namespace dtopp {

class Descriptor;

class AppendFile {
 public:
  // Opens or creates `path`, cuts it to its first `size` bytes after the head, and appends from there.
  //
  // Throws:        DataError, and leaves the file unchanged, if it is shorter, if the checksum of those bytes
  //                differs from a non-empty `hash`, if `path` is a symbolic link, or if a system call fails
  AppendFile(std::filesystem::path path, uint64_t size, const std::string& hash = "",
             uint64_t head_bytes = 0);
  ~AppendFile();  // drops buffered bytes and reports no errors; call sync() first
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // Writes at most head_bytes bytes at the start of the file. They are on the device after the next sync().
  void write_head(std::span<const std::byte> bytes);
  // Passes the buffered bytes to the system.
  void flush();
  // Returns once every written byte is on the device.
  void sync();

  uint64_t size() const { return size_; }  // includes bytes that are still buffered
  std::string hash() const { return hasher_.hexdigest(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  void read_hash(const Descriptor& descriptor, uint64_t size);

  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t head_bytes_ = 0;
  uint64_t size_ = 0;
  Hasher hasher_;
  std::vector<std::byte> buffer_;
};

}  // namespace dtopp
