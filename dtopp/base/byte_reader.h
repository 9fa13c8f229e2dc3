// Reads values from untrusted bytes, one after another.
//
// Every access is checked for bounds and arithmetic overflow. read() copies, so alignment does not matter.
// Spans and texts are views of the caller's bytes. Errors are DataErrors that name the source, the byte
// offset and the cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "dtopp/base/errors.h"

namespace dtopp {

class ByteReader {
 public:
  // `what` names the source in errors, usually its path.
  ByteReader(std::span<const std::byte> bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}

  // The next little-endian T.
  template <class T>
  requires std::is_arithmetic_v<T> T read() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  // The next `count` bytes.
  std::span<const std::byte> take(uint64_t count) {
    if (count > remaining())
      fail("needs " + std::to_string(count) + " bytes, has " + std::to_string(remaining()));
    const auto part = bytes_.subspan(offset_, count);
    offset_ += count;
    return part;
  }

  std::string_view take_text(uint64_t count) {
    const auto part = take(count);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... cause) const {
    throw DataError(what_, ": byte ", offset_, ": ", cause...);
  }

 private:
  std::span<const std::byte> bytes_;
  std::string what_;
  uint64_t offset_ = 0;
};

}  // namespace dtopp
