// Reads the token ids of a .bin or .npy file: one array of one integer type.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/hash.h"

namespace dtopp::data {

enum class TokenType { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kUint64, kInt64 };

uint64_t size_of(TokenType type);  // bytes per id

class TokenArray {
 public:
  // Wraps the `count` ids that begin at byte `offset` of `file`. Throws DataError if the file is too short.
  TokenArray(Descriptor file, uint64_t offset, TokenType type, uint64_t count);

  uint64_t size() const { return count_; }
  // Reads ids [offset, offset + out.size()). Precondition: they lie within the array. Throws DataError if the
  // file became shorter.
  void read(uint64_t offset, std::span<int64_t> out) const;
  // Reads all ids and returns the largest; -1 if there are none. Adds each id to the hash `ids` as eight
  // bytes. Throws DataError, naming file and byte, if an id is negative.
  int64_t scan(Hasher& ids) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  Descriptor file_;
  uint64_t offset_;
  TokenType type_;
  uint64_t count_;
};

}  // namespace dtopp::data
