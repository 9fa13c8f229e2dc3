#include "dtopp/inference/generator.h"

#include <gtest/gtest.h>

namespace dtopp::inference {
namespace {

// Counts how often each id is drawn while `uniform` runs through [0, 1).
std::vector<int> draws(const std::vector<double>& probabilities, double temperature, double top_p,
                       int count) {
  const at::Tensor logits_V = at::tensor(probabilities, at::kDouble).log().to(at::kFloat);
  std::vector<int> drawn(probabilities.size());
  for (int i = 0; i < count; ++i) ++drawn.at(sample_token(logits_V, temperature, top_p, (i + 0.5) / count));
  return drawn;
}

TEST(SampleToken, draws_each_id_as_often_as_it_is_likely) {
  EXPECT_EQ(draws({0.1, 0.6, 0.3}, 1, 1, 1000), (std::vector<int>{100, 600, 300}));
}

TEST(SampleToken, a_low_temperature_sharpens) {
  // p^2 / sum of p^2
  EXPECT_EQ(draws({0.25, 0.5, 0.25}, 0.5, 1, 600), (std::vector<int>{100, 400, 100}));
}

TEST(SampleToken, top_p_keeps_the_likeliest_that_reach_it) {
  EXPECT_EQ(draws({0.1, 0.6, 0.3}, 1, 0.6, 900), (std::vector<int>{0, 900, 0}));
  EXPECT_EQ(draws({0.1, 0.6, 0.3}, 1, 0.61, 900), (std::vector<int>{0, 600, 300}));
  EXPECT_EQ(draws({0.1, 0.6, 0.3}, 1, 0, 900), (std::vector<int>{0, 900, 0}));
}

TEST(SampleToken, equal_ids_are_taken_in_their_order) {
  EXPECT_EQ(draws({0.25, 0.25, 0.25, 0.25}, 1, 0.5, 100), (std::vector<int>{50, 50, 0, 0}));
}

}  // namespace
}  // namespace dtopp::inference
