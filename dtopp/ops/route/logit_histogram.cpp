#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::ops {

namespace {

constexpr int64_t kExpertsPerThread = 16;  // a cache line of logits

void check_logit_histogram(const Tensor& logits_TE, int64_t stride) {
  const auto dtype = logits_TE.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble,
              "logit_histogram: expected logits of dtype float32 or float64, got ", dtype);
  TORCH_CHECK(logits_TE.dim() == 2, "logit_histogram: expected logits of shape [tokens, experts], got ",
              logits_TE.sym_sizes());
  TORCH_CHECK(stride >= 1, "logit_histogram: expected a stride of at least 1, got ", stride);
}

Tensor logit_histogram_meta(const Tensor& logits_TE, int64_t stride) {
  check_logit_histogram(logits_TE, stride);
  return at::empty_symint({logits_TE.sym_size(1), kLogitBins}, logits_TE.options().dtype(at::kLong));
}

// In tensor operations. The host reads nothing.
Tensor logit_histogram_cuda(const Tensor& logits_TE, int64_t stride) {
  check_logit_histogram(logits_TE, stride);
  const Tensor z_TE = logits_TE.slice(0, 0, std::nullopt, stride);
  const int64_t experts = z_TE.size(1);
  const Tensor place_TE =
      ((z_TE - kLowestLogit) * kLogitBinsPerUnit).clamp(0, static_cast<double>(kLogitBins - 1)).nan_to_num(0);
  const Tensor first_E = at::arange(experts, z_TE.options().dtype(at::kLong)) * kLogitBins;
  const Tensor bin = (place_TE.to(at::kLong) + first_E).reshape({-1});
  const Tensor counts = at::zeros({experts * kLogitBins}, bin.options());
  return counts.scatter_add(0, bin, at::ones_like(bin)).view({experts, kLogitBins});
}

// Counts the logits of the experts from `begin` to `end`.
template <typename Real>
[[gnu::always_inline]] inline void count_logits(const Real* logits, int64_t tokens, int64_t experts,
                                                int64_t stride, int64_t begin, int64_t end,
                                                std::vector<int32_t>& bins, int64_t* counts_EB) {
  for (int64_t t = 0; t < tokens; t += stride) {
    const Real* z = logits + t * experts;
#pragma omp simd
    for (int64_t e = begin; e < end; ++e) {
      const Real place = (z[e] - static_cast<Real>(kLowestLogit)) * static_cast<Real>(kLogitBinsPerUnit);
      const Real most = static_cast<Real>(kLogitBins - 1), above = place > 0 ? place : Real(0);  // NaN: 0
      bins[e] = static_cast<int32_t>(above < most ? above : most);
    }
    for (int64_t e = begin; e < end; ++e) ++counts_EB[e * kLogitBins + bins[e]];
  }
}

Tensor logit_histogram_cpu(const Tensor& logits_TE, int64_t stride) {
  check_logit_histogram(logits_TE, stride);
  const Tensor z_TE = logits_TE.contiguous();
  const int64_t tokens = z_TE.size(0), experts = z_TE.size(1);
  Tensor counts_EB = at::zeros({experts, kLogitBins}, z_TE.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(z_TE.scalar_type(), "logit_histogram", [&] {
    const scalar_t* logits = z_TE.const_data_ptr<scalar_t>();
    int64_t* counts = counts_EB.mutable_data_ptr<int64_t>();
    // A thread counts a range of experts, so that no two threads write to one count.
    at::parallel_for(0, experts, kExpertsPerThread, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> bins(experts);
      run_widest([&] { count_logits(logits, tokens, experts, stride, begin, end, bins, counts); });
    });
  });
  return counts_EB;
}

}  // namespace

Tensor logit_histogram(const Tensor& logits_TE, int64_t stride) {
  return call_op<"dtopp::logit_histogram", decltype(logit_histogram_meta)>(logits_TE, stride);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) { m.def("logit_histogram(Tensor logits_TE, *, int stride=1) -> Tensor"); }

TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("logit_histogram", logit_histogram_cpu); }
TORCH_LIBRARY_IMPL(dtopp, CUDA, m) { m.impl("logit_histogram", logit_histogram_cuda); }
TORCH_LIBRARY_IMPL(dtopp, Meta, m) { m.impl("logit_histogram", logit_histogram_meta); }

Tensor ranked_logit(const Tensor& counts, int64_t rank) {
  const Tensor reached = counts.to(at::kDouble).flip({-1}).cumsum(-1).flip({-1});  // logits of a bin or above
  const Tensor bin = reached.ge(rank).sum(-1, /*keepdim=*/true).sub(1).clamp_min(0);
  const Tensor inside = counts.to(at::kDouble).gather(-1, bin);
  const Tensor above = reached.gather(-1, bin) - inside;
  const Tensor part = (static_cast<double>(rank) - above) / inside;  // of the bin, from its upper edge
  return ((bin + 1).to(at::kDouble) - part).div(ops::kLogitBinsPerUnit).add(ops::kLowestLogit).squeeze(-1);
}

}  // namespace dtopp::ops
