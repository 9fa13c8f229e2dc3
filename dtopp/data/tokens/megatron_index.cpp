#include "dtopp/data/tokens/megatron_index.h"

#include <optional>
#include <string_view>

#include "dtopp/base/byte_reader.h"
#include "dtopp/base/hash.h"

namespace dtopp::data {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kIndexMagic = "MMIDIDX\0\0"sv;
constexpr uint64_t kVersion = 1;
constexpr uint8_t kInt32Code = 4;
constexpr uint8_t kUint16Code = 8;

// Megatron's type codes. Codes 6 and 7 are floating point.
std::optional<TokenType> type_of(uint8_t code) {
  switch (code) {
    case 1:
      return TokenType::kUint8;
    case 2:
      return TokenType::kInt8;
    case 3:
      return TokenType::kInt16;
    case kInt32Code:
      return TokenType::kInt32;
    case 5:
      return TokenType::kInt64;
    case kUint16Code:
      return TokenType::kUint16;
    default:
      return std::nullopt;
  }
}

TokenType read_header(ByteReader& reader) {
  if (reader.take_text(kIndexMagic.size()) != kIndexMagic)
    reader.fail("not a Megatron index: it must begin with MMIDIDX");
  const auto version = reader.read<uint64_t>();
  if (version != kVersion)
    reader.fail("index version " + std::to_string(version) + " is not supported; only version 1 is");
  const auto code = reader.read<uint8_t>();
  const auto type = type_of(code);
  if (!type) reader.fail("type code " + std::to_string(code) + " is not an integer type");
  return *type;
}

// Checks that the sequences lie one after another without gaps. Returns the total number of ids.
uint64_t check_sequences(ByteReader lengths, ByteReader pointers, uint64_t sequences, uint64_t id_size) {
  uint64_t total = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    const uint64_t begin = total * id_size;
    if (pointers.read<int64_t>() != static_cast<int64_t>(begin))
      pointers.fail("sequence " + std::to_string(i) + " (the value before this byte) must begin at byte " +
                    std::to_string(begin) + " of the .bin file");
    const auto length = lengths.read<int32_t>();
    if (length < 0)
      lengths.fail("sequence " + std::to_string(i) + " (the value before this byte) has the length " +
                   std::to_string(length));
    total += static_cast<uint64_t>(length);
    if (total > (uint64_t{1} << 59)) lengths.fail("the lengths sum to more than any file holds");
  }
  return total;
}

void check_bounds(ByteReader& reader, uint64_t bounds, uint64_t sequences) {
  int64_t previous = 0;
  for (uint64_t i = 0; i < bounds; ++i) {
    const auto bound = reader.read<int64_t>();
    if (bound < previous || (i == 0 && bound != 0) || bound > static_cast<int64_t>(sequences) ||
        (i + 1 == bounds && bound != static_cast<int64_t>(sequences)))
      reader.fail("document bound " + std::to_string(i) + " (the value before this byte) is " +
                  std::to_string(bound) + "; bounds must rise from 0 to " + std::to_string(sequences));
    previous = bound;
  }
}

}  // namespace

TokenPair open_megatron(const std::filesystem::path& bin, const std::filesystem::path& idx) {
  const MappedFile index(idx);
  ByteReader reader(index.bytes(), idx.string());
  const TokenType type = read_header(reader);
  const auto sequences = reader.read<uint64_t>();
  const auto bounds = reader.read<uint64_t>();
  // Readers of the three arrays. take() checks that each array is complete before it is read.
  ByteReader lengths = reader;
  reader.take(sequences, sizeof(int32_t));
  ByteReader pointers = reader;
  reader.take(sequences, sizeof(int64_t));
  ByteReader bound_values = reader;
  reader.take(bounds, sizeof(int64_t));
  if (reader.remaining() != 0) reader.fail(std::to_string(reader.remaining()) + " bytes follow the index");
  if (bounds == 0) reader.fail("the index has no document bounds");
  const uint64_t count = check_sequences(lengths, pointers, sequences, size_of(type));
  check_bounds(bound_values, bounds, sequences);
  MappedFile ids(bin);
  if (ids.bytes().size() != count * size_of(type))
    throw DataError(bin.string() + ": byte " + std::to_string(ids.bytes().size()) + ": the file ends, but " +
                    idx.filename().string() + " lists " + std::to_string(count * size_of(type)) +
                    " bytes; it is truncated or belongs to another index");
  return {TokenArray(std::move(ids), 0, type, count), bounds - 1};
}

std::string write_megatron_index(const std::filesystem::path& path, TokenType type,
                                 const MappedFile& lengths) {
  Hasher hasher;
  OutputFile file(path, &hasher);
  const auto put = [&](auto value) { file.write(std::as_bytes(std::span(&value, 1))); };
  const uint64_t documents = lengths.bytes().size() / sizeof(int32_t);
  file.write(kIndexMagic);
  put(kVersion);
  put(uint8_t{type == TokenType::kUint16 ? kUint16Code : kInt32Code});
  put(documents);
  put(documents + 1);
  file.write(lengths.bytes());
  ByteReader reader(lengths.bytes(), lengths.path().string());
  uint64_t begin = 0;
  for (uint64_t i = 0; i < documents; ++i) {
    put(static_cast<int64_t>(begin));
    begin += static_cast<uint64_t>(reader.read<int32_t>()) * size_of(type);
  }
  for (uint64_t i = 0; i <= documents; ++i) put(static_cast<int64_t>(i));
  file.sync_and_close();
  return hasher.hexdigest();
}

}  // namespace dtopp::data
