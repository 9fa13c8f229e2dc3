#include "dtopp/data/megatron_index.h"

#include <cstring>
#include <string_view>

#include "dtopp/base/byte_reader.h"

namespace dtopp {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr uint8_t kUint16Code = 8;
constexpr uint8_t kInt32Code = 4;

template <class T>
void append(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

MegatronIndex parse_megatron_index(std::span<const std::byte> bytes, const std::string& what) {
  ByteReader reader(bytes, what);
  if (reader.take_text(kMagic.size()) != kMagic) reader.fail("not a Megatron index (wrong magic)");
  if (reader.read<uint64_t>() != kVersion) reader.fail("not version 1 of Megatron's index");
  const auto code = reader.read<uint8_t>();
  if (code != kUint16Code && code != kInt32Code) {
    reader.fail("token type code " + std::to_string(code) + "; this reads uint16 (8) and int32 (4)");
  }
  MegatronIndex index;
  index.token_bytes = code == kUint16Code ? 2 : 4;
  index.sequences = reader.read<uint64_t>();
  const auto boundaries = reader.read<uint64_t>();
  ByteReader lengths(reader.take(index.sequences, sizeof(int32_t)), what + " (lengths)");
  ByteReader offsets(reader.take(index.sequences, sizeof(int64_t)), what + " (offsets)");
  ByteReader documents(reader.take(boundaries, sizeof(int64_t)), what + " (documents)");
  if (reader.remaining() != 0) reader.fail(std::to_string(reader.remaining()) + " bytes too many");

  for (uint64_t i = 0; i < index.sequences; ++i) {
    const auto length = lengths.read<int32_t>();
    if (length < 0) lengths.fail("sequence " + std::to_string(i) + " has a negative length");
    const auto offset = offsets.read<int64_t>();
    if (offset != static_cast<int64_t>(index.tokens) * index.token_bytes) {
      offsets.fail("sequence " + std::to_string(i) + " does not follow the one before it");
    }
    index.tokens += static_cast<uint64_t>(length);
  }
  int64_t previous = 0;
  for (uint64_t i = 0; i < boundaries; ++i) {
    const auto first = documents.read<int64_t>();
    if (first < previous || static_cast<uint64_t>(first) > index.sequences || (i == 0 && first != 0)) {
      documents.fail("document boundary " + std::to_string(i) + " is out of order");
    }
    previous = first;
  }
  index.documents = boundaries == 0 ? 0 : boundaries - 1;
  return index;
}

std::string format_megatron_index(const std::vector<int32_t>& lengths, int token_bytes) {
  std::string text(kMagic);
  append(text, kVersion);
  append(text, token_bytes == 2 ? kUint16Code : kInt32Code);
  append(text, static_cast<uint64_t>(lengths.size()));
  append(text, static_cast<uint64_t>(lengths.size() + 1));
  for (const int32_t length : lengths) append(text, length);
  int64_t offset = 0;
  for (const int32_t length : lengths) {
    append(text, offset);
    offset += int64_t{length} * token_bytes;
  }
  for (uint64_t i = 0; i <= lengths.size(); ++i) append(text, static_cast<int64_t>(i));
  return text;
}

}  // namespace dtopp
