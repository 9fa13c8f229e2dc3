#include "dtopp/train/run.h"

#include <fstream>
#include <future>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/models/make_model.h"
#include "dtopp/runs/run_directory.h"
#include "tests/base/log_text.h"
#include "tests/base/scratch_directory.h"
#include "tests/distributed/rank_threads.h"
#include "tests/train/tiny_model.h"

namespace dtopp::train {

// Tests a run saved by one rank and by several, at once and in the background: the files are equal, and any
// number of ranks resumes from them.

namespace {

namespace fs = std::filesystem;

// The name and bytes of each file of a directory.
std::map<std::string, std::string> files_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& path : list_directory(directory)) files[path.filename().string()] = read_file(path);
  return files;
}

// Holds back the collectives of a group until the gate opens.
class Gated final : public distributed::Collectives {
 public:
  Gated(std::shared_ptr<distributed::Collectives> inner, std::shared_future<void> gate)
      : Collectives(inner->rank(), inner->size()), inner_(std::move(inner)), gate_(std::move(gate)) {}
  distributed::Pending start(const distributed::Collective& collective) override {
    gate_.wait();
    return inner_->start(collective);
  }

 private:
  std::shared_ptr<distributed::Collectives> inner_;
  std::shared_future<void> gate_;
};

// One rank of a run. Its saves in the background wait until open() is called.
struct Rank {
  Rank(const config::RunConfig& config, const distributed::ProcessGroups& own, double ema_decay,
       const ConsoleLog& log)
      : groups(gated(own)),
        trainer(config, model_of(config, ema_decay), data_for(config), at::kFloat, groups),
        directory(config, own.rank() == 0),
        saver(trainer, config, groups, directory, metrics, own.rank() == 0 ? log : ConsoleLog()) {
    trainer.initialize();
  }
  ~Rank() {
    if (!is_open) open();
  }
  void open() {
    is_open = true;
    gate.set_value();
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step(trainer);
  }
  distributed::ProcessGroups gated(distributed::ProcessGroups own) {
    own.saving = std::make_shared<Gated>(own.saving, gate.get_future().share());
    return own;
  }
  static models::Model model_of(const config::RunConfig& config, double ema_decay) {
    models::Model model = models::make_model(config);
    model.ema_decay = ema_decay;
    return model;
  }

  std::promise<void> gate;
  bool is_open = false;
  distributed::ProcessGroups groups;
  Trainer trainer;
  runs::RunDirectory directory;
  std::optional<runs::MetricsWriter> metrics;
  RunSaver saver;
};

// Runs body(rank) on each rank of the grid.
template <class Body>
void with_ranks(const config::RunConfig& config, const distributed::ParallelDims& dims, const Body& body,
                double ema_decay = 0, const ConsoleLog& log = {}) {
  distributed::run_ranks(dims.world_size, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    at::set_num_threads(1);
    const distributed::ProcessGroups groups =
        dims.world_size == 1
            ? distributed::ProcessGroups{}
            : distributed::make_process_groups(store, rank, dims, distributed::on_loopback());
    Rank one(config, groups, ema_decay, log);
    body(one);
  });
}

fs::path saved_at(const config::RunConfig& config, int64_t step) {
  return runs::checkpoints_of(config.output) / checkpoint::checkpoint_name(step);
}

const std::vector<distributed::ParallelDims> kSavingGrids = {
    distributed::ep_by_edp(1, 1), distributed::ep_by_edp(1, 2), distributed::ep_by_edp(2, 1),
    distributed::ep_by_edp(1, 4), distributed::ep_by_edp(2, 2)};

TEST(RunSaver, gives_the_same_files_on_any_grid_of_ranks_and_each_goes_on_from_them) {
  const ScratchDirectory scratch;
  config::RunConfig config = tiny();
  config.output = (scratch / "run").string();
  std::map<std::string, std::string> expected, later;
  for (const distributed::ParallelDims& dims : kSavingGrids) {
    SCOPED_TRACE(testing::Message() << dims.world_size << " ranks in blocks of " << dims.ep_size);
    with_ranks(config, dims, [&](Rank& rank) {
      rank.steps(3);
      rank.saver.save();
      EXPECT_EQ(rank.saver.newest_checkpoint(), saved_at(config, 3));
      rank.steps(2);
      rank.saver.save();
    });
    const auto files = files_of(saved_at(config, 3));
    EXPECT_THAT(files, testing::Contains(testing::Key("manifest.json")));
    if (expected.empty()) expected = files;
    EXPECT_TRUE(files == expected);
    const auto after = files_of(saved_at(config, 5));
    if (later.empty()) later = after;
    EXPECT_TRUE(after == later);
    fs::remove_all(saved_at(config, 5));
    if (dims.world_size > 1) continue;
    fs::copy(runs::checkpoints_of(config.output), scratch / "kept", fs::copy_options::recursive);
  }
  for (const distributed::ParallelDims& dims : kSavingGrids) {
    SCOPED_TRACE(testing::Message() << dims.world_size << " ranks in blocks of " << dims.ep_size);
    with_ranks(config, dims, [&](Rank& rank) {
      rank.trainer.restore(checkpoint::Checkpoint(scratch / "kept/step-00000003"));
      rank.steps(2);
      rank.saver.save();
    });
    EXPECT_TRUE(files_of(saved_at(config, 5)) == later);
    fs::remove_all(config.output);
  }
}

TEST(RunSaver, saves_in_the_background_the_bytes_of_a_save_at_once) {
  const ScratchDirectory scratch;
  config::RunConfig config = tiny();
  config.output = (scratch / "run").string();
  for (const double ema_decay : {0.0, 0.9}) {
    std::map<std::string, std::string> at_once;
    with_ranks(
        config, distributed::ep_by_edp(1, 1),
        [&](Rank& rank) {
          rank.steps(3);
          rank.saver.save();
        },
        ema_decay);
    at_once = files_of(saved_at(config, 3));
    EXPECT_EQ(at_once.contains("ema.safetensors"), ema_decay > 0);
    for (const distributed::ParallelDims& dims : kSavingGrids) {
      SCOPED_TRACE(testing::Message() << dims.world_size << " ranks in blocks of " << dims.ep_size);
      fs::remove_all(config.output);
      with_ranks(
          config, dims,
          [&](Rank& rank) {
            rank.saver.allocate_snapshot(1, 1);
            rank.steps(3);
            rank.saver.start(never);
            rank.steps(2);  // before a byte of step 3 is written
            EXPECT_FALSE(fs::exists(saved_at(config, 3)));
            rank.open();
            rank.saver.wait();
            EXPECT_EQ(rank.saver.newest_checkpoint(), saved_at(config, 3));
          },
          ema_decay);
      EXPECT_TRUE(files_of(saved_at(config, 3)) == at_once);
    }
    fs::remove_all(config.output);
  }
}

TEST(RunSaver, waits_for_the_pending_save_before_the_next) {
  const ScratchDirectory scratch;
  config::RunConfig config = tiny();
  std::map<int64_t, std::map<std::string, std::string>> at_once;
  for (const bool in_background : {false, true}) {
    config.output = (scratch / "run").string();
    with_ranks(config, distributed::ep_by_edp(1, 2), [&](Rank& rank) {
      if (in_background) rank.saver.allocate_snapshot(1, 1);
      rank.steps(1);
      rank.saver.start(never);
      rank.steps(1);
      std::thread opens([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        rank.open();
      });
      rank.saver.start(never);
      opens.join();
      EXPECT_TRUE(fs::exists(saved_at(config, 1)));
      rank.saver.wait();
      const auto times = rank.saver.take_times();
      ASSERT_TRUE(times);
      EXPECT_GE(times->stall, in_background ? 0.2 : 0);
      EXPECT_FALSE(rank.saver.take_times());
    });
    for (const int64_t step : {1, 2}) {
      const auto files = files_of(saved_at(config, step));
      if (!in_background) at_once[step] = files;
      EXPECT_TRUE(files == at_once[step]) << step;
    }
    fs::remove_all(config.output);
  }
}

TEST(RunSaver, abandons_a_pending_save_on_all_ranks_at_the_request_of_one) {
  const ScratchDirectory scratch;
  config::RunConfig config = tiny();
  config.output = (scratch / "run").string();
  with_ranks(config, distributed::ep_by_edp(1, 2), [&](Rank& rank) {
    rank.saver.allocate_snapshot(1, 1);
    rank.steps(1);
    rank.saver.start(never);
    rank.steps(1);
    if (rank.groups.rank() == 1) rank.saver.abandon();
    rank.open();
    rank.saver.save();
    EXPECT_EQ(rank.saver.newest_checkpoint(), saved_at(config, 2));
  });
  EXPECT_THAT(list_directory(runs::checkpoints_of(config.output)), testing::ElementsAre(saved_at(config, 2)));
}

TEST(RunSaver, ends_all_ranks_where_one_cannot_write) {
  const ScratchDirectory scratch;
  config::RunConfig config = tiny();
  config.output = (scratch / "run").string();
  fs::create_directory(config.output);
  std::ofstream(runs::checkpoints_of(config.output)) << "a file";
  with_ranks(config, distributed::ep_by_edp(1, 2), [&](Rank& rank) {
    const bool is_first = rank.groups.rank() == 0;
    rank.saver.allocate_snapshot(1, 1);
    rank.open();
    for (const bool in_background : {false, true}) {
      const auto save = [&] {
        if (!in_background) return rank.saver.save();
        rank.saver.start(never);
        // Rank 0 ends the others, which do not throw by themselves.
        for (int i = 0; i < 200; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          rank.saver.poll();
        }
        EXPECT_FALSE(is_first);
        rank.saver.wait();
      };
      if (is_first)
        EXPECT_THAT(error_of<DataError>(save), testing::HasSubstr("cannot create the directory"));
      else
        EXPECT_THAT(error_of<distributed::RankLost>(save), testing::HasSubstr("rank 0 could not save"));
    }
  });
}

TEST(RunSaver, saves_at_once_where_a_snapshot_does_not_fit_on_every_rank) {
  const ScratchDirectory scratch;
  config::RunConfig config = tiny();
  config.output = (scratch / "run").string();
  const LogText log;
  with_ranks(
      config, distributed::ep_by_edp(1, 2),
      [&](Rank& rank) {
        rank.saver.allocate_snapshot(1000, rank.groups.rank() == 0 ? 1000 : 999);
        rank.steps(1);
        rank.saver.start(never);
        EXPECT_TRUE(fs::exists(saved_at(config, 1)));
        const std::optional<SaveTimes> times = rank.saver.take_times();
        ASSERT_TRUE(times);
        EXPECT_EQ(times->stall, times->write);
      },
      /*ema_decay=*/0, log.log());
  EXPECT_THAT(log.lines(), testing::ElementsAre(testing::HasSubstr("1.0 kB")));
  config.checkpoint.asynchronous = config::Asynchronous::kTrue;
  with_ranks(config, distributed::ep_by_edp(1, 1), [&](Rank& rank) {
    EXPECT_THAT(error_of<ResourceError>([&] { rank.saver.allocate_snapshot(1000, 999); }),
                testing::StartsWith("checkpoint.asynchronous: "));
  });
}

config::RunConfig config_of(config::RoutingMethod method) {
  config::RunConfig config;
  config.training.steps = 300;
  config.routing.method = method;
  config.routing.experts = {4};
  return config;
}

StepResult routed_step(int64_t layers, std::vector<double> thresholds) {
  StepResult result;
  result.loss = 5.1234;
  result.grad_norm = 0.837;
  result.lr = 2.9e-3;
  if (!thresholds.empty()) result.router = {{"threshold", std::move(thresholds)}};
  // 100 tokens per layer: 98 selected four experts, and two selected five.
  const at::Tensor counts_E = at::tensor({90, 100, 120, 92}, at::kLong);
  const at::Tensor histogram_N = at::tensor({0, 0, 0, 0, 98, 2}, at::kLong);
  result.activations = {counts_E.repeat({layers, 1}), histogram_N.repeat({layers, 1}),
                        at::zeros({2}, at::kLong), 100};
  return result;
}

const StepRates kRates{.tokens_per_second = 5120,
                       .seconds = 87,
                       .tflops = 0.5,
                       .seconds_left = 130,
                       .memory_bytes = 1'240'000'000,
                       .memory_peak_bytes = 1'300'000'000};

TEST(ConsoleLine, shows_the_step_its_losses_routing_and_speed) {
  EXPECT_EQ(console_line(config_of(config::RoutingMethod::kDTopP), 120, routed_step(2, {0.4123}), kRates),
            "step 120/300 | loss 5.123 | 5.12k tok/s | 1m27s, 2m10s left | experts 4.02/4 | p 0.412 | "
            "imbalance 1.2 | grad 0.84 | lr 2.9e-3 | 1.2 GB");
}

TEST(ConsoleLine, shows_nan_without_a_sign) {
  StepResult step = routed_step(2, {0.4123});
  step.loss = step.grad_norm = -std::numeric_limits<double>::quiet_NaN();
  const std::string line = console_line(config_of(config::RoutingMethod::kDTopP), 120, step, kRates);
  EXPECT_NE(line.find("loss nan"), std::string::npos) << line;
  EXPECT_NE(line.find("grad nan"), std::string::npos) << line;
  EXPECT_EQ(validation_line(120, nullptr, {{"accuracy", step.loss}}), "validation at step 120: accuracy nan");
}

// The rate measured at the start is too low if other work ran then, and MFU would exceed 100 %.
TEST(ConsoleLine, has_an_mfu_of_the_data_sheets_peak_alone) {
  StepRates rates = kRates;
  rates.mfu = 0.308;
  const auto line = console_line(config_of(config::RoutingMethod::kDTopP), 1, routed_step(1, {0.4}), rates);
  EXPECT_NE(line.find(" | MFU 31 % | "), std::string::npos) << line;
}

TEST(ConsoleLine, shows_the_range_of_thresholds_where_each_layer_has_its_own) {
  const auto line =
      console_line(config_of(config::RoutingMethod::kDTopP), 1, routed_step(3, {0.39, 0.44, 0.41}), kRates);
  EXPECT_NE(line.find(" | p 0.390-0.440 | "), std::string::npos) << line;
  const auto alike =
      console_line(config_of(config::RoutingMethod::kDTopP), 1, routed_step(2, {0.39, 0.3901}), kRates);
  EXPECT_NE(alike.find(" | p 0.390 | "), std::string::npos) << alike;
}

TEST(ConsoleLine, leaves_out_that_no_time_is_left) {
  StepRates rates = kRates;
  for (const double left : {0.0, 0.049}) {
    rates.seconds_left = left;
    const auto line = console_line(config_of(config::RoutingMethod::kTopK), 300, routed_step(2, {}), rates);
    EXPECT_NE(line.find(" tok/s | 1m27s | experts"), std::string::npos) << line;
  }
}

TEST(ConsoleLine, leaves_out_what_the_routing_lacks) {
  const auto top_k = console_line(config_of(config::RoutingMethod::kTopK), 1, routed_step(2, {}), kRates);
  EXPECT_NE(top_k.find(" | experts 4.02 | imbalance"), std::string::npos) << top_k;
  const auto top_p = console_line(config_of(config::RoutingMethod::kTopP), 1, routed_step(2, {0.25}), kRates);
  EXPECT_NE(top_p.find(" | experts 4.02 | p 0.250 | imbalance"), std::string::npos) << top_p;
  const auto dense = console_line(config_of(config::RoutingMethod::kTopK), 1, routed_step(0, {}), kRates);
  EXPECT_NE(dense.find(" left | grad 0.84 | lr 2.9e-3"), std::string::npos) << dense;
}

TEST(ConsoleLine, says_that_a_step_was_skipped) {
  StepResult result = routed_step(1, {0.4});
  result.skipped = true;
  const auto line = console_line(config_of(config::RoutingMethod::kDTopP), 1, result, kRates);
  EXPECT_NE(line.find(" | skipped | "), std::string::npos) << line;
}

TEST(RunLine, names_parameters_and_tokens) {
  config::RunConfig config = config_of(config::RoutingMethod::kDTopP);
  config.model.sequence_length = 256;
  config.training.global_batch_size = 4;
  plan::Plan plan;
  plan.parameters = 1'510'000;
  plan.active_parameters = 912'000;
  plan.tokens_per_step = 1024;
  EXPECT_EQ(run_line(config, plan, 300),
            "1.51M parameters, 912k active per token; 300 steps of 4 x 256 tokens: 307k tokens");
  plan.active_parameters = plan.parameters;
  EXPECT_EQ(run_line(config, plan, 300), "1.51M parameters; 300 steps of 4 x 256 tokens: 307k tokens");
}

TEST(ValidationLine, names_what_was_measured) {
  const models::ValidationResult routed{5.25, routed_step(2, {0.5}).activations};
  EXPECT_EQ(validation_line(300, &routed, {{"hellaswag/accuracy", 0.3125}, {"copa/accuracy", 0.5}}),
            "validation at step 300: loss 5.250000, active experts 4.020000, "
            "hellaswag/accuracy 0.312500, copa/accuracy 0.500000");
  models::ValidationResult dense;
  dense.loss = 5.25;
  EXPECT_EQ(validation_line(0, &dense, {}), "validation at step 0: loss 5.250000");
  EXPECT_EQ(validation_line(7, nullptr, {{"copa/accuracy", 0.5}}),
            "validation at step 7: copa/accuracy 0.500000");
}

TEST(ConsoleLine, names_the_micro_batch_to_use_when_memory_ends) {
  config::RunConfig config;
  const auto line = [&](int64_t size, std::optional<int64_t> planned) {
    config.training.micro_batch_size = size;
    return out_of_memory_line(config, planned);
  };
  EXPECT_EQ(line(8, 3),
            "out of memory with training.micro_batch_size=8: set training.recompute to layer, or lower "
            "training.micro_batch_size to 3");
  EXPECT_EQ(line(8, 8), line(8, 4));  // the plan was too low, so half of the size
  EXPECT_EQ(line(8, std::nullopt), line(8, 4));
  config.training.recompute = config::Recompute::kLayer;
  EXPECT_EQ(line(8, 3),
            "out of memory with training.micro_batch_size=8: lower training.micro_batch_size to 3");
  EXPECT_EQ(line(1, 1), "out of memory with training.micro_batch_size=1: make the model smaller");
}

}  // namespace

}  // namespace dtopp::train
