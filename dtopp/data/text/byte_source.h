// The bytes of a file, decompressed as they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace dtopp {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills `out` from its start; less than its size only at the end, 0 when nothing is left. DataError naming
  // the file and the byte (of the compressed file) where it is cut, damaged or followed by something else.
  virtual size_t read(std::span<char> out) = 0;
  // Passes over at most `count` bytes without reading them, where the file allows that; returns how many, 0
  // also at the end.
  virtual uint64_t skip(uint64_t count) {
    static_cast<void>(count);
    return 0;
  }
  // Bytes of the file itself taken so far.
  virtual uint64_t file_bytes() const = 0;
};

// Decompresses names ending in .gz (any number of members) and .zst (any number of frames, windows up to
// 128 MiB); other files are read as they are.
std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path);

}  // namespace dtopp
