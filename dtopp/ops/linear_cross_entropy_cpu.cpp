#include <limits>
#include <numeric>

#include "dtopp/ops/bfloat16.h"
#include "dtopp/ops/linear_cross_entropy_kernel.h"
#include "dtopp/ops/simd.h"

namespace dtopp {
namespace {

// Workspace: logits of one chunk of tokens, and for bfloat16 one block of the weight in float. Products are
// always formed in float (double for double): a loss from bfloat16 logits would be off in its third digit.
constexpr int64_t kLogitBytes = 64 << 20;
constexpr int64_t kWeightBlockBytes = 8 << 20;
constexpr int64_t kMostTokensPerChunk = 1024;
constexpr int64_t kSumBlock = 1024;  // float sums run over this many numbers, then go on in double

// The indexes of the tokens that count. Checks the targets.
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

int64_t tokens_per_chunk(int64_t tokens, int64_t vocabulary, int64_t bytes) {
  const int64_t fitting = kLogitBytes / std::max<int64_t>(bytes * vocabulary, 1);
  return std::clamp<int64_t>(fitting, 1, std::clamp<int64_t>(tokens, 1, kMostTokensPerChunk));
}

// Calls body(first row, rows of the weight as Real) for the whole weight; converts bfloat16 block by block.
template <typename Scalar, typename Body>
void for_weight_blocks(const at::Tensor& weight_VD, const at::Tensor& buffer, const Body& body) {
  using Real = Accumulator<Scalar>;
  if constexpr (std::is_same_v<Scalar, Real>) {
    body(0, weight_VD);
  } else {
    const int64_t vocabulary = weight_VD.size(0), hidden = weight_VD.size(1);
    for (int64_t first = 0; first < vocabulary; first += buffer.size(0)) {
      const int64_t rows = std::min(buffer.size(0), vocabulary - first);
      const Scalar* from = weight_VD.const_data_ptr<Scalar>() + first * hidden;
      Real* to = buffer.mutable_data_ptr<Real>();
      at::parallel_for(0, rows * hidden, 1 << 16, [&](int64_t begin, int64_t end) {
        run_widest([&] {
          for (int64_t i = begin; i < end; ++i) to[i] = load(from[i]);
        });
      });
      body(first, buffer.narrow(0, 0, rows));
    }
  }
}

template <typename Scalar>
at::Tensor weight_buffer(const at::Tensor& weight_VD) {
  using Real = Accumulator<Scalar>;
  const auto options = weight_VD.options().dtype(c10::CppTypeToScalarType<Real>::value);
  if (std::is_same_v<Scalar, Real>) return at::empty({0}, options);
  const int64_t row_bytes = std::max<int64_t>(weight_VD.size(1), 1) * static_cast<int64_t>(sizeof(Real));
  return at::empty({std::max<int64_t>(kWeightBlockBytes / row_bytes, 1), weight_VD.size(1)}, options);
}

template <typename Real>
struct RowSums {
  Real highest;
  double lse;
};

template <typename Real>
[[gnu::always_inline]] inline RowSums<Real> row_sums(const Real* logits_V, int64_t vocabulary) {
  Real highest = -std::numeric_limits<Real>::infinity();
#pragma omp simd reduction(max : highest)
  for (int64_t v = 0; v < vocabulary; ++v) highest = logits_V[v] > highest ? logits_V[v] : highest;
  double total = 0;
  for (int64_t first = 0; first < vocabulary; first += kSumBlock) {
    const int64_t last = std::min(first + kSumBlock, vocabulary);
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = first; v < last; ++v) sum += fast_exp(logits_V[v] - highest);
    total += sum;
  }
  return {highest, highest + std::log(total)};
}

// Turns a row of logits into d loss / d logits: factor * softmax - share at the target.
template <typename Real>
[[gnu::always_inline]] inline void row_gradient(Real* logits_V, int64_t vocabulary, double lse,
                                                int64_t target, Real factor, Real share) {
  const Real shift = static_cast<Real>(lse);
#pragma omp simd
  for (int64_t v = 0; v < vocabulary; ++v) logits_V[v] = factor * fast_exp(logits_V[v] - shift);
  logits_V[target] -= share;
}

template <typename Scalar>
void gather_rows(const at::Tensor& x_TD, const int64_t* tokens, const at::Tensor& out_ND) {
  const int64_t hidden = x_TD.size(1);
  const Scalar* x = x_TD.const_data_ptr<Scalar>();
  auto* out = out_ND.mutable_data_ptr<Accumulator<Scalar>>();
  run_widest([&] {
    for (int64_t n = 0; n < out_ND.size(0); ++n) {
      for (int64_t d = 0; d < hidden; ++d) out[n * hidden + d] = load(x[tokens[n] * hidden + d]);
    }
  });
}

template <typename Scalar>
void form_logits(const at::Tensor& x_ND, const at::Tensor& weight_VD, const at::Tensor& buffer,
                 const at::Tensor& logits_NV) {
  for_weight_blocks<Scalar>(weight_VD, buffer, [&](int64_t first, const at::Tensor& block) {
    at::Tensor part = logits_NV.narrow(1, first, block.size(0));
    at::mm_out(part, x_ND, block.t());
  });
}

struct LossOptions {
  double z_weight;
  bool need_x, need_weight;
};

struct LossSums {
  double nll = 0, z = 0;
  at::Tensor grad_x_TD, grad_weight_VD;  // fp32 (f64); defined when needed
};

// Adds one chunk: its part of the sums, its rows of grad_x and its share of grad_weight.
template <typename Scalar>
void add_chunk(const at::Tensor& x_TD, const at::Tensor& weight_VD, const int64_t* targets,
               const int64_t* tokens, int64_t counted, const LossOptions& options, const at::Tensor& buffer,
               const at::Tensor& x_ND, const at::Tensor& logits_NV, LossSums& sums) {
  using Real = Accumulator<Scalar>;
  const int64_t rows = x_ND.size(0), vocabulary = weight_VD.size(0);
  gather_rows<Scalar>(x_TD, tokens, x_ND);
  form_logits<Scalar>(x_ND, weight_VD, buffer, logits_NV);
  std::vector<double> lse(rows), nll(rows);
  const double share = 1.0 / static_cast<double>(counted);
  Real* logits = logits_NV.mutable_data_ptr<Real>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    run_widest([&] {
      for (int64_t n = begin; n < end; ++n) {
        Real* row = logits + n * vocabulary;
        const int64_t target = targets[tokens[n]];
        lse[n] = row_sums(row, vocabulary).lse;
        nll[n] = lse[n] - row[target];
        if (!options.need_x && !options.need_weight) continue;
        const double factor = share * (1 + 2 * options.z_weight * lse[n]);
        row_gradient(row, vocabulary, lse[n], target, static_cast<Real>(factor), static_cast<Real>(share));
      }
    });
  });
  for (int64_t n = 0; n < rows; ++n) {
    sums.nll += nll[n];
    sums.z += lse[n] * lse[n];
  }
  if (options.need_weight) sums.grad_weight_VD.addmm_(logits_NV.t(), x_ND);
  if (!options.need_x) return;
  at::Tensor grad_x_ND = at::zeros_like(x_ND);
  for_weight_blocks<Scalar>(weight_VD, buffer, [&](int64_t first, const at::Tensor& block) {
    grad_x_ND.addmm_(logits_NV.narrow(1, first, block.size(0)), block);
  });
  const int64_t hidden = x_TD.size(1);
  for (int64_t n = 0; n < rows; ++n) {
    const Real* from = grad_x_ND.const_data_ptr<Real>() + n * hidden;
    Scalar* to = sums.grad_x_TD.mutable_data_ptr<Scalar>() + tokens[n] * hidden;
    for (int64_t d = 0; d < hidden; ++d) store(to + d, from[d]);
  }
}

template <typename Scalar>
LossSums sum_chunks(const at::Tensor& x_TD, const at::Tensor& weight_VD, const at::Tensor& targets_T,
                    const std::vector<int64_t>& counted, const LossOptions& options) {
  using Real = Accumulator<Scalar>;
  const auto real = x_TD.options().dtype(c10::CppTypeToScalarType<Real>::value);
  const int64_t total = static_cast<int64_t>(counted.size()), vocabulary = weight_VD.size(0);
  const int64_t chunk = tokens_per_chunk(total, vocabulary, sizeof(Real));
  LossSums sums;
  if (options.need_x) sums.grad_x_TD = at::zeros(x_TD.sizes(), x_TD.options());
  if (options.need_weight) sums.grad_weight_VD = at::zeros(weight_VD.sizes(), real);
  if (total == 0) return sums;
  const at::Tensor buffer = weight_buffer<Scalar>(weight_VD);
  const at::Tensor x_ND = at::empty({chunk, x_TD.size(1)}, real);
  const at::Tensor logits_NV = at::empty({chunk, vocabulary}, real);
  for (int64_t first = 0; first < total; first += chunk) {
    const int64_t rows = std::min(chunk, total - first);
    add_chunk<Scalar>(x_TD, weight_VD, targets_T.const_data_ptr<int64_t>(), counted.data() + first, total,
                      options, buffer, x_ND.narrow(0, 0, rows), logits_NV.narrow(0, 0, rows), sums);
  }
  return sums;
}

// Calls body with a value of the tensors' type.
template <typename Body>
void dispatch(const at::Tensor& x_TD, const Body& body) {
  if (x_TD.scalar_type() == at::kDouble) return body(double{});
  if (x_TD.scalar_type() == at::kFloat) return body(float{});
  body(c10::BFloat16{});
}

// Threads of the pool have their own autograd state: what they read must not require gradients.
at::Tensor plain(const at::Tensor& tensor) { return tensor.detach().contiguous(); }

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward_cpu(
    const at::Tensor& x_TD, const at::Tensor& weight_VD, const at::Tensor& targets_T, double z_weight,
    int64_t ignore_index, bool need_x, bool need_weight) {
  check_linear_cross_entropy("linear_cross_entropy", x_TD, weight_VD, targets_T);
  const auto counted = counted_tokens("linear_cross_entropy", targets_T, weight_VD.size(0), ignore_index);
  LossSums sums;
  dispatch(x_TD, [&](auto scalar) {
    sums = sum_chunks<decltype(scalar)>(plain(x_TD), plain(weight_VD), targets_T.contiguous(), counted,
                                        {z_weight, need_x, need_weight});
  });
  const double count = static_cast<double>(std::max<size_t>(counted.size(), 1));
  const auto real = x_TD.options().dtype(x_TD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const double nll = sums.nll / count, z = sums.z / count;
  return {
      at::scalar_tensor(nll + z_weight * z, real), at::scalar_tensor(nll, real), at::scalar_tensor(z, real),
      need_x ? sums.grad_x_TD : at::empty({0}, x_TD.options()),
      need_weight ? sums.grad_weight_VD.to(weight_VD.scalar_type()) : at::empty({0}, weight_VD.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> loss_cpu(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                                        const at::Tensor& targets_T, double z_weight,
                                                        int64_t ignore_index) {
  auto [loss, nll, z, grad_x, grad_weight] =
      forward_cpu(x_TD, weight_VD, targets_T, z_weight, ignore_index, false, false);
  return {loss, nll, z};
}

template <typename Scalar>
void fill_log_probs(const at::Tensor& x_TD, const at::Tensor& weight_VD, const at::Tensor& targets_T,
                    const std::vector<int64_t>& tokens, const at::Tensor& log_probs_T,
                    const at::Tensor& greedy_T) {
  using Real = Accumulator<Scalar>;
  const int64_t total = x_TD.size(0), vocabulary = weight_VD.size(0);
  if (total == 0) return;
  const int64_t chunk = tokens_per_chunk(total, vocabulary, sizeof(Real));
  const at::Tensor buffer = weight_buffer<Scalar>(weight_VD);
  const at::Tensor x_ND = at::empty({chunk, x_TD.size(1)}, log_probs_T.options());
  const at::Tensor logits_NV = at::empty({chunk, vocabulary}, log_probs_T.options());
  const int64_t* targets = targets_T.const_data_ptr<int64_t>();
  Real* log_probs = log_probs_T.mutable_data_ptr<Real>();
  int64_t* greedy = greedy_T.mutable_data_ptr<int64_t>();
  for (int64_t first = 0; first < total; first += chunk) {
    const int64_t rows = std::min(chunk, total - first);
    gather_rows<Scalar>(x_TD, tokens.data() + first, x_ND.narrow(0, 0, rows));
    form_logits<Scalar>(x_ND.narrow(0, 0, rows), weight_VD, buffer, logits_NV.narrow(0, 0, rows));
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      run_widest([&] {
        for (int64_t n = begin; n < end; ++n) {
          const Real* row = logits_NV.const_data_ptr<Real>() + n * vocabulary;
          const RowSums<Real> sums = row_sums(row, vocabulary);
          log_probs[first + n] = static_cast<Real>(row[targets[first + n]] - sums.lse);
          const Real* found = std::find(row, row + vocabulary, sums.highest);
          greedy[first + n] = found == row + vocabulary ? 0 : found - row;  // no highest: every logit is NaN
        }
      });
    });
  }
}

std::tuple<at::Tensor, at::Tensor> log_probs_cpu(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                                 const at::Tensor& targets_T) {
  check_linear_cross_entropy("token_log_probs", x_TD, weight_VD, targets_T);
  const auto tokens = counted_tokens("token_log_probs", targets_T, weight_VD.size(0), std::nullopt);
  const auto real = x_TD.options().dtype(x_TD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  at::Tensor log_probs_T = at::empty({x_TD.size(0)}, real);
  at::Tensor greedy_T = at::empty({x_TD.size(0)}, real.dtype(at::kLong));
  dispatch(x_TD, [&](auto scalar) {
    fill_log_probs<decltype(scalar)>(plain(x_TD), plain(weight_VD), targets_T.contiguous(), tokens,
                                     log_probs_T, greedy_T);
  });
  return {log_probs_T, greedy_T};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("linear_cross_entropy", loss_cpu);
  m.impl("linear_cross_entropy_forward", forward_cpu);
  m.impl("token_log_probs", log_probs_cpu);
}

}  // namespace dtopp
