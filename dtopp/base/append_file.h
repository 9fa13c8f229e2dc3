// A file that several runs of a program append to. Whoever opens it says how many bytes were recorded after
// the last sync; what lies beyond them, from a run that was interrupted, is cut off.
// Some bytes in front of them may be left open for a head that is known last; they count in no size and hash.
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
  // Opens `path`, or creates it, cuts it to its first `size` bytes and goes on from there. DataError, with
  // the file left as it is, when it is shorter, those bytes have another checksum than `hash` (where that is
  // given), it is a link or the system refuses.
  AppendFile(std::filesystem::path path, uint64_t size, const std::string& hash = "",
             uint64_t head_bytes = 0);
  ~AppendFile();  // closes without a report; sync() before to learn of errors
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // At the file's start, at most head_bytes.
  void write_head(std::span<const std::byte> bytes);
  // Hands over what was written to the system.
  void flush();
  // Returns once every byte written is on the device.
  void sync();

  uint64_t size() const { return size_; }  // what lies in the file and what will
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
