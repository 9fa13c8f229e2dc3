// One thread block per row of logits; a thread processes every kThreads-th pack. The first pass reads the row
// once. Each thread keeps its highest logit so far and the sum of exponentials relative to it, and rescales
// the sum when a higher logit appears. The block then adds the threads' sums in double, relative to the row's
// highest logit and in a fixed order. The row's logsumexp is highest + log(sum).
//
// Loss: a second pass turns the logits into d loss / d logits = factor * softmax, minus `share` at the
// target. Their type is that of the products with x and the weight. Log probabilities: a second pass finds
// the first id with the highest logit. Results are written per row; the caller adds them up in a fixed order.
#include <cstdio>

#include "dtopp/ops/cross_entropy/linear_cross_entropy_cuda.h"
#include "dtopp/ops/cuda/cuda_kernel.h"

namespace dtopp::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr size_t kScratchBytes = kWarps * sizeof(double);

template <typename Real>
struct RowState {
  Real highest = -kInfinity<Real>;
  Real total = 0;  // sum of exp(logit - highest)

  // If a logit is NaN, the total becomes NaN.
  template <int kWidth>
  __device__ void add(const Pack<Real, kWidth>& logits) {
    Real top = highest;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) top = logits.of[i] > top ? logits.of[i] : top;
    if (top > highest) {
      total *= std::exp(highest - top);
      highest = top;
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      total += logits.of[i] == -kInfinity<Real> ? Real(0) : std::exp(logits.of[i] - highest);
  }
};

template <typename Real>
struct RowSum {
  Real highest;
  double lse;
};

// Returns the row's sum to all threads of the block.
template <int kWidth, typename Real>
__device__ RowSum<Real> sum_row(const Real* logits_V, int64_t vocabulary) {
  RowState<Real> state;
  for (int64_t pack = threadIdx.x; pack < vocabulary / kWidth; pack += kThreads)
    state.add(load_pack<kWidth>(logits_V, pack));
  unsigned char* scratch = shared_memory();
  const Real highest = block_max(state.highest, reinterpret_cast<Real*>(scratch));
  const double part = static_cast<double>(state.total) * exp(static_cast<double>(state.highest - highest));
  const double total = block_sum(part, reinterpret_cast<double*>(scratch));
  return {highest, static_cast<double>(highest) + log(total)};
}

template <typename Real>
__device__ void check_target(const LogitRows<Real>& in, int64_t row, const char* op) {
  const int64_t target = in.targets_N[row];
  if (threadIdx.x != 0 || (target >= 0 && target < in.vocabulary)) return;
  printf("%s: expected targets from 0 to %lld, got %lld at index %lld\n", op,
         static_cast<long long>(in.vocabulary - 1), static_cast<long long>(target),
         static_cast<long long>(in.first + row));
  __trap();
}

template <int kWidth, typename Scalar>
__device__ void clear_row(Scalar* row_V, int64_t vocabulary) {
  for (int64_t pack = threadIdx.x; pack < vocabulary / kWidth; pack += kThreads)
    store_pack(row_V, pack, Pack<Scalar, kWidth>{});
}

template <int kWidth, typename Scalar>
__device__ void form_gradient(const LossRows<Scalar>& loss, int64_t row,
                              const RowSum<Accumulator<Scalar>>& sum) {
  using Real = Accumulator<Scalar>;
  const int64_t vocabulary = loss.in.vocabulary, target = loss.in.targets_N[row];
  const double share = 1 / static_cast<double>(*loss.counted);
  const double factor = share * (1 + 2 * loss.z_weight * sum.lse);
  const Real scale = static_cast<Real>(factor * exp(static_cast<double>(sum.highest) - sum.lse));
  const Real* logits_V = loss.in.logits_NV + row * vocabulary;
  for (int64_t pack = threadIdx.x; pack < vocabulary / kWidth; pack += kThreads) {
    const auto logits = load_pack<kWidth>(logits_V, pack);
    Pack<Scalar, kWidth> gradient;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      Real value = scale * std::exp(logits.of[i] - sum.highest);
      if (pack * kWidth + i == target) value -= static_cast<Real>(share);
      store(&gradient.of[i], value);
    }
    store_pack(loss.gradient_NV + row * vocabulary, pack, gradient);
  }
}

template <typename Scalar, int kWidth>
__global__ void __launch_bounds__(kThreads) loss_kernel(LossRows<Scalar> loss) {
  const int64_t row = blockIdx.x, vocabulary = loss.in.vocabulary;
  const bool ignored = loss.in.targets_N[row] == loss.ignore_index;
  if (ignored) {
    if (threadIdx.x == 0) loss.nll_N[row] = loss.z_N[row] = 0;
    if (loss.gradient_NV != nullptr) clear_row<kWidth>(loss.gradient_NV + row * vocabulary, vocabulary);
    return;
  }
  check_target(loss.in, row, "linear_cross_entropy");
  const auto* logits_V = loss.in.logits_NV + row * vocabulary;
  const auto sum = sum_row<kWidth>(logits_V, vocabulary);
  if (threadIdx.x == 0) {
    loss.nll_N[row] = sum.lse - logits_V[loss.in.targets_N[row]];
    loss.z_N[row] = sum.lse * sum.lse;
  }
  if (loss.gradient_NV != nullptr) form_gradient<kWidth>(loss, row, sum);
}

template <typename Real, int kWidth>
__global__ void __launch_bounds__(kThreads) log_probs_kernel(LogProbRows<Real> out) {
  const int64_t row = blockIdx.x, vocabulary = out.in.vocabulary;
  check_target(out.in, row, "token_log_probs");
  const Real* logits_V = out.in.logits_NV + row * vocabulary;
  const RowSum<Real> sum = sum_row<kWidth>(logits_V, vocabulary);
  int64_t left = 0;  // number of ids from the likeliest one to the end; 0 if all logits are NaN
  for (int64_t v = threadIdx.x; v < vocabulary && left == 0; v += kThreads)
    if (logits_V[v] == sum.highest) left = vocabulary - v;
  left = block_max(left, reinterpret_cast<int64_t*>(shared_memory()));
  if (threadIdx.x != 0) return;
  out.log_probs_N[row] = static_cast<Real>(logits_V[out.in.targets_N[row]] - sum.lse);
  out.greedy_N[row] = left == 0 ? 0 : vocabulary - left;
}

}  // namespace

template <typename Scalar>
void form_loss_rows(const LossRows<Scalar>& loss, Stream stream) {
  with_packs<Accumulator<Scalar>>(
      loss.in.vocabulary,
      [&](auto width) {
        launch({"linear_cross_entropy", stream, loss.in.rows, kThreads, kScratchBytes},
               loss_kernel<Scalar, width()>, loss);
      },
      loss.in.logits_NV);
}

template <typename Real>
void form_log_probs(const LogProbRows<Real>& out, Stream stream) {
  with_packs<Real>(
      out.in.vocabulary,
      [&](auto width) {
        launch({"token_log_probs", stream, out.in.rows, kThreads, kScratchBytes},
               log_probs_kernel<Real, width()>, out);
      },
      out.in.logits_NV);
}

template void form_loss_rows(const LossRows<float>&, Stream);
template void form_loss_rows(const LossRows<double>&, Stream);
template void form_loss_rows(const LossRows<Bfloat16>&, Stream);
template void form_log_probs(const LogProbRows<float>&, Stream);
template void form_log_probs(const LogProbRows<double>&, Stream);

}  // namespace dtopp::ops::cuda
