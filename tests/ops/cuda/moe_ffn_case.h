// A layer for moe_ffn's CUDA side, run on a CPU, and its expected outputs.
#pragma once

#include <gtest/gtest.h>

#include "tests/ops/cuda/on_host.h"
#include "tests/ops/reference.h"

namespace dtopp::ops::moe_ffn_test {

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

inline constexpr std::array<bool, 4> kAll = {true, true, true, true};

struct Case {
  at::Tensor x_TD, gates_TE, gate_up_proj, down_proj;
};

struct Shape {
  int64_t tokens, hidden, ffn, experts;
  double chance;  // probability that a token selects an expert
};

inline Case make_case(const Shape& shape, at::ScalarType dtype) {
  at::manual_seed(7);
  const auto gates_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor gates = at::rand({shape.tokens, shape.experts})
                               .lt(shape.chance)
                               .mul(at::rand({shape.tokens, shape.experts}).add(0.1));
  return {at::randn({shape.tokens, shape.hidden}).to(dtype), gates.to(gates_dtype),
          at::randn({shape.experts, 2 * shape.ffn, shape.hidden}).div(4).to(dtype),
          at::randn({shape.experts, shape.hidden, shape.ffn}).div(4).to(dtype)};
}

// oneDNN compiles a kernel per number of rows, in milliseconds, and the number of rows varies by expert.
struct WithoutOneDnn {
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(true); }
};

inline at::Tensor run_inference(const Case& c, int64_t capacity) {
  const WithoutOneDnn without_one_dnn;
  return call_cuda<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              int64_t, bool)>("dtopp::moe_ffn", c.x_TD, c.gates_TE, c.gate_up_proj,
                                              c.down_proj, capacity, /*recompute=*/false);
}

struct Outputs {
  at::Tensor y, pre_AG;
  Gradients grad;

  std::vector<at::Tensor> all() const {
    return {y, std::get<0>(grad), std::get<1>(grad), std::get<2>(grad), std::get<3>(grad)};
  }
};

inline Gradients run_backward(const Case& c, const at::Tensor& grad_y, const at::Tensor& pre_AG,
                              std::array<bool, 4> needed = kAll) {
  return call_cuda<Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, std::array<bool, 4>)>(
      "dtopp::moe_ffn_backward", grad_y, c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj, pre_AG, needed);
}

// `room` is the capacity in token-expert pairs.
inline Outputs run_cuda(const Case& c, const at::Tensor& grad_y, int64_t room,
                        std::array<bool, 4> needed = kAll) {
  const PoisonedMemory poisoned;
  const WithoutOneDnn without_one_dnn;
  const at::Tensor pairs_A2 = at::empty({1, 2}, at::kLong).expand({room, 2});
  auto [y, pre_AG] = call_cuda<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
      "dtopp::moe_ffn_forward", c.x_TD, c.gates_TE, pairs_A2, c.gate_up_proj, c.down_proj);
  const at::Tensor again_AG = call_cuda<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                   const at::Tensor&, const at::Tensor&)>(
      "dtopp::moe_ffn_pre_activations", c.x_TD, c.gates_TE, pairs_A2, c.gate_up_proj, c.down_proj);
  // Rows beyond the pairs are not written.
  const int64_t pairs = std::min(room, c.gates_TE.ne(0).sum().item<int64_t>());
  EXPECT_TRUE(again_AG.sizes() == pre_AG.sizes() &&
              again_AG.narrow(0, 0, pairs).equal(pre_AG.narrow(0, 0, pairs)));
  return {y, pre_AG, run_backward(c, grad_y, pre_AG, needed)};
}

inline int64_t count_pairs(const Case& c) { return c.gates_TE.ne(0).sum().item<int64_t>(); }

// In bf16, pre-activations, activations, each expert's rows and the results are rounded: 2^-9 each.
inline double bound(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 1.0 / 64;
}

// The exact values, in the order of Outputs::all.
inline std::vector<at::Tensor> exact_outputs(const Case& c, const at::Tensor& grad_y) {
  std::vector<at::Tensor> inputs = {c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj};
  for (at::Tensor& tensor : inputs) tensor = tensor.to(at::kDouble).clone().requires_grad_();
  const at::Tensor y = reference::moe_ffn(inputs[0], inputs[1], inputs[2], inputs[3]);
  y.backward(grad_y.to(at::kDouble));
  return {y.detach(), inputs[0].grad(), inputs[1].grad() * c.gates_TE.ne(0), inputs[2].grad(),
          inputs[3].grad()};
}

// Computes the same gradients with weight gradients going to accumulators: one is added to, one overwritten.
inline void expect_sums_hold(const Case& c, const at::Tensor& grad_y, const Outputs& expected) {
  const WithoutOneDnn without_one_dnn;
  const auto& [grad_x, grad_gates, grad_gate_up, grad_down] = expected.grad;
  const at::Tensor before = at::randn(c.gate_up_proj.sizes(), c.gates_TE.options()),
                   gate_up_sum = before.clone(), down_sum = at::empty(c.down_proj.sizes(), before.options());
  const auto [x, gates] = call_cuda<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
      const at::Tensor&, std::array<bool, 2>, const at::Tensor&, const at::Tensor&, std::array<bool, 2>)>(
      "dtopp::moe_ffn_backward_sums", grad_y, c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj,
      expected.pre_AG, std::array<bool, 2>{true, true}, gate_up_sum, down_sum,
      std::array<bool, 2>{true, false});
  EXPECT_TRUE(x.equal(grad_x) && gates.equal(grad_gates));
  const double bound = c.x_TD.scalar_type() == at::kBFloat16 ? 1.0 / 256 : 1e-5;
  EXPECT_LT(reference::error(gate_up_sum - before, grad_gate_up), bound);
  EXPECT_LT(reference::error(down_sum, grad_down), bound);
}

inline void expect_near_double_precision(const Case& c, int64_t spare_room) {
  const at::ScalarType dtype = c.x_TD.scalar_type();
  const at::Tensor grad_y = at::randn(c.x_TD.sizes()).to(dtype);
  const std::vector<at::Tensor> expected = exact_outputs(c, grad_y);
  const Outputs own = run_cuda(c, grad_y, count_pairs(c) + spare_room);
  expect_sums_hold(c, grad_y, own);
  const std::vector<at::Tensor> outputs = own.all();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(reference::error(outputs[i], expected[i]), bound(dtype)) << i;
    EXPECT_EQ(outputs[i].scalar_type(), i == 2 ? c.gates_TE.scalar_type() : dtype) << i;
  }
  EXPECT_LT(reference::error(run_inference(c, 0), expected[0]), bound(dtype));
}

}  // namespace dtopp::ops::moe_ffn_test
