#include <fstream>
#include <string_view>

#include <gtest/gtest.h>

#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::append_file_test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(AppendFile, goes_on_after_what_was_recorded_and_cuts_the_rest) {
  const ScratchDirectory scratch;
  {
    AppendFile file(scratch / "a", 0);
    file.write(bytes_of("one"));
    file.sync();
    file.write(bytes_of("lost"));
    file.sync();
  }
  AppendFile file(scratch / "a", 3);
  EXPECT_EQ(file.hash(), hash_bytes(bytes_of("one")));
  file.write(bytes_of("two"));
  file.sync();
  EXPECT_EQ(file.size(), 6U);
  EXPECT_EQ(read_file(scratch / "a"), "onetwo");
  EXPECT_EQ(file.hash(), hash_file(scratch / "a"));
}

TEST(AppendFile, keeps_the_order_of_pieces_of_any_size) {
  const ScratchDirectory scratch;
  std::string expected;
  {
    AppendFile file(scratch / "a", 0);
    for (const size_t size : {1UL, (1UL << 20) - 1, 1UL, 3UL << 20, 0UL, 5UL}) {
      const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
      expected += piece;
      file.write(bytes_of(piece));
    }
    file.sync();
  }
  EXPECT_EQ(read_file(scratch / "a"), expected);
}

TEST(AppendFile, names_a_file_that_is_shorter_than_recorded) {
  const ScratchDirectory scratch;
  std::ofstream(scratch / "a") << "12";
  const auto message = error_of<DataError>([&] { AppendFile(scratch / "a", 3); });
  EXPECT_NE(message.find((scratch / "a").string()), message.npos);
  EXPECT_EQ(read_file(scratch / "a"), "12");
}

TEST(AppendFile, leaves_a_file_that_begins_otherwise_as_it_is) {
  const ScratchDirectory scratch;
  std::ofstream(scratch / "a") << "other text";
  EXPECT_THROW(AppendFile(scratch / "a", 3, hash_bytes(bytes_of("one"))), DataError);
  EXPECT_EQ(read_file(scratch / "a"), "other text");
  std::ofstream(scratch / "a") << "one text";
  EXPECT_EQ(AppendFile(scratch / "a", 3, hash_bytes(bytes_of("one"))).size(), 3U);
  EXPECT_EQ(read_file(scratch / "a"), "one");
}

}  // namespace

}  // namespace dtopp::append_file_test
