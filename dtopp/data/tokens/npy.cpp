#include "dtopp/data/tokens/npy.h"

#include <array>
#include <string_view>
#include <utility>

#include "dtopp/base/byte_reader.h"
#include "dtopp/data/files/npy_header.h"

namespace dtopp::data {
namespace {

TokenType type_of(std::string_view descr, const ByteReader& reader) {
  constexpr std::array<std::pair<std::string_view, TokenType>, 8> kTypes{{{"'|u1'", TokenType::kUint8},
                                                                          {"'|i1'", TokenType::kInt8},
                                                                          {"'<u2'", TokenType::kUint16},
                                                                          {"'<i2'", TokenType::kInt16},
                                                                          {"'<u4'", TokenType::kUint32},
                                                                          {"'<i4'", TokenType::kInt32},
                                                                          {"'<u8'", TokenType::kUint64},
                                                                          {"'<i8'", TokenType::kInt64}}};
  for (const auto& [name, type] : kTypes) {
    if (descr == name) return type;
  }
  reader.fail("dtype " + std::string(descr.substr(0, 40)) +
              " cannot hold token ids; save a little-endian integer array");
}

TokenArray open_with_header(Descriptor file, std::span<const std::byte> beginning) {
  ByteReader reader(beginning, file.path().string());
  const NpyHeader header = read_npy_header(reader);
  const TokenType type = type_of(header.descr, reader);
  if (header.shape.size() != 1) reader.fail("the array is not one-dimensional");
  const uint64_t offset = reader.offset();
  require_npy_bytes(reader, header.shape, size_of(type), file.size() - offset);
  return TokenArray(std::move(file), offset, type, static_cast<uint64_t>(header.shape[0]));
}

}  // namespace

TokenArray open_npy(const std::filesystem::path& path, int64_t vocab_size) {
  Descriptor file = open_regular(path);
  const auto beginning = read_npy_beginning(file);
  if (begins_as_npy(beginning)) return open_with_header(std::move(file), beginning);
  const TokenType type = vocab_size > (int64_t{1} << 16) ? TokenType::kUint32 : TokenType::kUint16;
  const uint64_t bytes = file.size();
  if (bytes % size_of(type) != 0)
    throw DataError(path.string() + ": byte " + std::to_string(bytes) + ": ends within a token id of " +
                    std::to_string(size_of(type)) + " bytes: truncated");
  const uint64_t count = bytes / size_of(type);
  return TokenArray(std::move(file), 0, type, count);
}

}  // namespace dtopp::data
