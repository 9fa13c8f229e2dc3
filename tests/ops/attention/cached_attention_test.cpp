#include "dtopp/ops/attention/cached_attention.h"

#include <cmath>

#include <gtest/gtest.h>

namespace dtopp::ops::cached_attention_test {
namespace {

constexpr int64_t kRows = 4, kHeads = 4, kGroups = 2, kWidth = 24;

// Sequences of 1, 38 and 75 tokens; row 2 has none. Keys and values lie head by head, as in a cache.
std::vector<CachedSequence> sequences_of(at::ScalarType dtype) {
  std::vector<CachedSequence> sequences;
  for (const auto& [row, length] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 38}, {3, 75}}) {
    const auto cache = [&] { return at::randn({kGroups, length, kWidth}).to(dtype).transpose(0, 1); };
    sequences.push_back({row, cache(), cache()});
  }
  return sequences;
}

at::Tensor expected_row(const at::Tensor& q_HK, const CachedSequence& sequence) {
  const auto by_head = [](const at::Tensor& x_LGK) {
    return x_LGK.to(at::kDouble).repeat_interleave(kHeads / kGroups, 1).transpose(0, 1);
  };
  const at::Tensor k_HLK = by_head(sequence.k_LGK), v_HLK = by_head(sequence.v_LGK);
  const at::Tensor scores = at::matmul(q_HK.to(at::kDouble).unsqueeze(1), k_HLK.transpose(1, 2));
  return at::matmul(at::softmax(scores / std::sqrt(static_cast<double>(kWidth)), -1), v_HLK).squeeze(1);
}

// bf16 rounds the result once (2^-9 of numbers below 4).
TEST(CachedAttention, matches_double_precision) {
  for (const auto& [dtype, bound] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 4.0 / 512)}) {
    at::manual_seed(3);
    const at::Tensor q = at::randn({kRows, kHeads, kWidth}).to(dtype), y = at::zeros_like(q);
    const std::vector<CachedSequence> sequences = sequences_of(dtype);
    cached_attention(q, sequences, y);
    for (const CachedSequence& sequence : sequences)
      EXPECT_LT((y[sequence.row] - expected_row(q[sequence.row], sequence)).abs().max().item<double>(),
                bound);
    EXPECT_TRUE(at::equal(y[2], at::zeros_like(y[2])));
  }
}

TEST(CachedAttention, a_row_does_not_depend_on_the_other_sequences) {
  const at::Tensor q = at::randn({kRows, kHeads, kWidth}), together = at::zeros_like(q),
                   alone = at::zeros_like(q);
  const std::vector<CachedSequence> sequences = sequences_of(at::kFloat);
  cached_attention(q, sequences, together);
  for (const CachedSequence& sequence : sequences) cached_attention(q, std::span(&sequence, 1), alone);
  EXPECT_TRUE(at::equal(together, alone));
}

}  // namespace
}  // namespace dtopp::ops::cached_attention_test
