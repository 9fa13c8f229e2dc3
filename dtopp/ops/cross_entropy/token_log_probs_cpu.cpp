#include <numeric>

#include "dtopp/ops/core/check_tensor.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy_cpu.h"

namespace dtopp::ops {

std::vector<int64_t> counted_tokens(const char* op, const at::Tensor& targets_T, int64_t vocabulary,
                                    std::optional<int64_t> ignore_index) {
  std::vector<int64_t> rows;
  const auto target = targets_T.accessor<int64_t, 1>();
  rows.reserve(target.size(0));
  for (int64_t t = 0; t < target.size(0); ++t) {
    if (ignore_index && target[t] == *ignore_index) continue;
    TORCH_CHECK(target[t] >= 0 && target[t] < vocabulary, op, ": expected targets from 0 to ", vocabulary - 1,
                ", got ", target[t], " at index ", t);
    rows.push_back(t);
  }
  return rows;
}

namespace {

constexpr int64_t kTokensPerChunk = 512;

template <typename Scalar, typename Tiles>
void fill_log_probs(const at::Tensor& x_TD, const at::Tensor& weight_VD, const int64_t* targets,
                    const std::vector<int64_t>& tokens, const at::Tensor& log_probs_T,
                    const at::Tensor& greedy_T) {
  using Real = typename Tiles::Real;
  const int64_t total = x_TD.size(0), hidden = x_TD.size(1), vocabulary = weight_VD.size(0);
  if (total == 0) return;
  const int64_t rows = even_part(total, kTokensPerChunk, 1);
  LogitBuffers<Tiles> buffers(rows, hidden, vocabulary, x_TD.options());
  const BufferParts<Real> logits(buffers.shares, rows * kBlockColumns, x_TD.options());
  Real* log_probs = log_probs_T.mutable_data_ptr<Real>();
  int64_t* greedy = greedy_T.mutable_data_ptr<int64_t>();
  for (int64_t first = 0; first < total; first += rows) {
    const TokenChunk chunk{tokens.data() + first, targets, std::min(rows, total - first)};
    const auto sums = form_logits<Scalar>(x_TD.const_data_ptr<Scalar>(), weight_VD.const_data_ptr<Scalar>(),
                                          hidden, vocabulary, chunk, buffers,
                                          [&](int64_t /*block*/, int64_t share) { return logits.of(share); });
    for (int64_t n = 0; n < chunk.rows; ++n) {
      log_probs[first + n] = static_cast<Real>(sums[n].target - sums[n].lse());
      greedy[first + n] = sums[n].likeliest;
    }
  }
}

std::tuple<at::Tensor, at::Tensor> log_probs_cpu(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                                 const at::Tensor& targets_T) {
  check_linear_cross_entropy("token_log_probs", x_TD, weight_VD, targets_T);
  const auto tokens = counted_tokens("token_log_probs", targets_T, weight_VD.size(0), std::nullopt);
  const auto real = x_TD.options().dtype(accumulator_type(x_TD));
  const at::Tensor log_probs_T = at::empty({x_TD.size(0)}, real);
  const at::Tensor greedy_T = at::empty({x_TD.size(0)}, real.dtype(at::kLong));
  const at::Tensor targets = targets_T.contiguous();
  dispatch(x_TD, [&](auto scalar, auto tiles) {
    fill_log_probs<decltype(scalar), decltype(tiles)>(
        plain(x_TD), plain(weight_VD), targets.const_data_ptr<int64_t>(), tokens, log_probs_T, greedy_T);
  });
  return {log_probs_T, greedy_T};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("token_log_probs", log_probs_cpu); }

}  // namespace dtopp::ops
