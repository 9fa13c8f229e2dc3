#include <cmath>

#include <gtest/gtest.h>

#include "dtopp/ops/attention/attention.h"

namespace dtopp::ops::cached_attention_test {
namespace {

constexpr int64_t kRows = 4, kHeads = 4, kGroups = 2, kWidth = 24;

struct Batch {
  at::Tensor q_THK, k_TGK, v_TGK;
  std::vector<CachedSequence> sequences;

  at::Tensor attend(std::span<const CachedSequence> some) const {
    at::Tensor y_THK = at::zeros_like(q_THK);
    cached_attention(q_THK, k_TGK, v_TGK, some, y_THK);
    return y_THK;
  }
};

// Sequences of 1, 38 and 75 tokens, the last of which begins at token 9; row 2 has none.
Batch random_batch(at::ScalarType dtype) {
  at::manual_seed(3);
  const auto heads = [&](int64_t count) { return at::randn({kRows, count, kWidth}).to(dtype); };
  Batch batch{heads(kHeads), heads(kGroups), heads(kGroups), {}};
  const auto cache = [&] { return at::randn({kGroups, 80, kWidth}).to(dtype); };
  batch.sequences = {{0, cache(), cache(), 0, 0}, {1, cache(), cache(), 0, 37}, {3, cache(), cache(), 9, 74}};
  return batch;
}

at::Tensor expected_row(const Batch& batch, const CachedSequence& sequence) {
  const auto by_head = [&](const at::Tensor& cache_GLK, const at::Tensor& x_TGK) {
    const at::Tensor earlier =
        cache_GLK.narrow(1, sequence.first, sequence.position - sequence.first).to(at::kDouble);
    const at::Tensor own = x_TGK[sequence.row].unsqueeze(1).to(at::kDouble);
    return at::cat({earlier, own}, 1).repeat_interleave(kHeads / kGroups, 0);
  };
  const at::Tensor k_HLK = by_head(sequence.k_GLK, batch.k_TGK), v_HLK = by_head(sequence.v_GLK, batch.v_TGK);
  const at::Tensor q_H1K = batch.q_THK[sequence.row].to(at::kDouble).unsqueeze(1);
  const at::Tensor scores = at::matmul(q_H1K, k_HLK.transpose(1, 2));
  return at::matmul(at::softmax(scores / std::sqrt(static_cast<double>(kWidth)), -1), v_HLK).squeeze(1);
}

// bf16 rounds the result once (2^-9 of numbers below 4).
TEST(CachedAttention, matches_double_precision) {
  for (const auto& [dtype, bound] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 4.0 / 512)}) {
    const Batch batch = random_batch(dtype);
    const at::Tensor y = batch.attend(batch.sequences);
    for (const CachedSequence& sequence : batch.sequences)
      EXPECT_LT((y[sequence.row] - expected_row(batch, sequence)).abs().max().item<double>(), bound);
    EXPECT_TRUE(at::equal(y[2], at::zeros_like(y[2])));
  }
}

TEST(CachedAttention, stores_the_token_and_nothing_else) {
  const Batch batch = random_batch(at::kBFloat16);
  std::vector<at::Tensor> expected;
  for (const CachedSequence& sequence : batch.sequences) {
    for (const auto& [cache_GLK, x_TGK] :
         {std::pair(sequence.k_GLK, batch.k_TGK), std::pair(sequence.v_GLK, batch.v_TGK)}) {
      expected.push_back(cache_GLK.clone());
      expected.back().select(1, sequence.position).copy_(x_TGK[sequence.row]);
    }
  }
  batch.attend(batch.sequences);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    EXPECT_TRUE(at::equal(batch.sequences[i].k_GLK, expected[2 * i]));
    EXPECT_TRUE(at::equal(batch.sequences[i].v_GLK, expected[2 * i + 1]));
  }
}

TEST(CachedAttention, a_row_does_not_depend_on_the_other_sequences) {
  const Batch batch = random_batch(at::kFloat);
  const at::Tensor together = batch.attend(batch.sequences);
  for (const CachedSequence& sequence : batch.sequences)
    EXPECT_TRUE(at::equal(together[sequence.row], batch.attend(std::span(&sequence, 1))[sequence.row]));
}

}  // namespace
}  // namespace dtopp::ops::cached_attention_test
