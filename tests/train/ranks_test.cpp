// Tests that a run on one rank and on several gives the same bits in fp32.
#include <cstdlib>

#include <gtest/gtest.h>

#include "dtopp/base/format.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "tests/distributed/rank_threads.h"
#include "tests/train/tiny_model.h"

namespace dtopp::train {
namespace {

const bool kFull = std::getenv("DTOPP_FULL") != nullptr;
const int64_t kSteps = kFull ? 50 : 8;

// A run's results: the parameters, the moments and the numbers of its last steps.
struct Outcome {
  std::vector<at::Tensor> tensors;
  std::vector<double> numbers;
};

Outcome outcome_of(Trainer& trainer) {
  Outcome outcome;
  for (int64_t i = 0; i < kSteps; ++i) {
    const StepResult result = step(trainer);
    for (const auto& [name, value] : result.losses) outcome.numbers.push_back(value);
    outcome.numbers.insert(outcome.numbers.end(), {result.loss, result.grad_norm, result.lr});
    for (const auto& [name, values] : result.router)
      outcome.numbers.insert(outcome.numbers.end(), values.begin(), values.end());
    outcome.numbers.insert(outcome.numbers.end(), result.scales.begin(), result.scales.end());
    outcome.tensors.push_back(result.activations.tokens_per_expert());
  }
  outcome.numbers.push_back(trainer.validate(36, never)->loss);
  for (const parameters::ParameterSpec& spec : trainer.parameters().specs())
    outcome.tensors.push_back(trainer.parameters().main_param(spec.name).clone());
  for (const TensorSource& source : trainer.parameters().slot_sources()) {
    std::vector<at::Tensor> pieces;
    std::vector<checkpoint::TensorByteRange> by_rank(static_cast<size_t>(trainer.ranks().size()));
    by_rank.front() = {checkpoint::kOptimizer, &source, 0, source.size};
    const auto take = [&](std::span<const std::byte> bytes) {
      pieces.push_back(at::empty({static_cast<int64_t>(bytes.size() / sizeof(float))}));
      ops::copy_from_bytes(bytes, pieces.back());
    };
    trainer.parameters().collect_saved(by_rank, trainer.parameters().saved_shards(), trainer.ranks(), take);
    // Only rank 0 gets complete slots.
    if (trainer.ranks().rank() == 0) outcome.tensors.push_back(at::cat(pieces));
  }
  return outcome;
}

void expect_equal(const Outcome& one, const Outcome& other) {
  ASSERT_EQ(one.tensors.size(), other.tensors.size());
  for (size_t i = 0; i < one.tensors.size(); ++i) {
    if (!one.tensors[i].defined()) continue;
    EXPECT_TRUE(one.tensors[i].equal(other.tensors[i])) << "tensor " << i;
  }
  EXPECT_EQ(one.numbers, other.numbers);
}

class Ranks : public testing::Test {
 protected:
  Ranks() : threads_(at::get_num_threads()) {
    at::set_num_threads(1);
    config_.training.global_batch_size = 12;  // six micro-batches: one of four ranks has none
    config_.training.steps = kSteps;
  }
  ~Ranks() override { at::set_num_threads(threads_); }

  int threads_;
  config::RunConfig config_ = tiny();
};

class RanksByMethodSlow : public Ranks, public testing::WithParamInterface<const char*> {
 protected:
  RanksByMethodSlow() {
    const std::string method = GetParam();
    config_.routing.method = enum_named<config::RoutingMethod>(method).value_or(config_.routing.method);
    if (method == "top_k_bias" || config::may_select_none(config_.routing.method)) {
      config_.routing.normalization = config::Normalization::kNone;
      if (method != "top_k_bias") config_.routing.renormalize = config::Renormalize::kNo;
      config_.loss.load_balance = 0;
    }
    if (method == "layer") config_.routing.scope = config::ThresholdScope::kLayer;
    if (method == "layer") config_.routing.controller = config::Controller::kSolve;
    if (method == "dense") config_.model.num_experts = 1;
    if (method.starts_with("zero")) config_.model.zero_experts = 5;
    if (method == "zero_bias") {
      config_.routing.method = config::RoutingMethod::kTopKBias;
      config_.routing.max_experts = 5;
      config_.routing.bias_rate = 0.02;
    }
    if (method == "shared") {
      config_.model.shared_experts = 2;
      config_.model.shared_gate = true;
      config_.model.qk_norm = config::QkNorm::kHead;
      config_.model.qkv_bias = true;
    }
    if (method == "expert_normalization")
      config_.routing.expert_normalization = config::ExpertNormalization::kRunning;
    if (method == "hash_layers") config_.routing.hash_layers = 1;
    if (method.starts_with("muon")) config_.optimizer.method = config::OptimizerMethod::kMuon;
    if (method == "muon_shared") config_.model.shared_experts = 2;
    if (method == "global_statistics") config_.loss.batch_statistics = config::BatchStatistics::kGlobal;
    if (method == "dense") config_.routing.experts.clear();
  }
};

// The layouts of EP ranks, EP groups and nodes to test.
const std::vector<distributed::ParallelDims> kGrids = {
    distributed::ep_by_edp(1, 2),    distributed::ep_by_edp(2, 1),   distributed::ep_by_edp(1, 4),
    distributed::ep_by_edp(2, 2),    distributed::ep_by_edp(4, 1),   distributed::ep_by_edp(1, 2, 2),
    distributed::ep_by_edp(1, 4, 2), distributed::ep_by_edp(2, 2, 2)};

// Every method needs ranks that share experts, ranks that each have their own, and both on two nodes. How
// layouts differ otherwise does not depend on the method.
const std::vector<distributed::ParallelDims> kGridsOfEachMethod = {
    distributed::ep_by_edp(1, 2), distributed::ep_by_edp(4, 1), distributed::ep_by_edp(2, 2, 2)};

std::vector<Outcome> outcomes_on(const distributed::ParallelDims& dims, const config::RunConfig& config,
                                 at::ScalarType type) {
  std::vector<Outcome> outcomes(static_cast<size_t>(dims.world_size));
  distributed::run_ranks(dims.world_size, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    at::set_num_threads(1);
    Trainer trainer(config, models::make_model(config), data_for(config), type,
                    distributed::make_process_groups(store, rank, dims, distributed::on_loopback()));
    trainer.initialize();
    outcomes[static_cast<size_t>(rank)] = outcome_of(trainer);
  });
  return outcomes;
}

TEST_P(RanksByMethodSlow, one_run_has_the_same_bits_on_any_grid_of_them) {
  Trainer alone = trainer_of(config_);
  alone.initialize();
  const Outcome expected = outcome_of(alone);
  const bool all = kFull || GetParam() == std::string("dtop_p") || config_.model.is_dense();
  for (const distributed::ParallelDims& dims : all ? kGrids : kGridsOfEachMethod) {
    if (config_.model.is_dense() && dims.ep_size > 1) continue;
    SCOPED_TRACE(testing::Message() << dims.world_size << " ranks in blocks of " << dims.ep_size << " on "
                                    << dims.nodes << " nodes");
    const std::vector<Outcome> outcomes = outcomes_on(dims, config_, at::kFloat);
    expect_equal(expected, outcomes[0]);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.numbers, expected.numbers);
  }
}

TEST_F(Ranks, stop_a_validation_together) {
  const distributed::ParallelDims dims = distributed::ep_by_edp(1, 2);
  config_.training.micro_batch_size = 1;  // three batches: two rounds
  std::vector<bool> stopped(2);
  distributed::run_ranks(2, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    at::set_num_threads(1);
    std::atomic<bool> requested = false;
    int batches = 0;
    models::TrainingData data = data_for(config_);
    data.validation = dataset_of([&, all = data.training](uint64_t position, int64_t count) {
      requested = rank == 1;  // during the first round
      ++batches;
      return all->read(position, count);
    });
    Trainer trainer(config_, models::make_model(config_), std::move(data), at::kFloat,
                    distributed::make_process_groups(store, rank, dims, distributed::on_loopback()));
    trainer.initialize();
    stopped[static_cast<size_t>(rank)] = !trainer.validate(1 << 20, StopToken(requested)).has_value();
    EXPECT_EQ(batches, 1);
  });
  EXPECT_EQ(stopped, std::vector<bool>(2, true));
}

// In bf16, a rank sums the outputs of its experts for a token and then rounds the row. So results depend on
// the EP size.
TEST_F(Ranks, a_run_in_bf16_has_them_in_blocks_of_one_size) {
  for (const int64_t ep_size : {1, 2}) {
    const Outcome expected = outcomes_on(distributed::ep_by_edp(ep_size, 1), config_, at::kBFloat16)[0];
    for (int64_t edp_size = 2; edp_size * ep_size <= 4; edp_size *= 2) {
      SCOPED_TRACE(testing::Message() << edp_size << " blocks of " << ep_size);
      expect_equal(expected,
                   outcomes_on(distributed::ep_by_edp(ep_size, edp_size), config_, at::kBFloat16)[0]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, RanksByMethodSlow,
                         testing::Values("dtop_p", "layer", "top_p", "top_k", "top_k_bias", "dtop_p_bias",
                                         "relu", "expert_threshold", "hash", "shared", "zero", "zero_bias",
                                         "dense", "global_statistics", "expert_normalization", "hash_layers",
                                         "muon", "muon_shared"));

}  // namespace
}  // namespace dtopp::train
