// Tests the GEMMs of fused_gemm.h, run on a CPU, against double precision.
#include "dtopp/ops/moe_ffn/cuda/fused/fused_gemm.h"

#include <gtest/gtest.h>

#include "dtopp/ops/cuda/cuda_tensor.h"
#include "tests/ops/cuda/on_host.h"
#include "tests/ops/reference.h"

namespace dtopp::ops {
namespace {

using cuda::Bfloat16;
using cuda::read;
using cuda::write;

constexpr double kRounded = 1.0 / 256;  // one rounding to bf16
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

struct Sizes {
  std::vector<int> rows;  // rows per expert
  int64_t hidden, ffn, tokens;
};

// The inputs of the GEMMs, and their outputs filled with poison.
struct Layer {
  explicit Layer(const Sizes& sizes) {
    at::manual_seed(3);
    const int64_t experts = static_cast<int64_t>(sizes.rows.size());
    std::vector<int> ends = {0};
    for (const int n : sizes.rows) ends.push_back(ends.back() + n);
    pairs = ends.back();
    offsets_E1 = at::tensor(ends, at::kInt);
    token_A = at::randint(sizes.tokens, {pairs}, at::kInt);
    gate_A = at::rand({pairs});
    x_TD = random({sizes.tokens, sizes.hidden});
    dy_TD = random({sizes.tokens, sizes.hidden});
    gate_up_EGD = random({experts, 2 * sizes.ffn, sizes.hidden}) / 4;
    down_EDF = random({experts, sizes.hidden, sizes.ffn}) / 4;
    arguments = {
        read<int32_t>(offsets_E1), read<int32_t>(token_A), experts, sizes.hidden, sizes.ffn, nullptr};
  }

  static at::Tensor random(at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); }
  // Rows beyond the pairs; no GEMM may write them.
  static constexpr int64_t kSpare = 3;
  at::Tensor rows(int64_t width, at::ScalarType type = at::kBFloat16) const {
    return at::full({pairs + kSpare, width}, kNotANumber, type);
  }

  // Applies body(rows, expert) to each expert's rows of rows_AM and concatenates the results.
  template <typename Body>
  at::Tensor for_experts(const at::Tensor& rows_AM, const Body& body) const {
    std::vector<at::Tensor> parts;
    for (int64_t e = 0; e < arguments.experts; ++e)
      parts.push_back(body(rows_AM.slice(0, begin(e), begin(e + 1)), e));
    return at::cat(parts);
  }
  int64_t begin(int64_t e) const { return offsets_E1[e].item<int>(); }
  at::Tensor gathered(const at::Tensor& rows_TD) const {
    return rows_TD.to(at::kDouble).index_select(0, token_A);
  }

  at::Tensor offsets_E1, token_A, gate_A, x_TD, dy_TD, gate_up_EGD, down_EDF;
  int64_t pairs;
  cuda::FusedGemm arguments;
};

void expect_near(const at::Tensor& rows, const Layer& layer, const at::Tensor& expected,
                 double bound = kRounded) {
  EXPECT_LT(reference::error(rows.slice(0, 0, layer.pairs), expected), bound);
  EXPECT_TRUE(rows.slice(0, layer.pairs).isnan().all().item<bool>());
}

const std::vector<Sizes>& all_sizes() {
  static const std::vector<Sizes> sizes = {
      {{1}, 8, 8, 1},
      {{128, 0, 129, 3}, 64, 128, 50},       // whole tiles, and one extra row
      {{0, 200, 0, 0, 70, 0}, 72, 136, 30},  // one 16-byte chunk beyond whole steps and tiles
      {{40, 300}, 328, 264, 500},            // more steps than stages, more columns than a tile
      {{0, 0}, 16, 16, 4},
  };
  return sizes;
}

// Tests wgmma, and mma with the number of stages that fits an A100 and a GeForce.
template <typename Body>
void for_all_sizes(const Body& body) {
  for (const cuda_on_host::Device& device : {cuda_on_host::Device{}, cuda_on_host::Device{2, 80, 163 << 10},
                                             cuda_on_host::Device{3, 89, 99 << 10}}) {
    cuda_on_host::set_device(device);
    for (const Sizes& sizes : all_sizes()) {
      SCOPED_TRACE(testing::Message() << device.capability << " " << testing::PrintToString(sizes.rows) << " "
                                      << sizes.hidden << " " << sizes.ffn);
      body(Layer(sizes), sizes);
    }
  }
  cuda_on_host::set_device({});
}

TEST(FusedGemmOnHost, support_widths_of_whole_chunks_from_capability_8_on) {
  EXPECT_TRUE(cuda::supports_fused_gemm(64, 8));
  EXPECT_FALSE(cuda::supports_fused_gemm(64, 12));
  EXPECT_FALSE(cuda::supports_fused_gemm(4, 8));
  cuda_on_host::set_device({2, 75, 64 << 10});
  EXPECT_FALSE(cuda::supports_fused_gemm(64, 8));
  cuda_on_host::set_device({});
}

TEST(FusedGemmOnHost, activates_the_gathered_rows) {
  for_all_sizes([](const Layer& layer, const Sizes& sizes) {
    const at::Tensor pre_AG = layer.rows(2 * sizes.ffn), act_AF = layer.rows(sizes.ffn);
    cuda::fused_activation(layer.arguments, {read<Bfloat16>(layer.x_TD), read<Bfloat16>(layer.gate_up_EGD),
                                             write<Bfloat16>(pre_AG), write<Bfloat16>(act_AF)});
    const at::Tensor expected = layer.for_experts(
        layer.gathered(layer.x_TD),
        [&](const at::Tensor& rows, int64_t e) { return rows.mm(layer.gate_up_EGD[e].to(at::kDouble).t()); });
    expect_near(pre_AG, layer, expected);
    const auto halves = pre_AG.slice(0, 0, layer.pairs).to(at::kDouble).chunk(2, 1);
    expect_near(act_AF, layer, at::silu(halves[0]) * halves[1]);
  });
}

TEST(FusedGemmOnHost, projects_rows) {
  for_all_sizes([](const Layer& layer, const Sizes& sizes) {
    const at::Tensor act_AF = Layer::random({layer.pairs, sizes.ffn}), out_AD = layer.rows(sizes.hidden);
    cuda::fused_projection(layer.arguments, read<Bfloat16>(act_AF), read<Bfloat16>(layer.down_EDF),
                           write<Bfloat16>(out_AD));
    expect_near(out_AD, layer,
                layer.for_experts(act_AF.to(at::kDouble), [&](const at::Tensor& rows, int64_t e) {
                  return rows.mm(layer.down_EDF[e].to(at::kDouble).t());
                }));
  });
}

TEST(FusedGemmOnHost, forms_the_gradients_of_activations_and_gates) {
  for_all_sizes([](const Layer& layer, const Sizes& sizes) {
    const at::Tensor pre_AG = Layer::random({layer.pairs, 2 * sizes.ffn}),
                     d_pre_AG = layer.rows(2 * sizes.ffn), scaled_AF = layer.rows(sizes.ffn),
                     grad_gate_AP = layer.rows(cuda::gate_parts(sizes.ffn), at::kFloat);
    cuda::fused_activation_gradient(
        layer.arguments, {read<Bfloat16>(layer.dy_TD), read<Bfloat16>(layer.down_EDF), read<Bfloat16>(pre_AG),
                          read<float>(layer.gate_A), write<Bfloat16>(d_pre_AG), write<Bfloat16>(scaled_AF),
                          write<float>(grad_gate_AP)});
    const at::Tensor da_AF = layer.for_experts(
        layer.gathered(layer.dy_TD),
        [&](const at::Tensor& rows, int64_t e) { return rows.mm(layer.down_EDF[e].to(at::kDouble)); });
    const at::Tensor pre = pre_AG.to(at::kDouble).requires_grad_(),
                     r = layer.gate_A.to(at::kDouble).requires_grad_();
    const auto halves = pre.chunk(2, 1);
    const at::Tensor act = at::silu(halves[0]) * halves[1], scaled = r.unsqueeze(1) * act;
    scaled.backward(da_AF);
    expect_near(d_pre_AG, layer, pre.grad());
    expect_near(scaled_AF, layer, scaled.detach());
    expect_near(grad_gate_AP.sum(1, true), layer, r.grad().unsqueeze(1), 1e-5);
  });
}

TEST(FusedGemmOnHost, forms_the_gradients_of_inputs) {
  for_all_sizes([](const Layer& layer, const Sizes& sizes) {
    const at::Tensor d_pre_AG = Layer::random({layer.pairs, 2 * sizes.ffn}), dx_AD = layer.rows(sizes.hidden);
    cuda::fused_input_gradient(layer.arguments, read<Bfloat16>(d_pre_AG), read<Bfloat16>(layer.gate_up_EGD),
                               write<Bfloat16>(dx_AD));
    expect_near(dx_AD, layer,
                layer.for_experts(d_pre_AG.to(at::kDouble), [&](const at::Tensor& rows, int64_t e) {
                  return rows.mm(layer.gate_up_EGD[e].to(at::kDouble));
                }));
  });
}

// Expects the sums over pairs, [E, M, N], with every element written, rounded or not.
void expect_sums_near(const at::Tensor& out_EMN, const Layer& layer, const at::Tensor& left_AM,
                      const at::Tensor& right_AN) {
  for (int64_t e = 0; e < layer.arguments.experts; ++e) {
    const auto of_expert = [&](const at::Tensor& rows) {
      return rows.to(at::kDouble).slice(0, layer.begin(e), layer.begin(e + 1));
    };
    const at::Tensor expected = of_expert(left_AM).t().mm(of_expert(right_AN));
    if (layer.begin(e) == layer.begin(e + 1)) {
      EXPECT_TRUE(at::equal(out_EMN[e], at::zeros_like(out_EMN[e])));
    } else {
      EXPECT_LT(reference::error(out_EMN[e], expected),
                out_EMN.scalar_type() == at::kFloat ? 1e-5 : kRounded);
    }
  }
}

// Calls form(out) for a rounded output, for one in fp32, and for one that is added to.
template <typename Form>
void expect_gradients_near(const at::Tensor& weight_EMN, const Layer& layer, const at::Tensor& left_AM,
                           const at::Tensor& right_AN, const Form& form) {
  const at::Tensor rounded = at::full_like(weight_EMN, kNotANumber),
                   sum = at::full(weight_EMN.sizes(), kNotANumber, at::kFloat);
  form(cuda::WeightGradient{write<Bfloat16>(rounded)});
  expect_sums_near(rounded, layer, left_AM, right_AN);
  form(cuda::WeightGradient{nullptr, write<float>(sum)});
  expect_sums_near(sum, layer, left_AM, right_AN);
  EXPECT_TRUE(sum.to(at::kBFloat16).equal(rounded));
  const at::Tensor before = at::randn(sum.sizes()), after = before.clone();
  form(cuda::WeightGradient{nullptr, write<float>(after), true});
  EXPECT_TRUE(after.equal(before + sum));
}

TEST(FusedGemmOnHost, forms_the_gradient_of_gate_up) {
  for_all_sizes([](const Layer& layer, const Sizes& sizes) {
    // Rows beyond the pairs must not be read: multiplying them by 0 does not remove NaN.
    const at::Tensor d_pre_AG = layer.rows(2 * sizes.ffn);
    d_pre_AG.slice(0, 0, layer.pairs).copy_(at::randn({layer.pairs, 2 * sizes.ffn}));
    expect_gradients_near(layer.gate_up_EGD, layer, d_pre_AG, layer.gathered(layer.x_TD),
                          [&](const cuda::WeightGradient& out) {
                            cuda::fused_gate_up_gradient(layer.arguments, read<Bfloat16>(d_pre_AG),
                                                         read<Bfloat16>(layer.x_TD), out);
                          });
  });
}

TEST(FusedGemmOnHost, forms_the_gradient_of_down) {
  for_all_sizes([](const Layer& layer, const Sizes& sizes) {
    const at::Tensor scaled_AF = layer.rows(sizes.ffn);
    scaled_AF.slice(0, 0, layer.pairs).copy_(at::randn({layer.pairs, sizes.ffn}));
    expect_gradients_near(layer.down_EDF, layer, layer.gathered(layer.dy_TD), scaled_AF,
                          [&](const cuda::WeightGradient& out) {
                            cuda::fused_down_gradient(layer.arguments, read<Bfloat16>(layer.dy_TD),
                                                      read<Bfloat16>(scaled_AF), out);
                          });
  });
}

}  // namespace
}  // namespace dtopp::ops
