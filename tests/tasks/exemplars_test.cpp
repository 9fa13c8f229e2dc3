#include "dtopp/tasks/exemplars.h"

#include <algorithm>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/sha256.h"
#include "tests/base/scratch_directory.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::tasks {
namespace {

using testing::ElementsAre;
using Indices = std::vector<int64_t>;

// CPython's results for small data sets. In the first, the item's own index was drawn.
TEST(Exemplars, are_those_of_cpython) {
  const auto exemplars = draw_exemplars(100, 5, 100);
  EXPECT_THAT(exemplars[0], ElementsAre(99, 74, 11, 14, 56));
  EXPECT_THAT(exemplars[1], ElementsAre(4, 10, 12, 85, 88));
  EXPECT_THAT(exemplars[99], ElementsAre(65, 61, 56, 92, 93));
  const auto many = draw_exemplars(5153, 5, 5153);
  EXPECT_THAT(many[0], ElementsAre(4769, 742, 957, 3610, 61));
  EXPECT_THAT(many[5152], ElementsAre(234, 1194, 212, 1044, 4988));
}

RC_GTEST_PROP(Exemplars, are_distinct_others_whatever_the_limit, ()) {
  const auto num_items = *rc::gen::inRange<int64_t>(kFewestItemsWithExemplars, 3000);
  const auto count = *rc::gen::inRange<int64_t>(0, std::min<int64_t>(num_items, 300));
  const auto exemplars = draw_exemplars(num_items, 5, count);
  RC_ASSERT(exemplars == [&] {
    auto all = draw_exemplars(num_items, 5, num_items);
    all.resize(static_cast<size_t>(count));
    return all;
  }());
  for (int64_t item = 0; item < count; ++item) {
    const Indices& chosen = exemplars[static_cast<size_t>(item)];
    RC_ASSERT(std::set<int64_t>(chosen.begin(), chosen.end()).size() == 5U);
    RC_ASSERT(std::ranges::all_of(chosen, [&](int64_t i) { return i >= 0 && i < num_items && i != item; }));
  }
}

TEST(Exemplars, none_are_drawn_for_zero_shots) {
  EXPECT_EQ(draw_exemplars(3, 0, 2), std::vector<Indices>(2));
}

TEST(Exemplars, too_few_items_are_an_error) {
  EXPECT_EQ(draw_exemplars(22, 5, 22).size(), 22);
  error_of<DataError>([] { draw_exemplars(21, 5, 1); });
}

std::string as_text(const std::vector<Indices>& exemplars) {
  std::string text;
  for (const Indices& chosen : exemplars) {
    for (size_t i = 0; i < chosen.size(); ++i) text += (i > 0 ? " " : "") + std::to_string(chosen[i]);
    text += "\n";
  }
  return text;
}

// One line per size: n, the SHA-256 of the indices as text, and the data sets of that size.
TEST_F(EvaluationData, exemplars_of_every_size_in_use_equal_the_golden_ones) {
  const auto directory = evaluation_data() / "golden/fewshot";
  std::istringstream index(read_file(directory / "INDEX.tsv"));
  int64_t sizes = 0;
  int64_t files = 0;
  std::string line;
  while (std::getline(index, line)) {
    std::istringstream fields(line);
    int64_t num_items = 0;
    std::string checksum;
    ASSERT_TRUE(fields >> num_items >> checksum) << line;
    const std::string text = as_text(draw_exemplars(num_items, 5, num_items));
    Sha256 digest;
    digest.update(text);
    EXPECT_EQ(digest.hexdigest(), checksum) << num_items;
    ++sizes;
    const auto path = directory / ("N" + std::to_string(num_items) + ".txt");
    if (!std::filesystem::exists(path)) continue;
    EXPECT_EQ(text, read_file(path)) << num_items;
    ++files;
  }
  EXPECT_GE(sizes, 40);
  EXPECT_GE(files, 5);
}

}  // namespace
}  // namespace dtopp::tasks
