#include "dtopp/data/tokens/megatron_index.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/base/byte_reader.h"
#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"

namespace dtopp::data {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kIndexMagic = "MMIDIDX\0\0"sv;
constexpr uint64_t kVersion = 1;
constexpr uint64_t kHeadBytes = 34;  // before the three arrays
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

// One of the three arrays of an index file, read from its first value to its last.
template <class T>
class IndexColumn {
 public:
  // Precondition: the file holds `count` values from `offset` on.
  IndexColumn(const Descriptor& file, uint64_t offset, uint64_t count)
      : file_(file), offset_(offset), unread_(count) {}

  T next() {
    constexpr uint64_t kPiece = uint64_t{1} << 15;
    if (at_ == piece_.size()) {
      piece_.resize(std::min(kPiece, unread_));
      file_.read_at(offset_, std::as_writable_bytes(std::span(piece_)));
      unread_ -= piece_.size();
      at_ = 0;
    }
    offset_ += sizeof(T);
    return piece_[at_++];
  }

  [[noreturn]] void fail(const std::string& cause) const {
    throw DataError(file_.path().string() + ": byte " + std::to_string(offset_) + ": " + cause);
  }

 private:
  const Descriptor& file_;
  uint64_t offset_;
  uint64_t unread_;
  std::vector<T> piece_;
  size_t at_ = 0;
};

// Checks that the sequences lie one after another without gaps. Returns the total number of ids.
uint64_t check_sequences(IndexColumn<int32_t> lengths, IndexColumn<int64_t> pointers, uint64_t sequences,
                         uint64_t id_size) {
  uint64_t total = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    const uint64_t begin = total * id_size;
    if (pointers.next() != static_cast<int64_t>(begin))
      pointers.fail("sequence " + std::to_string(i) + " (the value before this byte) must begin at byte " +
                    std::to_string(begin) + " of the .bin file");
    const int32_t length = lengths.next();
    if (length < 0)
      lengths.fail("sequence " + std::to_string(i) + " (the value before this byte) has the length " +
                   std::to_string(length));
    total += static_cast<uint64_t>(length);
    if (total > (uint64_t{1} << 59)) lengths.fail("the lengths sum to more than any file holds");
  }
  return total;
}

void check_bounds(IndexColumn<int64_t> values, uint64_t bounds, uint64_t sequences) {
  int64_t previous = 0;
  for (uint64_t i = 0; i < bounds; ++i) {
    const int64_t bound = values.next();
    if (bound < previous || (i == 0 && bound != 0) || bound > static_cast<int64_t>(sequences) ||
        (i + 1 == bounds && bound != static_cast<int64_t>(sequences)))
      values.fail("document bound " + std::to_string(i) + " (the value before this byte) is " +
                  std::to_string(bound) + "; bounds must rise from 0 to " + std::to_string(sequences));
    previous = bound;
  }
}

}  // namespace

TokenPair open_megatron(const std::filesystem::path& bin, const std::filesystem::path& idx) {
  const Descriptor index = open_regular(idx);
  const uint64_t index_bytes = index.size();
  std::vector<std::byte> head(std::min(index_bytes, kHeadBytes));
  index.read_at(0, head);
  ByteReader reader(head, idx.string());
  const TokenType type = read_header(reader);
  const auto sequences = reader.read<uint64_t>();
  const auto bounds = reader.read<uint64_t>();
  uint64_t offset = kHeadBytes;
  // Checks that the next array is complete, before it is read.
  const auto begin_of = [&](uint64_t values, uint64_t size) {
    if (values > (index_bytes - offset) / size)
      throw DataError(idx.string() + ": byte " + std::to_string(offset) + ": needs " +
                      std::to_string(values) + " x " + std::to_string(size) + " bytes, has " +
                      std::to_string(index_bytes - offset));
    return std::exchange(offset, offset + values * size);
  };
  const IndexColumn<int32_t> lengths(index, begin_of(sequences, sizeof(int32_t)), sequences);
  const IndexColumn<int64_t> pointers(index, begin_of(sequences, sizeof(int64_t)), sequences);
  const IndexColumn<int64_t> bound_values(index, begin_of(bounds, sizeof(int64_t)), bounds);
  if (offset != index_bytes)
    throw DataError(idx.string() + ": byte " + std::to_string(offset) + ": " +
                    std::to_string(index_bytes - offset) + " bytes follow the index");
  if (bounds == 0) reader.fail("the index has no document bounds");
  const uint64_t count = check_sequences(lengths, pointers, sequences, size_of(type));
  check_bounds(bound_values, bounds, sequences);
  Descriptor ids = open_regular(bin);
  if (ids.size() != count * size_of(type))
    throw DataError(bin.string() + ": byte " + std::to_string(ids.size()) + ": the file ends, but " +
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
