#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/study/results.h"
#include "tests/study/study_files.h"

namespace dtopp::study {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Verdicts : public StudyFiles {
 protected:
  // Compares variant a with b, whose values are 5, at as many seeds as there are differences.
  ComparisonResult decide_one(const std::vector<double>& differences, const std::string& rules) {
    const auto results =
        decide_all({{"a", differences}, {"b", std::vector(differences.size(), 0.0)}},
                   "{name: x, of: a, less: b, measure: train/loss, family: f, " + rules + "}");
    return results.at(0);
  }
  // `differences` from 5, by variant and seed.
  std::vector<ComparisonResult> decide_all(const std::map<std::string, std::vector<double>>& differences,
                                           const std::string& entries) {
    std::string variants, seeds;
    for (const auto& [name, values] : differences) variants += name + ": {}, ";
    for (size_t seed = 0; seed < differences.begin()->second.size(); ++seed)
      seeds += std::to_string(seed) + ", ";
    const Study study =
        load(kHead + "seeds: [" + seeds + "]\nvariants: {" + variants + "}\ncompare: [" + entries + "]\n");
    const auto runs = expand(study);
    std::vector<RunRecord> records(runs.size(), {.status = RunStatus::kDone});
    std::vector<std::vector<RunValue>> values;
    for (const StudyRun& run : runs) {
      const auto& own = differences.at(study.variants[run.variant].name);
      const auto seed = static_cast<size_t>(run.seed);
      values.push_back({seed < own.size() ? RunValue{5 + own[seed]} : RunValue{}});
    }
    auto results = compute_comparisons(study, runs, records, values);
    decide(results);
    return results;
  }
};

const std::string kRules = "margin: 0.01, excluded: 0.02";

// Three differences m - 0.001, m, m + 0.001 have the half-width 4.303 * 0.001 / sqrt(3) = 0.00248.
std::vector<double> around(double mean) { return {mean - 0.001, mean, mean + 0.001}; }

TEST_F(Verdicts, follow_from_the_interval) {
  EXPECT_THAT(decide_one(around(0.03), kRules).verdicts, ElementsAre("b ahead of a"));
  EXPECT_THAT(decide_one(around(0.015), kRules).verdicts,
              ElementsAre("b ahead of a", "a lead of 0.02 is excluded"));
  EXPECT_THAT(decide_one(around(0.005), kRules).verdicts,
              ElementsAre("b ahead of a", "equivalent within 0.01", "a lead of 0.02 is excluded"));
  EXPECT_THAT(decide_one(around(0.001), kRules).verdicts,
              ElementsAre("equivalent within 0.01", "a lead of 0.02 is excluded"));
  EXPECT_THAT(decide_one(around(-0.005), kRules).verdicts,
              ElementsAre("b behind a", "equivalent within 0.01", "a lead of 0.02 is excluded"));
  EXPECT_THAT(decide_one(around(-0.03), kRules).verdicts,
              ElementsAre("b behind a", "a lead of 0.02 is excluded"));
  EXPECT_THAT(decide_one({-0.1, 0.0, 0.13}, kRules).verdicts, ElementsAre("inconclusive"));
}

TEST_F(Verdicts, need_an_interval_and_a_family) {
  const ComparisonResult single = decide_one({0.1}, kRules);
  EXPECT_THAT(single.verdicts, IsEmpty());
  EXPECT_EQ(single.note, "a single pair has no interval");
  const auto plain = decide_all({{"a", around(1)}, {"b", {0, 0, 0}}},
                                "{name: x, of: a, less: b, measure: train/loss, margin: 0.1}");
  EXPECT_THAT(plain.at(0).verdicts, IsEmpty());
  EXPECT_FALSE(plain.at(0).p_holm);
  EXPECT_TRUE(plain.at(0).difference.p);
}

// One test alone has p 0.031 (t = 5.2, 2 degrees of freedom: 1 - t / sqrt(2 + t^2)), and twice that in a
// family of two.
TEST_F(Verdicts, count_every_member_of_a_family_even_without_values) {
  const std::vector<double> some = {0.002, 0.003, 0.004};
  const std::string one = "{name: x, of: a, less: b, measure: train/loss, family: f}";
  const std::string two = ", {name: y, of: c, less: b, measure: train/loss, family: f}";
  const std::map<std::string, std::vector<double>> values = {{"a", some}, {"b", {0, 0, 0}}, {"c", {}}};
  const double t = 3 * std::sqrt(3.0), p = 1 - t / std::sqrt(2 + t * t);
  const auto alone = decide_all(values, one);
  EXPECT_NEAR(*alone.at(0).p_holm, p, 1e-9);
  EXPECT_NEAR(*alone.at(0).t, t, 1e-9);
  EXPECT_THAT(alone.at(0).verdicts, ElementsAre("b ahead of a"));
  const auto both = decide_all(values, one + two);
  EXPECT_NEAR(*both.at(0).p_holm, 2 * p, 1e-9);
  EXPECT_THAT(both.at(0).verdicts, ElementsAre("inconclusive"));
  EXPECT_EQ(both.at(1).note, "no seed is complete");
  EXPECT_FALSE(both.at(1).p_holm);
}

TEST_F(Verdicts, a_ratio_has_its_interval_or_the_reason_why_not) {
  const std::string entries =
      "{name: r, of: a, less: b, over: {of: c, less: b}, measure: train/loss}, "
      "{name: s, of: a, less: b, over: {of: d, less: b}, measure: train/loss}";
  const auto results = decide_all(
      {{"a", {0.9, 1.0, 1.1}}, {"b", {0, 0, 0}}, {"c", {2.1, 2.0, 1.9}}, {"d", {1, -1, 0.5}}}, entries);
  EXPECT_NEAR(*results.at(0).ratio.ratio, 0.5, 1e-12);
  EXPECT_LT(*results.at(0).ratio.low, 0.5);
  EXPECT_FALSE(results.at(1).ratio.low);
  EXPECT_EQ(results.at(1).note, "unbounded: d minus b may be 0");
  EXPECT_THAT(comparison_table(results),
              HasSubstr("| r | (a minus b) / (c minus b) | train/loss | 3 | 0.5 \\[0.334, 0.713\\] |"));
}

TEST_F(Verdicts, blind_text_does_not_depend_on_the_mean) {
  const auto text = [&](double mean) { return blind_text({decide_one(around(mean), kRules)}); };
  EXPECT_EQ(text(0.5), "x: n 3, standard deviation of the paired differences 0.001\n");
  EXPECT_EQ(text(0.5), text(-0.25));
}

}  // namespace
}  // namespace dtopp::study
