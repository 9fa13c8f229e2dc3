// A memory-mapped array of token ids of one integer type: what .bin and .npy files hold.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"

namespace dtopp {

enum class TokenType { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kUint64, kInt64 };

uint64_t size_of(TokenType type);

class TokenArray {
 public:
  // The `count` ids from byte `offset` of `file` on. DataError when they are not all there.
  TokenArray(MappedFile file, uint64_t offset, TokenType type, uint64_t count);

  uint64_t size() const { return count_; }
  // Copies ids [offset, offset + out.size()), which must exist.
  void read(uint64_t offset, std::span<int64_t> out) const;
  // The largest id, found by reading all of them; -1 if there are none. Adds them to `ids`, eight bytes each.
  // DataError naming file and byte of a negative one.
  int64_t scan(Hasher& ids) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  uint64_t offset_;
  TokenType type_;
  uint64_t count_;
};

// A .npy file: with NumPy's header (one dimension, integers, little-endian) or raw ids without any, as OLMo
// writes them: uint16, or uint32 when `vocab_size` does not fit that.
TokenArray open_npy(const std::filesystem::path& path, int64_t vocab_size);

// A Megatron .bin file and the .idx beside it: checked against each other.
struct TokenPair {
  TokenArray tokens;
  uint64_t documents;
};
TokenPair open_megatron(const std::filesystem::path& bin, const std::filesystem::path& idx);

}  // namespace dtopp
