#include "dtopp/data/tokens/npy.h"

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "dtopp/base/byte_reader.h"
#include "dtopp/data/files/npy_header.h"

namespace dtopp {
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

// Parses the shape of one dimension. The text lacks its closing parenthesis: "(123,".
uint64_t count_of(std::string_view shape, const ByteReader& reader) {
  uint64_t count = 0;
  const char* const end = shape.data() + shape.size();
  const auto [after, error] = std::from_chars(shape.data() + !shape.empty(), end, count);
  if (shape.empty() || shape[0] != '(' || error != std::errc() ||
      std::string_view(after, static_cast<size_t>(end - after)) != ",")
    reader.fail("shape " + std::string(shape.substr(0, 40)) + ") is not one-dimensional");
  return count;
}

TokenArray open_with_header(MappedFile file) {
  ByteReader reader(file.bytes(), file.path().string());
  const NpyHeader header = read_npy_header(reader);
  const TokenType type = type_of(header.descr, reader);
  const uint64_t count = count_of(header.shape, reader);
  const uint64_t offset = reader.offset();
  reader.take(count, size_of(type));
  if (reader.remaining() != 0)
    reader.fail(std::to_string(reader.remaining()) + " bytes follow the array of " + std::to_string(count));
  return TokenArray(std::move(file), offset, type, count);
}

}  // namespace

TokenArray open_npy(const std::filesystem::path& path, int64_t vocab_size) {
  MappedFile file(path);
  const auto bytes = file.bytes();
  if (begins_as_npy(bytes)) return open_with_header(std::move(file));
  const TokenType type = vocab_size > (int64_t{1} << 16) ? TokenType::kUint32 : TokenType::kUint16;
  if (bytes.size() % size_of(type) != 0)
    throw DataError(path.string() + ": byte " + std::to_string(bytes.size()) +
                    ": ends within a token id of " + std::to_string(size_of(type)) + " bytes: truncated");
  const uint64_t count = bytes.size() / size_of(type);
  return TokenArray(std::move(file), 0, type, count);
}

}  // namespace dtopp
