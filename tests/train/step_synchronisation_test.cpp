// Tests that a step does not make the host wait for the device. A recorder reports the operators known to
// wait.
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <ATen/record_function.h>

#include "tiny_model.h"

namespace dtopp::train {
namespace {

// Operators that need a value on the host or copy a value to it.
const std::set<std::string> kWaiting = {"aten::item",          "aten::_local_scalar_dense",
                                        "aten::is_nonzero",    "aten::nonzero",
                                        "aten::masked_select", "aten::equal",
                                        "aten::allclose",      "aten::_unique2",
                                        "aten::to.device",     "aten::to.dtype_layout"};

// dtopp's operators and the fused optimizer are exempt: their CPU kernels read values that the kernels of
// other devices leave on the device. ToCopyBackward0 copies a gradient to its tensor's own device.
bool answers_for_itself(const std::string& name) {
  return name.starts_with("dtopp::") || name.starts_with("aten::_fused_adamw_") || name == "ToCopyBackward0";
}

// A global, because the callback has no other access to state.
struct Recording {
  int inside = 0;  // depth of exempt operators
  int64_t operators = 0;
  std::vector<std::string> waiting;
};
Recording recording;

std::string name_of(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  if (!name) return function.name();
  return name->overload_name.empty() ? name->name : name->name + "." + name->overload_name;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  const std::string name = name_of(function);
  recording.operators += 1;
  if (recording.inside == 0 && kWaiting.contains(name)) recording.waiting.push_back(name);
  recording.inside += answers_for_itself(name) ? 1 : 0;
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  recording.inside -= answers_for_itself(name_of(function)) ? 1 : 0;
}

// The operators that `body` runs on this thread; the CPU's backward pass runs on it too.
template <typename Body>
Recording record(const Body& body) {
  recording = {};
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_start, &on_end)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  body();
  at::removeCallback(handle);
  return recording;
}

TEST(TrainingStep, waits_for_nothing_on_the_device) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const config::ThresholdScope scope :
         {config::ThresholdScope::kGlobal, config::ThresholdScope::kLayer}) {
      for (const config::BatchStatistics statistics :
           {config::BatchStatistics::kMicroBatch, config::BatchStatistics::kGlobal}) {
        config::RunConfig config = tiny();
        config.routing.scope = scope;
        config.loss.batch_statistics = statistics;
        Trainer trainer = trainer_of(config, type);
        trainer.initialize();
        const Recording seen = record([&] { ASSERT_TRUE(trainer.step(never)); });
        EXPECT_GT(seen.operators, 500);
        EXPECT_EQ(seen.waiting, std::vector<std::string>());
        EXPECT_TRUE(trainer.next_result(0));
      }
    }
  }
}

TEST(TrainingStep, a_dense_model_waits_for_nothing_either) {
  config::RunConfig config = tiny();
  config.model.num_experts = 1;
  config.optimizer.grad_clip = 0;
  Trainer trainer = trainer_of(config);
  trainer.initialize();
  const Recording seen = record([&] { ASSERT_TRUE(trainer.step(never)); });
  EXPECT_GT(seen.operators, 100);
  EXPECT_EQ(seen.waiting, std::vector<std::string>());
}

TEST(TrainingStep, the_recorder_sees_what_would_wait) {
  const at::Tensor two = at::full({}, 2.0);
  EXPECT_EQ(record([&] { two.item<double>(); }).waiting.front(), "aten::item");
  EXPECT_EQ(record([&] { two.cpu(); }).waiting.front(), "aten::to.dtype_layout");
  EXPECT_EQ(record([&] { at::nonzero(two); }).waiting.front(), "aten::nonzero");
  EXPECT_TRUE(record([&] { two + two; }).waiting.empty());
}

}  // namespace
}  // namespace dtopp::train
