#include "dtopp/models/costs.h"

#include <cmath>

#include "dtopp/config/config.h"
#include "dtopp/moe/experts.h"
#include "dtopp/ops/cuda/cuda_types.h"

namespace dtopp::models {
namespace {

[[noreturn]] void throw_uncountable() {
  throw config::InvalidValue("model", "the product of its sizes exceeds 64 bits; make it smaller");
}

constexpr uint64_t kPairBytes = 16;  // the indices of a token-expert pair

// Throws InvalidValue if the CUDA kernels do not support the sizes.
void require_cuda_limits(const BlockSizes& s) {
  const auto require = [](const char* key, const std::string& what, uint64_t count, int64_t most) {
    if (count <= static_cast<uint64_t>(most)) return;
    throw config::InvalidValue(key, what + std::to_string(count) + ", and a CUDA device takes at most " +
                                        std::to_string(most) +
                                        "; make it smaller, or set training.device to cpu");
  };
  require("model.hidden_size", "", s.D, ops::cuda::kWidestNorm);
  if (s.qk_norm == config::QkNorm::kWhole)
    require("model.num_heads", "times the head size is ", s.queries, ops::cuda::kWidestNorm);
  if (s.qk_norm == config::QkNorm::kHead)
    require("model.head_size", "", s.queries / s.H, ops::cuda::kWidestNorm);
  if (s.dense) return;
  require("model.num_experts", s.columns > s.E ? "and zero_experts are " : "", s.columns,
          ops::cuda::kMostExperts);
  require("training.micro_batch_size", "its tokens times the experts are ",
          std::max(checked_product({s.T, s.E}), s.pairs), ops::cuda::kMostPairs);
}

// Partial sums per token besides the result, while the rows of its experts are added along a tree over
// experts (ops/moe_ffn/moe_ffn_cpu.h).
uint64_t sum_slots(const BlockSizes& s) {
  const uint64_t active = (s.pairs + s.T - 1) / s.T;
  return std::min<uint64_t>(std::bit_width(s.E - 1), std::max<uint64_t>(active, 1) - 1);
}

}  // namespace

uint64_t checked_product(std::initializer_list<uint64_t> factors) {
  uint64_t result = 1;
  for (const uint64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) throw_uncountable();
  return result;
}

uint64_t checked_sum(std::initializer_list<uint64_t> terms) {
  uint64_t result = 0;
  for (const uint64_t term : terms)
    if (__builtin_add_overflow(result, term, &result)) throw_uncountable();
  return result;
}

uint64_t checked_round(double value) {
  if (!(value < 0x1p63)) throw_uncountable();
  return static_cast<uint64_t>(std::llround(value));
}

// The models' sources show which tensors are stored.

BlockSizes block_sizes(const config::ModelConfig& model, const CostInputs& inputs) {
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  BlockSizes s{};
  s.T = checked_product({u(inputs.micro_batch_size), u(model.tokens_per_sample())});
  s.D = u(model.hidden_size);
  s.L = u(model.num_layers);
  s.H = u(model.num_heads);
  s.queries = checked_product({s.H, u(model.head_size())});
  s.keys = checked_product({u(model.num_kv_heads()), u(model.head_size())});
  s.F = u(model.ffn_hidden_size);
  s.E = u(model.num_experts);
  s.columns = u(model.router_columns());
  s.shared = u(model.shared_ffn_hidden_size());
  s.shared_gate = model.shared_gate;
  s.qk_norm = model.qk_norm;
  s.cuda = inputs.cuda;
  s.dense = model.is_dense();
  s.pairs =
      checked_round(static_cast<double>(s.T) * inputs.active_experts * (s.cuda ? moe::kCapacityMargin : 1.0));
  s.width = inputs.width;
  s.active_experts = inputs.active_experts;
  s.recompute = inputs.recompute;
  if (s.cuda) require_cuda_limits(s);
  return s;
}

BlockActivations block_activations(const BlockSizes& s, uint64_t attention_extra) {
  const uint64_t stream = s.stream();
  // Two norms store their inputs, on a CUDA device also mean and 1 / sigma. Their outputs are the inputs of
  // projections.
  const uint64_t statistics = s.cuda ? checked_product({s.T, 4 * kFp32Bytes}) : 0;
  const uint64_t norms = checked_sum({checked_product({4, stream}), statistics});
  // q and k before their norms; q, k and v, whose heads are repeated, and the result of attention; its
  // logsumexp.
  const uint64_t before_norm = s.qk_norm == config::QkNorm::kNone ? 0 : checked_sum({s.queries, s.keys});
  const uint64_t attention =
      checked_sum({checked_product({s.T, checked_sum({4 * s.queries, before_norm}), s.width}),
                   checked_product({s.T, s.H, kFp32Bytes})});
  const uint64_t attend = checked_sum({norms, attention, attention_extra});
  // A dense FFN stores gate and up, silu(gate), and its product with up; experts store gate and up.
  const uint64_t ffn =
      s.dense ? checked_product({s.T, 4, s.F, s.width}) : checked_product({s.pairs, 2, s.F, s.width});
  // The gate stores the output of the shared experts.
  const uint64_t shared =
      checked_sum({checked_product({s.T, 4, s.shared, s.width}), s.shared_gate ? stream : 0});
  // The router's logits and the gates. The router's input is the norm's output, which is counted above.
  // Expert normalization stores nothing: its means are constants. With zero experts also the gates and the
  // probabilities of the experts alone.
  const uint64_t real = s.columns > s.E ? checked_product({s.T, s.E, 2 * kFp32Bytes}) : 0;
  const uint64_t router =
      s.dense ? 0 : checked_sum({checked_product({s.T, s.columns, 2 * kFp32Bytes}), real});
  if (s.recompute == config::Recompute::kNone) return {checked_sum({attend, router, ffn, shared}), 0};
  const uint64_t pairs = s.dense ? 0 : checked_product({s.pairs, kPairBytes});
  if (s.recompute == config::Recompute::kMoe) return {checked_sum({attend, router, pairs, shared}), ffn};
  // Stored are the block's input and the feed-forward layer's.
  return {checked_sum({checked_product({2, stream}), router, pairs}),
          std::max({attend - stream, ffn, shared})};
}

uint64_t recomputed_flops(const BlockSizes& s, uint64_t attention_flops) {
  const uint64_t expert = checked_product({s.F, s.D, 2});
  switch (s.recompute) {
    case config::Recompute::kNone:
      return 0;
    case config::Recompute::kMoe:
      return checked_round(static_cast<double>(checked_product({s.L, 2, expert})) * s.active_experts);
    case config::Recompute::kLayer:
      break;
  }
  const uint64_t projections = checked_product({2, s.D, checked_sum({2 * s.queries, 2 * s.keys})});
  const double ffn =
      s.dense ? 3 * static_cast<double>(expert) : 2 * static_cast<double>(expert) * s.active_experts;
  const uint64_t shared = checked_product({s.shared, s.D, 6});
  return checked_sum(
      {checked_product({s.L, checked_sum({projections, checked_round(ffn), shared})}), attention_flops / 3});
}

uint64_t block_workspace(const BlockSizes& s) {
  const uint64_t streams = checked_product({3, s.T, std::max(s.D, s.queries), s.width});
  const uint64_t rows = s.dense ? s.T : s.pairs, widths = s.cuda ? 4 : 3;
  const uint64_t ffn = checked_product({rows, widths, s.F, s.width});
  const uint64_t shared = checked_product({s.T, widths, s.shared, s.width});
  if (s.dense) return checked_sum({streams, ffn});
  if (!s.cuda) {
    const uint64_t sums = checked_product({sum_slots(s), s.T, s.D, kFp32Bytes});
    return checked_sum({streams, std::max(checked_sum({ffn, sums}), shared)});
  }
  // The rows gathered from the output's gradient, and the position of each pair.
  const uint64_t experts =
      checked_sum({ffn, checked_product({rows, s.D, s.width}), checked_product({s.T, s.E, kFp32Bytes})});
  return checked_sum({streams, std::max(experts, shared)});
}

}  // namespace dtopp::models
