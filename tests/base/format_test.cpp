#include "dtopp/base/format.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace dtopp {
namespace {

TEST(Format, prints_texts_of_any_length) {
  EXPECT_EQ(format("%s: %.2f %%", "share", 12.345), "share: 12.35 %");
  EXPECT_EQ(format("%500d", 7).find('7'), 499U);
}

TEST(FormatDuration, shows_the_two_units_that_matter) {
  EXPECT_EQ(format_duration(0), "0.0s");
  EXPECT_EQ(format_duration(0.44), "0.4s");
  EXPECT_EQ(format_duration(12.3), "12s");
  EXPECT_EQ(format_duration(130), "2m10s");
  EXPECT_EQ(format_duration(3 * 3600 + 5 * 60 + 20), "3h05m");
  EXPECT_EQ(format_duration(4 * 86400 + 7 * 3600), "4d07h");
}

TEST(FormatDuration, rounds_across_a_unit_without_showing_sixty) {
  EXPECT_EQ(format_duration(9.96), "10s");
  EXPECT_EQ(format_duration(59.7), "1m00s");
  EXPECT_EQ(format_duration(119.6), "2m00s");
  EXPECT_EQ(format_duration(3599.7), "1h00m");
  EXPECT_EQ(format_duration(86399), "1d00h");
  EXPECT_EQ(format_duration(2 * 86400 - 60), "2d00h");
}

TEST(FormatDuration, answers_what_is_no_length_of_time_with_a_question_mark) {
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(FormatCount, keeps_three_digits) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(87), "87");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(999.7), "1.00k");
  EXPECT_EQ(format_count(5120), "5.12k");
  EXPECT_EQ(format_count(9999), "10.0k");
  EXPECT_EQ(format_count(132400), "132k");
  EXPECT_EQ(format_count(1.24e6), "1.24M");
  EXPECT_EQ(format_count(13.6e9), "13.6G");
  EXPECT_EQ(format_count(0.5), "0.5");
}

TEST(FormatBytes, uses_decimal_units) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1.24e9), "1.2 GB");
  EXPECT_EQ(format_bytes(999.9e6), "1.0 GB");
  EXPECT_EQ(format_bytes(250e6), "250 MB");
}

}  // namespace
}  // namespace dtopp
