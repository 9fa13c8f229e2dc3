// The .npy format: numpy.lib.format, versions 1 to 3.
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "dtopp/base/byte_reader.h"
#include "dtopp/data/token_array.h"

namespace dtopp {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr uint64_t kMaxHeaderBytes = 1 << 16;  // NumPy's own are a hundred

// The value that the header's Python dictionary has under `key`, up to `end`.
std::optional<std::string_view> value_of(std::string_view header, std::string_view key,
                                         std::string_view end) {
  const std::string quoted = "'" + std::string(key) + "':";
  const size_t found = header.find(quoted);
  if (found == header.npos) return std::nullopt;
  std::string_view rest = header.substr(found + quoted.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const size_t stop = rest.find(end);
  if (stop == rest.npos) return std::nullopt;
  return rest.substr(0, stop);
}

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
              " cannot hold token ids here; save a little-endian integer array");
}

// "(123,)": the number in it.
uint64_t count_of(std::string_view shape, const ByteReader& reader) {
  uint64_t count = 0;
  const char* const end = shape.data() + shape.size();
  const auto [after, error] = std::from_chars(shape.data() + !shape.empty(), end, count);
  if (shape.empty() || shape[0] != '(' || error != std::errc() ||
      std::string_view(after, static_cast<size_t>(end - after)) != ",")
    reader.fail("shape " + std::string(shape.substr(0, 40)) + ") is not one-dimensional");
  return count;
}

uint64_t header_size(ByteReader& reader) {
  const auto major = reader.read<uint8_t>();
  const auto minor = reader.read<uint8_t>();
  if (major < 1 || major > 3 || minor != 0)
    reader.fail("NumPy format version " + std::to_string(major) + "." + std::to_string(minor) +
                " is not known");
  const uint64_t size = major == 1 ? reader.read<uint16_t>() : reader.read<uint32_t>();
  if (size > kMaxHeaderBytes) reader.fail("a header of " + std::to_string(size) + " bytes is too large");
  return size;
}

TokenArray open_with_header(MappedFile file) {
  ByteReader reader(file.bytes(), file.path().string());
  reader.take(kNpyMagic.size());
  const auto header = reader.take_text(header_size(reader));
  const auto descr = value_of(header, "descr", ",");
  const auto shape = value_of(header, "shape", ")");
  if (!descr || !shape || !value_of(header, "fortran_order", ","))
    reader.fail("the header before this byte lacks descr, fortran_order or shape");
  const TokenType type = type_of(*descr, reader);
  const uint64_t count = count_of(*shape, reader);
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
  if (bytes.size() >= kNpyMagic.size() &&
      std::string_view(reinterpret_cast<const char*>(bytes.data()), kNpyMagic.size()) == kNpyMagic)
    return open_with_header(std::move(file));
  const TokenType type = vocab_size > (int64_t{1} << 16) ? TokenType::kUint32 : TokenType::kUint16;
  if (bytes.size() % size_of(type) != 0)
    throw DataError(path.string() + ": byte " + std::to_string(bytes.size()) +
                    ": ends within a token id of " + std::to_string(size_of(type)) + " bytes: truncated");
  const uint64_t count = bytes.size() / size_of(type);
  return TokenArray(std::move(file), 0, type, count);
}

}  // namespace dtopp
