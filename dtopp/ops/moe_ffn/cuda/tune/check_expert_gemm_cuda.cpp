#include "dtopp/ops/moe_ffn/cuda/tune/check_expert_gemm_cuda.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "dtopp/base/median.h"
#include "dtopp/ops/core/poisoned_memory.h"
#include "dtopp/ops/moe_ffn/moe_ffn_gemms_cuda.h"

namespace dtopp::ops::cuda {
namespace {

constexpr int64_t kSpareRows = 37;
constexpr double kWrong = std::numeric_limits<float>::max();

double error_of(const at::Tensor& result, const at::Tensor& exact) {
  const at::Tensor out = result.to(at::kFloat);
  if (!at::isfinite(out).all().item<bool>()) return kWrong;
  const at::Tensor size = exact.square().mean().sqrt().clamp_min(1e-12);
  return ((out - exact).abs() / (exact.abs() + size)).max().item<double>();
}

// True for results [A, …]. Sums over pairs have one dimension more.
bool is_of_pairs(const at::Tensor& result) { return result.dim() == 2; }

double error_of(const GemmResults& results, const GemmResults& exact, int64_t pairs) {
  double error = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto there = [&](const at::Tensor& all) { return is_of_pairs(all) ? all.slice(0, 0, pairs) : all; };
    error = std::max(error, error_of(there(results[i]), there(exact[i])));
  }
  return error;
}

bool leaves_spare_rows(const GemmResults& results, int64_t pairs) {
  return std::ranges::all_of(results, [&](const at::Tensor& result) {
    return !is_of_pairs(result) || result.slice(0, pairs).isnan().all().item<bool>();
  });
}

// Times a few calls together, because waiting for the device takes about 1e-5 s.
double milliseconds_of(ExpertGemm gemm, const Pairs& pairs, const GemmInputs& inputs) {
  constexpr int kCalls = 5;
  const auto begin = std::chrono::steady_clock::now();
  at::Tensor out;
  for (int call = 0; call < kCalls; ++call) out = run_gemm(gemm, pairs, inputs).back();
  while (out.dim() > 0) out = out.select(0, 0);
  out.item();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / kCalls;
}

// form(place) computes the gradient of a weight.
template <typename Form>
GemmResults gradient_and_sum(const GemmInputs& inputs, const Form& form) {
  if (inputs.target.sum.defined()) {
    form(inputs.target);
    return {inputs.target.sum};
  }
  const at::Tensor gradient = form(AccumulationTarget{});
  const at::Tensor sum = at::empty(gradient.sizes(), inputs.gates_TE.options());
  form(AccumulationTarget{sum, false});
  form(AccumulationTarget{sum, true});
  return {gradient, sum};
}

}  // namespace

const std::vector<GemmCase>& gemm_cases() {
  static const std::vector<GemmCase> cases = {{{1}, 8, 8},
                                              {{128, 0, 129, 3}, 64, 128},
                                              {{0, 200, 0, 0, 70, 0}, 72, 136},
                                              {{40, 300}, 328, 264},
                                              {{4096, 0, 1}, 520, 392}};
  return cases;
}

const GemmCase& large_gemm_case() {
  static const GemmCase large{std::vector<int64_t>(8, 4096), 2048, 1024};
  return large;
}

GemmInputs::GemmInputs(const GemmCase& sizes, const at::Device& device) {
  at::manual_seed(17);
  const auto experts = static_cast<int64_t>(sizes.rows_E.size());
  const auto options = at::device(device).dtype(at::kFloat);
  const auto random = [&](at::IntArrayRef shape, int64_t depth) {
    return at::randn(shape, options).div(std::sqrt(static_cast<double>(depth))).to(at::kBFloat16);
  };
  const int64_t tokens = std::ranges::max(sizes.rows_E) + 5;
  gates_TE = at::zeros({tokens, experts}, options);
  pairs = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = sizes.rows_E[static_cast<size_t>(e)];
    const at::Tensor chosen = at::randperm(tokens, options.dtype(at::kLong)).slice(0, 0, rows);
    gates_TE.select(1, e).index_copy_(0, chosen, at::rand({rows}, options).add(0.1));
    pairs += rows;
  }
  const auto rows = [&](int64_t width) {
    at::Tensor all = random({pairs + kSpareRows, width}, 1);
    all.slice(0, pairs).fill_(std::numeric_limits<float>::quiet_NaN());
    return all;
  };
  x_TD = random({tokens, sizes.hidden}, 1);
  dy_TD = random({tokens, sizes.hidden}, 1);
  gate_up_EGD = random({experts, 2 * sizes.ffn, sizes.hidden}, sizes.hidden);
  down_EDF = random({experts, sizes.hidden, sizes.ffn}, sizes.ffn);
  rows_AG = rows(2 * sizes.ffn);
  rows_AF = rows(sizes.ffn);
}

GemmInputs GemmInputs::in_fp32() const {
  GemmInputs out = *this;
  for (at::Tensor* tensor :
       {&out.x_TD, &out.dy_TD, &out.gate_up_EGD, &out.down_EDF, &out.rows_AG, &out.rows_AF})
    *tensor = tensor->to(at::kFloat);
  return out;
}

GemmChoice choice_of(ExpertGemm gemm, FusedKernelSet others, bool fused) {
  return {others.set(static_cast<size_t>(gemm), fused), true};
}

Pairs pairs_of(const GemmInputs& inputs, const GemmChoice& choice) {
  return make_pairs(inputs.gates_TE, inputs.pairs + kSpareRows, choice);
}

GemmResults run_gemm(ExpertGemm gemm, const Pairs& pairs, const GemmInputs& in) {
  switch (gemm) {
    case ExpertGemm::kActivation: {
      const ActivatedPairs out = activate_pairs(pairs, in.x_TD, in.gate_up_EGD);
      return {out.pre_AG, out.act_AF};
    }
    case ExpertGemm::kProjection:
      return {project_pairs(pairs, in.rows_AF, in.down_EDF)};
    case ExpertGemm::kActivationGradient: {
      const ActivationGradient out = activation_gradient(pairs, in.dy_TD, in.rows_AG, in.down_EDF);
      return {out.d_pre_AG, out.scaled_AF, out.grad_gate_AP.sum(1, /*keepdim=*/true)};
    }
    case ExpertGemm::kInputGradient:
      return {input_gradient(pairs, in.rows_AG, in.gate_up_EGD)};
    case ExpertGemm::kDownGradient: {
      ActivationGradient gradient;
      gradient.scaled_AF = in.rows_AF;
      gradient.dy_AD = in.dy_AD;
      return gradient_and_sum(in, [&](const AccumulationTarget& target) {
        return down_gradient(pairs, in.dy_TD, gradient, target);
      });
    }
    case ExpertGemm::kGateUpGradient:
      return gradient_and_sum(in, [&](const AccumulationTarget& target) {
        return gate_up_gradient(pairs, in.rows_AG, in.x_TD, target);
      });
  }
  return {};
}

ComparedResults run_compared(ExpertGemm gemm, const FusedKernelSet& others, const GemmInputs& inputs) {
  const PoisonedMemory poisoned;
  const GemmInputs fp32 = inputs.in_fp32();
  const auto run = [&](bool fused) {
    return run_gemm(gemm, pairs_of(inputs, choice_of(gemm, others, fused)), inputs);
  };
  return {run_gemm(gemm, pairs_of(fp32, {}), fp32), run(true), run(false)};
}

GemmErrors errors_of(const ComparedResults& results, int64_t pairs) {
  const bool in_bounds = leaves_spare_rows(results.fused, pairs);
  return {in_bounds ? error_of(results.fused, results.exact, pairs) : kWrong,
          error_of(results.grouped, results.exact, pairs)};
}

GemmTimes time_gemm(ExpertGemm gemm, const FusedKernelSet& others, const GemmInputs& inputs) {
  constexpr int kWarmUps = 2, kRounds = 9;
  const Pairs fused = pairs_of(inputs, choice_of(gemm, others, true)),
              grouped = pairs_of(inputs, choice_of(gemm, others, false));
  GemmInputs given = inputs;
  if (!grouped.gemms.is_fused(ExpertGemm::kActivationGradient))
    given.dy_AD = gather_pairs(grouped, inputs.dy_TD);
  const auto sum_like = [&](const at::Tensor& weight) {
    return AccumulationTarget{at::zeros(weight.sizes(), inputs.gates_TE.options()), true};
  };
  if (gemm == ExpertGemm::kDownGradient) given.target = sum_like(inputs.down_EDF);
  if (gemm == ExpertGemm::kGateUpGradient) given.target = sum_like(inputs.gate_up_EGD);
  std::vector<double> fused_times, grouped_times;
  for (int round = 0; round < kWarmUps + kRounds; ++round) {
    const double by_fused = milliseconds_of(gemm, fused, given),
                 by_grouped = milliseconds_of(gemm, grouped, given);
    if (round < kWarmUps) continue;
    fused_times.push_back(by_fused);
    grouped_times.push_back(by_grouped);
  }
  return {median(fused_times), median(grouped_times)};
}

}  // namespace dtopp::ops::cuda

namespace dtopp::ops {
namespace {

// Returns (fused error, grouped error, fused milliseconds, grouped milliseconds). name: one of
// kExpertGemmNames. fused: a text for parse_fused_kernels, the other GEMMs that use fused kernels.
std::tuple<double, double, double, double> check_expert_gemm(const std::string& name,
                                                             const std::string& fused, int64_t index) {
  const auto gemm = expert_gemm_named(name);
  const auto others = parse_fused_kernels(fused);
  TORCH_CHECK(gemm && others, "check_expert_gemm: expected one of ", fused_kernels_text(~FusedKernelSet()),
              " and a list of them, got '", name, "' and '", fused, "'");
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  const c10::DeviceGuard guard(device);
  cuda::GemmErrors errors;
  const auto compare = [&](const cuda::GemmInputs& inputs) {
    const cuda::GemmErrors here = cuda::errors_of(cuda::run_compared(*gemm, *others, inputs), inputs.pairs);
    errors = {std::max(errors.fused, here.fused), std::max(errors.grouped, here.grouped)};
  };
  for (const cuda::GemmCase& sizes : cuda::gemm_cases()) compare({sizes, device});
  const cuda::GemmInputs large(cuda::large_gemm_case(), device);
  compare(large);
  const cuda::GemmTimes times = cuda::time_gemm(*gemm, *others, large);
  return {errors.fused, errors.grouped, times.fused, times.grouped};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def("check_expert_gemm(str gemm, str fused, int index) -> (float, float, float, float)",
        check_expert_gemm);
}

}  // namespace dtopp::ops
