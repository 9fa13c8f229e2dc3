// Reads the bytes of a file and decompresses them on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "dtopp/base/errors.h"

namespace dtopp::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills `out` from its start and returns the number of bytes. It is less than out.size() only at the end,
  // and 0 when nothing is left. Throws DataError if the file is truncated, damaged or followed by other data.
  // The message names the file and the byte offset (in the compressed file).
  virtual size_t read(std::span<char> out) = 0;
  // Skips at most `count` bytes without reading them, if the file allows that. Returns the number of bytes
  // skipped; 0 also at the end.
  virtual uint64_t skip(uint64_t count) {
    static_cast<void>(count);
    return 0;
  }
  // Bytes consumed so far, counted in the file itself, that is before decompression.
  virtual uint64_t file_bytes() const = 0;
};

// The ending of `path` that names a compression (.gz, .zst, .zstd); empty if there is none.
std::string_view compression_ending(const fs::path& path);

// Opens a file for reading. Gzip (any number of members) and zstd (any number of frames, windows up to
// 128 MiB) are decompressed, whether the file's first bytes or its name tell; the bytes win. Other files are
// read unchanged.
std::unique_ptr<ByteSource> open_bytes(const fs::path& path);

}  // namespace dtopp::data
