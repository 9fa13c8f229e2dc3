#include "dtopp/data/npy.h"

#include <map>
#include <regex>
#include <string_view>

#include "dtopp/base/byte_reader.h"

namespace dtopp {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kMaxHeader = 65536;

NpyTokens headerless(std::span<const std::byte> bytes, const std::string& what, int64_t vocab_size) {
  const int width = vocab_size > 65536 ? 4 : 2;
  if (bytes.size() % static_cast<size_t>(width) != 0) {
    throw DataError(what + ": " + std::to_string(bytes.size()) + " bytes are no whole number of " +
                    std::to_string(width) + "-byte token ids: truncated, or not a token file");
  }
  return {bytes, width};
}

}  // namespace

NpyTokens parse_npy_tokens(std::span<const std::byte> bytes, const std::string& what, int64_t vocab_size) {
  ByteReader reader(bytes, what);
  if (reader.remaining() < kMagic.size() || reader.take_text(kMagic.size()) != kMagic) {
    return headerless(bytes, what, vocab_size);
  }
  const auto major = reader.read<uint8_t>();
  reader.read<uint8_t>();  // minor version
  if (major < 1 || major > 3) reader.fail("NumPy format version " + std::to_string(major));
  const uint64_t length = major == 1 ? reader.read<uint16_t>() : reader.read<uint32_t>();
  if (length > kMaxHeader) reader.fail("a header of " + std::to_string(length) + " bytes");
  const std::string header(reader.take_text(length));
  static const std::regex pattern(
      R"(^\{\s*'descr':\s*'([^']*)',\s*'fortran_order':\s*(?:False|True),\s*'shape':\s*\((\d{1,18}),\),?\s*\}\s*$)");
  static const std::map<std::string, int, std::less<>> widths = {
      {"<u2", 2}, {"<u4", 4}, {"<i4", 4}, {"<i8", 8}};
  std::smatch match;
  if (!std::regex_match(header, match, pattern) || !widths.contains(match[1].str())) {
    reader.fail("not a one-dimensional array of uint16, uint32, int32 or int64");
  }
  const int width = widths.find(match[1].str())->second;
  const auto ids = reader.take(std::stoull(match[2].str()), static_cast<uint64_t>(width));
  if (reader.remaining() != 0) reader.fail(std::to_string(reader.remaining()) + " bytes too many");
  return {ids, width};
}

}  // namespace dtopp
