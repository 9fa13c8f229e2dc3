#include "dtopp/report/document.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace dtopp::report {
namespace {

using testing::ElementsAre;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Decodes RFC 4648 base64 with a table of its own.
std::string decode_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(digits.find(c));
    held += 6;
    if (held >= 8) bytes += static_cast<char>(bits >> (held -= 8) & 255);
  }
  return bytes;
}

std::vector<float> floats_of(const std::string& base64) {
  const std::string bytes = decode_base64(base64);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

TEST(Columns, an_arithmetic_progression_is_its_terms) {
  Columns columns;
  const ReportColumn steps = columns.at(columns.add_exact("steps", std::vector<double>{25, 50, 75}));
  EXPECT_EQ(steps.kind, ReportColumn::Kind::kAffine);
  EXPECT_EQ(steps.first, 25);
  EXPECT_EQ(steps.step, 25);
  EXPECT_EQ(base64_of(steps, 0), "");
}

TEST(Columns, numbers_come_back_as_float32_and_infinities_as_nan) {
  rc::check([](const std::vector<double>& values, bool is_odd) {
    std::vector<double> column = values;
    column.insert(column.end(), {0.1, is_odd ? 1e300 : kNaN, -std::numeric_limits<double>::infinity()});
    Columns columns;
    const auto from = *rc::gen::inRange<size_t>(0, column.size());
    const auto back = floats_of(base64_of(columns.at(columns.add("x", column)), from));
    RC_ASSERT(back.size() == column.size() - from);
    for (size_t i = 0; i < back.size(); ++i) {
      const double value = column[from + i];
      const auto rounded = static_cast<float>(value);
      if (std::isfinite(value) && std::isfinite(rounded))
        RC_ASSERT(back[i] == rounded);
      else
        RC_ASSERT(std::isnan(back[i]));
    }
  });
}

TEST(Columns, a_page_keeps_what_only_grew_and_loses_what_was_rewritten) {
  Columns columns;
  const int id = columns.add("loss", std::vector<double>{3, 1, 2});
  const uint64_t first = columns.generation();
  columns.begin_generation();
  columns.add("loss", std::vector<double>{3, 1, 2, 4});
  EXPECT_EQ(columns.known_to(id, first), 3U);
  const uint64_t second = columns.generation();
  columns.begin_generation();
  columns.add("loss", std::vector<double>{3, 1, 5});
  EXPECT_EQ(columns.known_to(id, first), 0U);
  EXPECT_EQ(columns.known_to(id, second), 0U);
  EXPECT_EQ(columns.known_to(id, columns.generation()), 3U);
  EXPECT_EQ(columns.known_to(id, 0), 0U);
}

TEST(ThinnedPlaces, keep_the_extremes_of_each_stretch_and_both_ends) {
  const std::vector<double> values = {5, 1, 9, 4, 4, 4, kNaN, 7, kNaN, kNaN, 2, 6};
  EXPECT_THAT(thinned_indices(values, 8), ElementsAre(0, 1, 2, 3, 7, 10, 11));
  EXPECT_THAT(thinned_indices(values, 12).size(), 12U);
}

TEST(ThinnedPlaces, a_stretch_of_gaps_stays_one) {
  EXPECT_THAT(thinned_indices(std::vector<double>{1, 2, kNaN, kNaN, kNaN, kNaN, 3, 4}, 6),
              ElementsAre(0, 1, 2, 6, 7));
}

}  // namespace

}  // namespace dtopp::report
