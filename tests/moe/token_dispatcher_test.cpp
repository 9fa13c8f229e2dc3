#include <atomic>
#include <random>

#include <gtest/gtest.h>

#include <ATen/record_function.h>

#include "dtopp/distributed/tree_sum.h"
#include "dtopp/moe/experts.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"
#include "tests/distributed/rank_threads.h"

namespace dtopp::moe {
namespace {

// A layer whose experts `ranks` ranks share, each rank's tokens (some ranks have none), and the gradient of
// y.
struct Case {
  int64_t ranks;
  at::Tensor gate_up_EGD, down_EDF;
  std::vector<at::Tensor> x_TD, gates_TE, grad_y_TD;
};

struct Result {
  at::Tensor y_TD, grad_x_TD, grad_gates_TE, grad_gate_up, grad_down;
};

at::Tensor leaf(const at::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); }

Case random_case(uint64_t seed) {
  at::manual_seed(seed);
  std::mt19937_64 random(seed);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const int64_t ranks = int64_t{1} << between(1, 2), experts = ranks * between(1, 4);
  const int64_t hidden = between(1, 24), ffn = between(1, 20);
  Case c{ranks, at::randn({experts, 2 * ffn, hidden}), at::randn({experts, hidden, ffn}), {}, {}, {}};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t tokens = between(0, 3) == 0 ? 0 : between(1, 60);
    const double chance = 0.25 * static_cast<double>(between(0, 4));  // 0: no token has an expert
    at::Tensor gates = at::rand({tokens, experts}).lt(chance).mul(at::rand({tokens, experts}).add(0.1));
    if (between(0, 2) == 0)
      gates.narrow(1, 0, experts / ranks).zero_();  // no token selects this rank's experts
    c.x_TD.push_back(at::randn({tokens, hidden}));
    c.gates_TE.push_back(gates);
    c.grad_y_TD.push_back(at::randn({tokens, hidden}));
  }
  return c;
}

Result run(AllToAllTokenDispatcher experts, const Case& c, int64_t rank, bool recompute = false) {
  const auto index = static_cast<size_t>(rank);
  const auto own = [&](const at::Tensor& weight) {
    const int64_t each = weight.size(0) / c.ranks;
    return leaf(weight.narrow(0, rank * each, each));
  };
  const at::Tensor x_TD = leaf(c.x_TD[index]), gates_TE = leaf(c.gates_TE[index]);
  const at::Tensor gate_up = own(c.gate_up_EGD), down = own(c.down_EDF);
  const at::Tensor y_TD = experts.forward(/*layer=*/0, x_TD, gates_TE, gate_up, down, recompute);
  y_TD.backward(c.grad_y_TD[index]);
  return {y_TD.detach(), x_TD.grad(), gates_TE.grad(), gate_up.grad(), down.grad()};
}

// The reference: one rank with all experts runs the micro-batches of all ranks one after another.
std::vector<Result> run_alone(const Case& c) {
  std::vector<Result> results;
  std::vector<at::Tensor> grad_gate_up, grad_down;
  for (size_t rank = 0; rank < c.x_TD.size(); ++rank) {
    const at::Tensor x_TD = leaf(c.x_TD[rank]), gates_TE = leaf(c.gates_TE[rank]);
    const at::Tensor gate_up = leaf(c.gate_up_EGD), down = leaf(c.down_EDF);
    const at::Tensor y_TD = ops::moe_ffn(x_TD, gates_TE, gate_up, down);
    y_TD.backward(c.grad_y_TD[rank]);
    results.push_back({y_TD.detach(), x_TD.grad(), gates_TE.grad(), {}, {}});
    grad_gate_up.push_back(gate_up.grad());
    grad_down.push_back(down.grad());
  }
  const std::vector<at::Tensor> gate_up = distributed::tree_sum(grad_gate_up).chunk(c.ranks);
  const std::vector<at::Tensor> down = distributed::tree_sum(grad_down).chunk(c.ranks);
  for (size_t rank = 0; rank < results.size(); ++rank) {
    results[rank].grad_gate_up = gate_up[rank];
    results[rank].grad_down = down[rank];
  }
  return results;
}

// An undefined gradient equals zeros.
bool same(const at::Tensor& one, const at::Tensor& other) {
  return one.defined() ? one.equal(other) : other.eq(0).all().item<bool>();
}

std::vector<Result> run_together(const Case& c, bool reproducible, bool recompute = false) {
  std::vector<Result> results(static_cast<size_t>(c.ranks));
  distributed::run_group(c.ranks, [&](distributed::Collectives& group) {
    at::set_num_threads(1);
    results[static_cast<size_t>(group.rank())] = run({group, reproducible}, c, group.rank(), recompute);
  });
  return results;
}

TEST(AllToAllTokenDispatcher, is_the_layer_of_one_rank_to_the_bit) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed);
    const std::vector<Result> expected = run_alone(c), results = run_together(c, true, seed % 2 == 0);
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      SCOPED_TRACE(rank);
      EXPECT_TRUE(results[rank].y_TD.equal(expected[rank].y_TD));
      EXPECT_TRUE(same(results[rank].grad_x_TD, expected[rank].grad_x_TD));
      EXPECT_TRUE(same(results[rank].grad_gates_TE, expected[rank].grad_gates_TE));
      EXPECT_TRUE(same(results[rank].grad_gate_up, expected[rank].grad_gate_up));
      EXPECT_TRUE(same(results[rank].grad_down, expected[rank].grad_down));
    }
  }
}

TEST(AllToAllTokenDispatcher, is_close_to_it_where_bits_may_differ) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed);
    const std::vector<Result> expected = run_alone(c), results = run_together(c, false);
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      EXPECT_TRUE(results[rank].y_TD.allclose(expected[rank].y_TD, 1e-4, 1e-4));
      EXPECT_TRUE(results[rank].grad_gate_up.allclose(expected[rank].grad_gate_up, 1e-4, 1e-4));
      EXPECT_TRUE(results[rank].grad_x_TD.allclose(expected[rank].grad_x_TD, 1e-4, 1e-4));
    }
  }
}

// capacity and the number of token-expert pairs, per call of moe_ffn in this thread.
thread_local std::vector<std::pair<int64_t, int64_t>> room_and_pairs;

// The CPU kernel allocates the capacity it needs, so the test checks the operator's arguments.
TEST(AllToAllTokenDispatcher, makes_room_for_the_pairs_that_come) {
  std::atomic<int64_t> calls = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed);
    distributed::run_group(c.ranks, [&](distributed::Collectives& group) {
      room_and_pairs.clear();
      const auto note = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(call.name()) != "dtopp::moe_ffn") return nullptr;
        room_and_pairs.emplace_back(call.inputs()[4].toInt(),
                                    call.inputs()[1].toTensor().count_nonzero().item<int64_t>());
        return nullptr;
      };
      const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(note).needsInputs(true));
      run({group, seed % 2 == 0}, c, group.rank());
      at::removeCallback(handle);
      for (const auto& [room, pairs] : room_and_pairs) EXPECT_EQ(room, pairs);
      calls += static_cast<int64_t>(room_and_pairs.size());
    });
  }
  EXPECT_GT(calls, 20);
}

// Adds up the memory that this thread allocates.
struct AllocatedBytes final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    sum += std::max<int64_t>(bytes, 0);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t sum = 0;
};

// The bytes that rank 0 allocates in a forward pass. Each of its tokens selects one expert of 8 ranks.
int64_t allocated_bytes(bool reproducible, int64_t tokens, int64_t hidden) {
  constexpr int64_t kRanks = 8;
  std::atomic<int64_t> of_rank_0 = 0;
  distributed::run_group(kRanks, [&](distributed::Collectives& group) {
    at::set_num_threads(1);
    const at::NoGradGuard no_grad;
    const at::Tensor x_TD = at::ones({tokens, hidden}), down_EDF = at::ones({1, hidden, 2});
    const at::Tensor gates_TE = at::one_hot(at::arange(tokens).remainder(kRanks), kRanks).to(at::kFloat);
    const auto allocated = std::make_shared<AllocatedBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocated);
    AllToAllTokenDispatcher(group, reproducible)
        .forward(/*layer=*/0, x_TD, gates_TE, at::ones({1, 4, hidden}), down_EDF, /*recompute=*/false);
    if (group.rank() == 0) of_rank_0 = allocated->sum;
  });
  return of_rank_0;
}

// The tree over 8 ranks needs the tokens' rows 8 times. Otherwise a single sum is enough.
TEST(AllToAllTokenDispatcher, sums_rows_in_one_tensor_where_bits_may_differ) {
  constexpr int64_t kTokens = 512, kHidden = 256, kRows = kTokens * kHidden * 4;
  EXPECT_GE(allocated_bytes(true, kTokens, kHidden) - allocated_bytes(false, kTokens, kHidden), 7 * kRows);
}

TEST(AllToAllTokenDispatcher, refuses_gates_that_are_not_those_of_all_experts) {
  distributed::SingleRank alone;
  AllToAllTokenDispatcher experts(alone, true);
  EXPECT_THROW(experts.forward(0, at::zeros({2, 4}), at::zeros({2, 3}), at::zeros({2, 6, 4}),
                               at::zeros({2, 4, 3}), false),
               c10::Error);
}

}  // namespace
}  // namespace dtopp::moe
