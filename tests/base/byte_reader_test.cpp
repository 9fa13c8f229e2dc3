#include "dtopp/base/byte_reader.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtopp {
namespace {

using ::testing::HasSubstr;

ByteReader reader_of(std::string_view text) {
  return ByteReader(std::as_bytes(std::span(text.data(), text.size())), "some/file");
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ByteReader, reads_little_endian_values_at_any_alignment) {
  auto reader = reader_of(std::string_view("x\x01\x02\x03\x04\x00\x00\x80\x3f\xff", 10));
  EXPECT_EQ(reader.read<char>(), 'x');
  EXPECT_EQ(reader.read<uint32_t>(), 0x04030201u);
  EXPECT_EQ(reader.read<float>(), 1.0f);
  EXPECT_EQ(reader.read<int8_t>(), -1);
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(ByteReader, takes_everything_that_is_there_and_not_a_byte_more) {
  auto reader = reader_of("abcdef");
  EXPECT_EQ(reader.take_text(2), "ab");
  EXPECT_EQ(reader.take(4).size(), 4u);
  EXPECT_EQ(reader.take(0).size(), 0u);
  EXPECT_EQ(message_of([&] { reader.take(1); }), "some/file: byte 6: needs 1 bytes, has 0");
  EXPECT_THROW(reader_of("abc").read<uint32_t>(), DataError);
}

TEST(ByteReader, a_failed_read_does_not_move_the_cursor) {
  auto reader = reader_of("abc");
  EXPECT_THROW(reader.read<uint64_t>(), DataError);
  EXPECT_EQ(reader.offset(), 0u);
  EXPECT_EQ(reader.take_text(3), "abc");
}

TEST(ByteReader, a_count_that_overflows_is_out_of_bounds) {
  auto reader = reader_of("0123456789");
  reader.take(1);
  EXPECT_THROW(reader.take(std::numeric_limits<uint64_t>::max()), DataError);
}

TEST(ByteReader, errors_name_the_source_and_the_byte) {
  auto reader = reader_of("abcdef");
  reader.take(3);
  EXPECT_THAT(message_of([&] { reader.fail("bad magic"); }), HasSubstr("some/file: byte 3: bad magic"));
  EXPECT_THAT(message_of([&] { reader.read<uint64_t>(); }), HasSubstr("some/file: byte 3: needs 8 bytes"));
}

}  // namespace
}  // namespace dtopp
