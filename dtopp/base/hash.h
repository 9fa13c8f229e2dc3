// Computes XXH3-128 checksums, as 32 lower-case hexadecimal digits (the canonical, big-endian form of xxhsum
// -H2).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace dtopp {
class Hasher {
 public:
  Hasher();
  ~Hasher();
  void update(std::span<const std::byte> bytes);
  std::string hexdigest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_bytes(std::span<const std::byte> bytes);
// Throws DataError if the file cannot be read, StoppedEarly at a stop within a StopScope.
std::string hash_file(const std::filesystem::path& path);

// Computes the checksums by which publishers identify files of data sets, in lower-case hexadecimal digits:
// SHA-256, and git's blob ids.
//
// Files that dtopp writes use XXH3-128 (base/hash.h), which is faster: 12 against 1.1 GB/s on one core with
// SHA instructions.

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(std::string_view bytes);
  // The digest of all bytes so far. Call it once, at the end.
  std::string hexdigest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The id that git gives to a file with these bytes.
std::string git_blob_id(std::string_view bytes);

}  // namespace dtopp
