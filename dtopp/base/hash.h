// Computes XXH3-128 checksums, as 32 lower-case hexadecimal digits (the canonical, big-endian form of xxhsum
// -H2).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

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

}  // namespace dtopp
