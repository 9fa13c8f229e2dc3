#include "dtopp/base/progress.h"

#include <cmath>
#include <limits>

#include "tests/base/scratch_directory.h"

namespace dtopp {
namespace {

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

TEST(ProgressLine, shows_share_rate_and_time_left) {
  EXPECT_EQ(progress_line("tokenize", "tok", 1'200'000, 2'400'000, 4.0),
            "tokenize   50%  1.20M/2.40M tok  300k tok/s  4.0s left");
}

TEST(ProgressLine, does_not_claim_the_end_before_it) {
  EXPECT_NE(progress_line("x", "B", 999'999, 1'000'000, 1.0).find(" 99%"), std::string::npos);
  EXPECT_EQ(progress_line("x", "B", 1'000'000, 1'000'000, 2.0), "x  100%  1.0 MB/1.0 MB  500 kB/s  2.0s");
}

TEST(ProgressLine, without_a_total_shows_what_was_done) {
  EXPECT_EQ(progress_line("read", "docs", 500, 0, 2.0), "read  500 docs  250 docs/s  2.0s");
}

TEST(ProgressLine, leaves_out_of_the_rate_what_was_done_before) {
  EXPECT_EQ(progress_line("x", "docs", 900, 1000, 10.0, 800), "x   90%  900/1.00k docs  10 docs/s  10s left");
}

TEST(ProgressBar, writes_one_plain_line_where_there_is_no_terminal) {
  const ScratchDirectory directory;
  const auto path = directory / "log";
  std::FILE* file = std::fopen(path.c_str(), "w+");
  ASSERT_NE(file, nullptr);
  {
    ProgressBar bar("prepare", "docs", 1000, file);
    for (uint64_t i = 1; i <= 1000; ++i) bar.update(i);
    bar.finish();
  }
  char text[256] = {};
  std::rewind(file);
  const size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const std::string log(text, size);
  EXPECT_TRUE(log.starts_with("prepare  100%  1.00k/1.00k docs  ")) << log;
  EXPECT_EQ(log.find('\n'), log.size() - 1) << log;
  EXPECT_EQ(log.find('\r'), std::string::npos) << log;
}

}  // namespace
}  // namespace dtopp
