// Steps for which a device's memory does not suffice.
#include <atomic>

#include <gtest/gtest.h>

#include "tests/distributed/rank_threads.h"
#include "tiny_model.h"

namespace dtopp {
namespace {

// Memory ends in the forward pass, or in the backward pass at one of these.
const std::vector<std::string> kPlaces = {"", "model.layers.1.self_attn.q_proj.weight",
                                          "model.layers.0.mlp.experts.gate_up_proj",
                                          "model.embed_tokens.weight"};

TEST(Trainer, cuts_micro_batches_for_which_memory_does_not_suffice) {
  RunConfig config = tiny();
  config.training.global_batch_size = config.training.micro_batch_size = 6;
  Trainer trainer = trainer_with_memory_for(2, config);
  config.training.micro_batch_size = 2;
  Trainer expected = trainer_of(config), none = trainer_with_memory_for(0, config);
  for (Trainer* each : {&trainer, &expected, &none}) each->initialise();
  for (int n = 0; n < 3; ++n) {
    const StepResult result = step(trainer);
    EXPECT_DOUBLE_EQ(result.loss, step(expected).loss);
    EXPECT_EQ(result.parts_R, std::vector<int64_t>{3});
  }
  EXPECT_EQ(distance(trainer, expected), 0);
  EXPECT_THROW(none.step(never), c10::OutOfMemoryError);
}

RunConfig with_several_buckets() {
  RunConfig config = tiny();
  config.model.hidden_size = 64;
  config.model.ffn_hidden_size = 32;
  config.loss.load_balance = 0;  // of a batch's statistics: with others, another gradient
  return config;
}

// In fp32 the sums of gradients differ by their roundings, which AdamW's first steps make larger.
void expect_near(const StepResult& one, const StepResult& other) {
  EXPECT_NEAR(one.loss, other.loss, 1e-4 * other.loss);
  EXPECT_NEAR(one.grad_norm, other.grad_norm, 1e-3 * other.grad_norm);
  EXPECT_EQ(one.activations.tokens_per_expert().sum().item<int64_t>(),
            other.activations.tokens_per_expert().sum().item<int64_t>());
}

// Three steps of a run whose memory suffices. As long as it lives, operations take one thread.
struct Expected {
  explicit Expected(const RunConfig& config) : trainer(trainer_of(config)) {
    at::set_num_threads(1);
    trainer.initialise();
    for (int n = 0; n < 3; ++n) results.push_back(step(trainer));
  }
  ~Expected() { at::set_num_threads(threads); }
  Expected(const Expected&) = delete;
  Expected& operator=(const Expected&) = delete;

  const int threads = at::get_num_threads();
  Trainer trainer;
  std::vector<StepResult> results;
};

TEST(Trainer, ends_a_step_once_memory_did_not_suffice_in_its_backward_pass) {
  RunConfig config = with_several_buckets();
  config.training.global_batch_size = 8;
  for (const int64_t first : {8, 4}) {  // in the last micro-batch, which is the first, and in one before it
    for (const std::string& late : kPlaces) {
      SCOPED_TRACE(testing::Message() << first << " at " << late);
      config.training.micro_batch_size = first;
      Trainer trainer = trainer_with_memory_for(2, config, late), expected = trainer_of(config);
      for (Trainer* each : {&trainer, &expected}) each->initialise();
      for (int n = 0; n < 3; ++n) expect_near(step(trainer), step(expected));
      EXPECT_LT(distance(trainer, expected), 1e-3);
    }
  }
}

// Alone: others have set out with what they have, and wait for the rank's.
TEST(Trainer, a_rank_cuts_its_micro_batches_alone) {
  RunConfig config = with_several_buckets();
  config.training.global_batch_size = 16;
  config.training.micro_batch_size = 2;
  const Expected expected(config);
  for (const ParallelDims& dims : {ParallelDims{1, 2}, ParallelDims{1, 4}, ParallelDims{1, 4, 2}}) {
    for (const bool reproducible : {true, false}) {
      for (const std::string& late : kPlaces) {
        SCOPED_TRACE(testing::Message() << dims.size() << " ranks on " << dims.nodes << " nodes, "
                                        << reproducible << " at " << late);
        config.parallel.reproducible = reproducible;
        run_ranks(dims.size(), [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
          at::set_num_threads(1);
          Trainer trainer = trainer_with_memory_for(rank == 1 ? 1 : 2, config, late,
                                                    make_process_groups(store, rank, dims, on_loopback()));
          trainer.initialise();
          std::vector<int64_t> parts_R(static_cast<size_t>(dims.size()), 1);
          parts_R[1] = 2;
          for (const StepResult& result : expected.results) {
            const StepResult own = step(trainer);
            expect_near(own, result);
            EXPECT_EQ(own.parts_R, parts_R);
          }
          EXPECT_LT(distance(trainer, expected.trainer), 1e-3);
        });
      }
    }
  }
}

// The host's memory. It ends for a thread at the chosen allocation.
class ScarceMemory final : public c10::Allocator {
 public:
  ScarceMemory() : memory_(c10::GetAllocator(c10::kCPU)) { c10::SetAllocator(c10::kCPU, this); }
  ~ScarceMemory() override { c10::SetAllocator(c10::kCPU, memory_); }

  // The n-th allocation of this thread from now on fails, once.
  static void end_at(int64_t allocation) { left_ = allocation; }
  // Whether it has.
  static bool ended() { return left_ == 0; }

  c10::DataPtr allocate(size_t bytes) override {
    if (left_ > 0) TORCH_CHECK_WITH(OutOfMemoryError, --left_ > 0, "no memory");
    return memory_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return memory_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    memory_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* memory_;
  static inline thread_local int64_t left_ = -1;
};

// Anywhere in the passes over its micro-batches, in the exchange of gradients and parameters too.
TEST(Trainer, a_rank_may_run_out_of_memory_at_any_allocation) {
  RunConfig config = with_several_buckets();
  config.training.global_batch_size = 8;
  config.training.micro_batch_size = 2;
  const Expected expected(config);
  ScarceMemory memory;
  const int64_t stride = std::getenv("DTOPP_FULL") ? 3 : 29;
  for (const ParallelDims& dims : {ParallelDims{1, 2}, ParallelDims{1, 2, 2}}) {
    int64_t survived = 0;
    bool died = false;
    for (int64_t allocation = 1; !died; allocation += stride) {
      SCOPED_TRACE(testing::Message() << dims.nodes << " nodes, allocation " << allocation);
      std::atomic<bool> out_of_memory = false, in_collective = false, ended = true;
      const auto run = [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
        at::set_num_threads(1);
        int64_t batches = 0;
        TrainingData data = data_for(config);
        data.training_batch = [&, read = data.training_batch](uint64_t position, int64_t count) {
          if (rank == 1 && ++batches == 3) ScarceMemory::end_at(allocation);  // the second step's first
          return read(position, count);
        };
        Trainer trainer(config, make_model(config), std::move(data), at::kFloat,
                        make_process_groups(store, rank, dims, on_loopback()));
        trainer.initialise();
        for (const StepResult& result : expected.results) {
          try {
            expect_near(step(trainer), result);
          } catch (const c10::OutOfMemoryError&) {
            out_of_memory = true;
            throw;
          } catch (const RankLost& error) {
            // On a device a collective takes no memory.
            if (std::string(error.what()).ends_with("failed: no memory")) in_collective = true;
            throw;
          }
        }
        if (rank == 1) ended = ScarceMemory::ended();
        EXPECT_LT(distance(trainer, expected.trainer), 1e-3);
      };
      try {
        run_ranks(dims.size(), run);
      } catch (const std::exception& error) {
        EXPECT_TRUE(out_of_memory || in_collective) << error.what();
      }
      died = out_of_memory || !ended;
      survived += died ? 0 : 1;
    }
    EXPECT_GT(survived * stride, 600) << "not only of what comes after the passes, it dies";
  }
}

TEST(Trainer, ranks_that_share_experts_end_where_memory_does_not_suffice) {
  RunConfig config = tiny();
  EXPECT_THROW(run_ranks(2,
                         [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
                           Trainer trainer = trainer_with_memory_for(
                               1, config, "", make_process_groups(store, rank, {2, 1}, on_loopback()));
                           trainer.initialise();
                           trainer.step(never);
                         }),
               c10::OutOfMemoryError);
}

}  // namespace
}  // namespace dtopp
