// Tests route's CUDA kernels, run on a CPU, against the CPU kernels.
#include "dtopp/ops/route/route.h"

#include <gtest/gtest.h>

#include "tests/ops/cuda/on_host.h"
#include "tests/ops/reference.h"

namespace dtopp::ops::route_test {
namespace {

using Gradients = std::tuple<at::Tensor, at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

struct Options {
  std::string normalization = "dynamic";
  double threshold = 0.6;
  int64_t top_k = 0, max_experts = 0;
  bool renormalize = true;
  double scale = 1.3;
  const char* bias_on = nullptr;  // null: no bias
  const char* gate = "probability";
  bool has_cuts = true;  // with gate sigmoid: whether the cuts are numbers
};

const Options kOptions[] = {
    {},
    {.normalization = "fixed", .threshold = 0.95},
    {.normalization = "none"},
    {.threshold = 0.9, .renormalize = false},
    {.threshold = 0.9, .max_experts = 2},
    {.normalization = "fixed", .top_k = 1},
    {.normalization = "none", .top_k = 3, .max_experts = 2, .renormalize = false},
    {.threshold = 1.5},
    {.bias_on = "logit"},
    {.normalization = "none", .max_experts = 3, .bias_on = "logit"},
    {.normalization = "none", .top_k = 3, .bias_on = "score"},
    {.top_k = 3, .bias_on = "probability"},
    {.normalization = "none", .renormalize = false, .gate = "relu"},
    {.renormalize = false, .gate = "relu"},
    {.normalization = "none", .top_k = 3, .renormalize = false, .gate = "sigmoid"},
    {.normalization = "none", .top_k = 3, .renormalize = false, .gate = "sigmoid", .has_cuts = false}};

struct Inputs {
  at::Tensor logits_TE, scale, threshold;
  OptionalTensor bias_E{}, cut_E{};
};

Inputs inputs_of(const at::Tensor& logits_TE, const Options& options) {
  const auto real = logits_TE.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Inputs in{logits_TE, at::scalar_tensor(options.scale, at::TensorOptions(real)),
            at::scalar_tensor(options.threshold, at::kDouble)};
  const at::Tensor wave_E = at::arange(logits_TE.size(1), at::TensorOptions(real)).mul(0.7).sin();
  if (options.bias_on != nullptr) in.bias_E = wave_E;
  if (options.gate == std::string("sigmoid"))
    in.cut_E = options.has_cuts ? wave_E : at::full_like(wave_E, std::numeric_limits<double>::quiet_NaN());
  return in;
}

RouteTuple run_cuda(const Inputs& in, const Options& options) {
  return call_cuda<RouteTuple(const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::string_view,
                              int64_t, int64_t, bool, const OptionalTensor&, c10::string_view,
                              c10::string_view, const OptionalTensor&)>(
      "dtopp::route", in.logits_TE, in.scale, in.threshold, c10::string_view(options.normalization),
      std::min(options.top_k, in.logits_TE.size(1)), options.max_experts, options.renormalize, in.bias_E,
      c10::string_view(options.bias_on == nullptr ? "logit" : options.bias_on),
      c10::string_view(options.gate), in.cut_E);
}

RouteTuple run_cpu(const Inputs& in, const Options& options) {
  const RouteOutput out =
      route(in.logits_TE, in.scale, in.threshold, options.normalization,
            std::min(options.top_k, in.logits_TE.size(1)), options.max_experts, options.renormalize,
            in.bias_E, options.bias_on == nullptr ? "logit" : options.bias_on, options.gate, in.cut_E);
  return {
      out.gates_TE, out.tokens_per_expert_E, out.active_histogram, out.mean_prob_E, out.entropy, out.router_z,
      out.mass};
}

struct MeanGradients {
  OptionalTensor gates_TE, prob_E, entropy, router_z;
};

using BackwardSignature = Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                    const OptionalTensor&, c10::string_view, bool, c10::string_view);

Gradients run_cuda_backward(const Inputs& in, const at::Tensor& gates_TE, const MeanGradients& grad,
                            const Options& options) {
  return call_cuda<BackwardSignature>("dtopp::route_backward", in.logits_TE, in.scale, gates_TE,
                                      grad.gates_TE, grad.prob_E, grad.entropy, grad.router_z,
                                      c10::string_view(options.normalization), options.renormalize,
                                      c10::string_view(options.gate));
}

Gradients run_cpu_backward(const Inputs& in, const at::Tensor& gates_TE, const MeanGradients& grad,
                           const Options& options) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("dtopp::route_backward", "")
      .typed<BackwardSignature>()
      .call(in.logits_TE, in.scale, gates_TE, grad.gates_TE, grad.prob_E, grad.entropy, grad.router_z,
            options.normalization, options.renormalize, options.gate);
}

// Both kernels round alike except for the last bits.
double bound(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-12 : 1e-5; }

void expect_equal_routes(const at::Tensor& logits_TE, const Options& options) {
  SCOPED_TRACE(testing::Message() << logits_TE.sizes() << " " << logits_TE.scalar_type() << " "
                                  << options.normalization << " " << options.threshold << " "
                                  << options.top_k);
  const Inputs in = inputs_of(logits_TE, options);
  const auto [gates, counts, histogram, prob, entropy, z, mass] = [&] {
    const PoisonedMemory poisoned;
    return run_cuda(in, options);
  }();
  const auto [gates_cpu, counts_cpu, histogram_cpu, prob_cpu, entropy_cpu, z_cpu, mass_cpu] =
      run_cpu(in, options);
  EXPECT_TRUE(at::equal(gates != 0, gates_cpu != 0));
  EXPECT_TRUE(at::equal(counts, counts_cpu));
  EXPECT_TRUE(at::equal(histogram, histogram_cpu));
  const double near = bound(logits_TE.scalar_type());
  EXPECT_LT(reference::error(gates, gates_cpu), near);
  EXPECT_LT(reference::error(prob, prob_cpu), near);
  EXPECT_LT(reference::error(entropy, entropy_cpu), near);
  EXPECT_LT(reference::error(z, z_cpu), near);
  EXPECT_LT(reference::error(mass.to(at::kDouble), mass_cpu.to(at::kDouble)), 1e-5);
  EXPECT_EQ(gates.scalar_type(), gates_cpu.scalar_type());
}

void expect_equal_gradients(const at::Tensor& logits_TE, const Options& options, bool all) {
  SCOPED_TRACE(testing::Message() << logits_TE.sizes() << " " << logits_TE.scalar_type() << " "
                                  << options.normalization << " " << all);
  const Inputs in = inputs_of(logits_TE, options);
  const at::Tensor gates_TE = std::get<0>(run_cpu(in, options));
  MeanGradients grad{at::randn_like(gates_TE), {}, {}, {}};
  if (all) {
    grad.prob_E = at::randn({gates_TE.size(1)}, gates_TE.options());
    grad.entropy = at::scalar_tensor(0.7, gates_TE.options());
    grad.router_z = at::scalar_tensor(-0.3, gates_TE.options());
  }
  const auto [grad_logits, grad_scale] = [&] {
    const PoisonedMemory poisoned;
    return run_cuda_backward(in, gates_TE, grad, options);
  }();
  const auto [expected_logits, expected_scale] = run_cpu_backward(in, gates_TE, grad, options);
  EXPECT_EQ(grad_logits.scalar_type(), logits_TE.scalar_type());
  const double near = logits_TE.scalar_type() == at::kBFloat16 ? 1.0 / 128 : bound(logits_TE.scalar_type());
  EXPECT_LT(reference::error(grad_logits, expected_logits), near);
  const double terms = std::max(expected_logits.abs().sum().item<double>(), 1e-3);
  EXPECT_LE((grad_scale - expected_scale).abs().item<double>(), near * terms);
}

TEST(RouteOnHost, agrees_with_the_cpu_for_any_shape) {
  at::manual_seed(1);
  for (const auto& [tokens, experts] : std::vector<std::pair<int64_t, int64_t>>{{0, 4},
                                                                                {1, 1},
                                                                                {9, 1},
                                                                                {33, 5},
                                                                                {11, 33},
                                                                                {40, 60},
                                                                                {35, 64},
                                                                                {9, 128},
                                                                                {5, 256},
                                                                                {2, 300},
                                                                                {2, 600},
                                                                                {2, 1100}}) {
    for (const Options& options : kOptions) {
      const at::Tensor logits = at::randn({tokens, experts}) * 2;
      expect_equal_routes(logits, options);
      expect_equal_gradients(logits, options, true);
    }
  }
}

TEST(RouteOnHost, agrees_with_the_cpu_for_any_dtype) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor logits = (at::randn({50, 40}) * 2).to(dtype);
    expect_equal_routes(logits, {});
    expect_equal_gradients(logits, {}, true);
    expect_equal_gradients(logits, {}, false);
  }
}

TEST(RouteOnHost, takes_the_lowest_index_of_equal_logits) {
  for (const int64_t experts : {3, 7, 33, 65, 200}) {
    for (const Options& options : kOptions) {
      expect_equal_routes(at::full({2, experts}, 0.7), options);
      expect_equal_routes(at::arange(experts).remainder(3).to(at::kFloat).expand({2, experts}), options);
    }
  }
}

TEST(RouteOnHost, stops_exactly_where_the_threshold_is_reached) {
  for (const double threshold : {0.0, 0.25, 0.5, 0.5 + 1e-15, 1.0}) {
    expect_equal_routes(at::zeros({3, 4}), {.normalization = "none", .threshold = threshold});
  }
}

TEST(RouteOnHost, carries_logits_that_are_not_finite_on) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()}) {
    for (const Options& options : kOptions) {
      at::Tensor logits = at::randn({4, 40});
      logits[2] = bad;
      logits[3][7] = bad;
      const Inputs in = inputs_of(logits, options);
      const RouteTuple actual = run_cuda(in, options), expected = run_cpu(in, options);
      EXPECT_TRUE(at::allclose(std::get<0>(actual), std::get<0>(expected), 1e-5, 1e-7, /*equal_nan=*/true));
      EXPECT_TRUE(at::equal(std::get<1>(actual), std::get<1>(expected)));
      EXPECT_TRUE(at::equal(std::get<2>(actual), std::get<2>(expected)));
      const MeanGradients grad{at::ones({4, 40}), {}, {}, {}};
      const at::Tensor gates = std::get<0>(expected);
      const auto [dz, dscale] = run_cuda_backward(in, gates, grad, options);
      const auto [dz_cpu, dscale_cpu] = run_cpu_backward(in, gates, grad, options);
      EXPECT_TRUE(at::allclose(dz, dz_cpu, 1e-4, 1e-6, /*equal_nan=*/true)) << dz << dz_cpu;
    }
  }
}

TEST(RouteOnHost, gives_the_same_bits_in_any_order_of_threads_and_blocks) {
  // In double, so that no rounding of the sums hides their order.
  const Options options{.bias_on = "logit"};
  const Inputs in = inputs_of(at::randn({100, 60}, at::kDouble), options);
  const at::Tensor grad = at::randn({100, 60}, at::kDouble);
  std::vector<at::Tensor> first;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    cuda_on_host::set_seed(seed);
    const auto [gates, counts, histogram, prob, entropy, z, mass] = run_cuda(in, options);
    const auto [dz, dscale] = run_cuda_backward(in, gates, {grad, {}, {}, {}}, options);
    const std::vector<at::Tensor> all = {gates, counts, histogram, prob, entropy, z, mass, dz, dscale};
    if (seed == 0) first = all;
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(at::equal(all[i], first[i])) << i;
  }
}

TEST(RouteOnHost, refuses_more_experts_than_fit) {
  EXPECT_THROW(run_cuda(inputs_of(at::zeros({1, 2049}), {}), {}), c10::Error);
}

}  // namespace
}  // namespace dtopp::ops::route_test
