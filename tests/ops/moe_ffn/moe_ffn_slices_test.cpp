// Tests experts in shards, as ranks hold them. The shards' outputs, summed along a tree, have the bits of the
// output of all experts together (expert parallelism, moe/experts.h).
#include <random>

#include <gtest/gtest.h>

#include "dtopp/ops/moe_ffn/moe_ffn.h"

namespace dtopp::ops {
namespace {

struct Layer {
  at::Tensor x_TD, gates_TE, gate_up_EGD, down_EDF;
};

struct Result {
  at::Tensor y_TD, grad_x_TD, grad_gates_TE, grad_gate_up, grad_down;
};

Layer random_layer(int64_t tokens, int64_t hidden, int64_t ffn, int64_t experts, double chance) {
  const at::Tensor gates = at::rand({tokens, experts}).lt(chance).mul(at::rand({tokens, experts}).add(0.1));
  return {at::randn({tokens, hidden}), gates, at::randn({experts, 2 * ffn, hidden}),
          at::randn({experts, hidden, ffn})};
}

Result run(const Layer& layer, const at::Tensor& grad_y_TD) {
  const auto leaf = [](const at::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); };
  const Layer l{leaf(layer.x_TD), leaf(layer.gates_TE), leaf(layer.gate_up_EGD), leaf(layer.down_EDF)};
  const at::Tensor y_TD = moe_ffn(l.x_TD, l.gates_TE, l.gate_up_EGD, l.down_EDF);
  y_TD.backward(grad_y_TD);
  return {y_TD.detach(), l.x_TD.grad(), l.gates_TE.grad(), l.gate_up_EGD.grad(), l.down_EDF.grad()};
}

// Rows of tokens without an expert in the shard add nothing, not even to the sign of a zero.
at::Tensor absent(const at::Tensor& rows_TD, const at::Tensor& gates_TE) {
  return at::where(gates_TE.ne(0).any(1, true), rows_TD, at::full({}, -0.0F));
}

Result run_in_slices(const Layer& layer, const at::Tensor& grad_y_TD, int64_t slices) {
  const int64_t each = layer.gates_TE.size(1) / slices;
  std::vector<at::Tensor> y, grad_x, grad_gates, grad_gate_up, grad_down;
  for (int64_t slice = 0; slice < slices; ++slice) {
    const auto experts = [&](const at::Tensor& weight) { return weight.narrow(0, slice * each, each); };
    const at::Tensor gates_TE = layer.gates_TE.narrow(1, slice * each, each).contiguous();
    // Only tokens with an expert in the shard, as the dispatch delivers them.
    const at::Tensor rows = gates_TE.ne(0).any(1).nonzero().view(-1);
    const Result one = run({layer.x_TD.index_select(0, rows), gates_TE.index_select(0, rows),
                            experts(layer.gate_up_EGD), experts(layer.down_EDF)},
                           grad_y_TD.index_select(0, rows));
    const auto placed = [&](const at::Tensor& from, const at::Tensor& like) {
      return at::zeros_like(like).index_copy(0, rows, from);
    };
    y.push_back(absent(placed(one.y_TD, layer.x_TD), gates_TE));
    grad_x.push_back(absent(placed(one.grad_x_TD, layer.x_TD), gates_TE));
    grad_gates.push_back(placed(one.grad_gates_TE, gates_TE));
    grad_gate_up.push_back(one.grad_gate_up);
    grad_down.push_back(one.grad_down);
  }
  const auto sum = [](std::vector<at::Tensor> leaves) {
    for (size_t stride = 1; stride < leaves.size(); stride *= 2)
      for (size_t i = 0; i + stride < leaves.size(); i += 2 * stride)
        leaves[i] = leaves[i] + leaves[i + stride];
    return leaves[0];
  };
  return {sum(y), sum(grad_x), at::cat(grad_gates, 1), at::cat(grad_gate_up), at::cat(grad_down)};
}

void expect_same_bits(const Layer& layer, int64_t slices) {
  const at::Tensor grad_y_TD = at::randn_like(layer.x_TD);
  const Result whole = run(layer, grad_y_TD), parts = run_in_slices(layer, grad_y_TD, slices);
  EXPECT_TRUE(whole.y_TD.equal(parts.y_TD)) << (whole.y_TD - parts.y_TD).abs().max();
  EXPECT_TRUE(whole.grad_x_TD.equal(parts.grad_x_TD));
  EXPECT_TRUE(whole.grad_gates_TE.equal(parts.grad_gates_TE));
  EXPECT_TRUE(whole.grad_gate_up.equal(parts.grad_gate_up));
  EXPECT_TRUE(whole.grad_down.equal(parts.grad_down));
}

TEST(MoeFfnSlices, have_the_bits_of_the_whole_for_random_shapes) {
  std::mt19937_64 random(5);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int number = 0; number < 40; ++number) {
    at::manual_seed(static_cast<uint64_t>(number));
    const int64_t slices = int64_t{1} << between(1, 3);
    const int64_t experts = slices * between(1, 3) * between(1, 2);
    const Layer layer = random_layer(between(1, 300), between(1, 70), between(1, 300), experts,
                                     0.05 * static_cast<double>(between(1, 20)));
    SCOPED_TRACE(testing::Message() << number << ": " << layer.x_TD.sizes() << " x " << layer.down_EDF.sizes()
                                    << " in " << slices);
    expect_same_bits(layer, slices);
  }
}

// Threads share tokens if experts have many rows on average, and columns otherwise. A shard's mean may fall
// on the other side of the limit.
TEST(MoeFfnSlices, have_them_where_a_slice_is_computed_in_another_way) {
  at::manual_seed(1);
  Layer layer = random_layer(1200, 48, 300, 8, 0.1);
  layer.gates_TE.narrow(1, 0, 4).fill_(0.5);
  expect_same_bits(layer, 2);
}

TEST(MoeFfnSlices, differ_from_sums_in_another_order) {
  at::manual_seed(2);
  const Layer layer = random_layer(64, 16, 8, 8, 0.9);
  const at::Tensor grad_y_TD = at::randn_like(layer.x_TD);
  Layer reversed = layer;
  for (at::Tensor* weight : {&reversed.gate_up_EGD, &reversed.down_EDF}) *weight = weight->roll(1, 0);
  reversed.gates_TE = reversed.gates_TE.roll(1, 1);
  EXPECT_FALSE(run(layer, grad_y_TD).y_TD.equal(run(reversed, grad_y_TD).y_TD));
}

}  // namespace
}  // namespace dtopp::ops
