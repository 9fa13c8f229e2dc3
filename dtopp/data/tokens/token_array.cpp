#include "dtopp/data/tokens/token_array.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/base/stop_scope.h"

namespace dtopp::data {
namespace {

template <class Visitor>
auto visit_type(TokenType type, Visitor&& visitor) {
  switch (type) {
    case TokenType::kUint8:
      return visitor(uint8_t{});
    case TokenType::kInt8:
      return visitor(int8_t{});
    case TokenType::kUint16:
      return visitor(uint16_t{});
    case TokenType::kInt16:
      return visitor(int16_t{});
    case TokenType::kUint32:
      return visitor(uint32_t{});
    case TokenType::kInt32:
      return visitor(int32_t{});
    case TokenType::kUint64:
      return visitor(uint64_t{});
    case TokenType::kInt64:
      break;
  }
  return visitor(int64_t{});
}

// Widens the ids at the end of `out` in place, from the first to the last: none is overwritten before it is
// read.
template <class T>
void widen_ids(std::span<int64_t> out) {
  const std::byte* const from = std::as_bytes(out).last(out.size() * sizeof(T)).data();
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int64_t>(value);  // NOLINT(bugprone-signed-char-misuse): scan() checks the sign
  }
}

}  // namespace

uint64_t size_of(TokenType type) {
  return visit_type(type, [](auto id) -> uint64_t { return sizeof(id); });
}

TokenArray::TokenArray(Descriptor file, uint64_t offset, TokenType type, uint64_t count)
    : file_(std::move(file)), offset_(offset), type_(type), count_(count) {
  const uint64_t bytes = file_.size();
  if (offset > bytes || count > (bytes - offset) / size_of(type))
    throw DataError(path().string() + ": byte " + std::to_string(bytes) + ": ends before " +
                    std::to_string(count) + " ids of " + std::to_string(size_of(type)) + " bytes");
}

void TokenArray::read(uint64_t offset, std::span<int64_t> out) const {
  const uint64_t size = size_of(type_);
  file_.read_at(offset_ + offset * size, std::as_writable_bytes(out).last(out.size() * size));
  visit_type(type_, [&](auto id) { widen_ids<decltype(id)>(out); });
}

int64_t TokenArray::scan(Hasher& ids) const {
  constexpr uint64_t kChunk = uint64_t{1} << 16;
  std::vector<int64_t> buffer(std::min(kChunk, count_));
  int64_t largest = -1;
  for (uint64_t offset = 0; offset < count_; offset += kChunk) {
    end_if_stopped();
    const auto chunk = std::span(buffer).first(std::min(kChunk, count_ - offset));
    read(offset, chunk);
    ids.update(std::as_bytes(chunk));
    const auto [low, high] = std::minmax_element(chunk.begin(), chunk.end());
    if (*low < 0)
      throw DataError(
          path().string() + ": byte " +
          std::to_string(offset_ + (offset + static_cast<uint64_t>(low - chunk.begin())) * size_of(type_)) +
          ": a token id is negative or at least 2^63; the file is damaged or does not hold token ids");
    largest = std::max(largest, *high);
  }
  return largest;
}

}  // namespace dtopp::data
