// A tiny model and batches of random tokens, for tests of the trainer.
#pragma once

#include <algorithm>

#include <gtest/gtest.h>

#include "dtopp/base/random.h"
#include "dtopp/models/make_model.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

inline config::RunConfig tiny() {
  config::RunConfig config;
  config.model.hidden_size = 16;
  config.model.num_layers = 2;
  config.model.num_heads = 2;
  config.model.ffn_hidden_size = 8;
  config.model.num_experts = 8;
  config.model.vocab_size = 64;
  config.model.sequence_length = 12;
  config.routing.experts = {3};
  config.optimizer.lr = 1e-2;
  config.optimizer.warmup_steps = 2;
  config.training.steps = 20;
  config.training.global_batch_size = 4;
  config.training.micro_batch_size = 2;
  config.training.precision = config::Precision::kFp32;
  return config;
}

// A data set that calls a function (position, count).
template <class Read>
struct FunctionDataset : models::Dataset {
  explicit FunctionDataset(Read read) : read_batch(std::move(read)) {}
  models::Batch read(uint64_t position, int64_t count) const override { return read_batch(position, count); }
  std::string describe(uint64_t position) const override { return "sample " + std::to_string(position); }
  Read read_batch;
};

template <class Read>
std::shared_ptr<const models::Dataset> dataset_of(Read read) {
  return std::make_shared<FunctionDataset<Read>>(std::move(read));
}

// Batches of random tokens, which depend on the position alone.
inline models::TrainingData data_for(const config::RunConfig& config) {
  models::TrainingData data;
  data.training = dataset_of([config](uint64_t position, int64_t count) {
    const RandomStream stream(7, "tokens");
    const int64_t width = config.model.sequence_length + 1;
    const at::Tensor tokens = at::empty({count, width}, at::kLong);
    for (int64_t i = 0; i < tokens.numel(); ++i) {
      const auto index = position * static_cast<uint64_t>(width) + static_cast<uint64_t>(i);
      tokens.mutable_data_ptr<int64_t>()[i] = stream.bits(index)[0] % config.model.vocab_size;
    }
    return models::Batch{position, {{"tokens", tokens}}};
  });
  data.validation_samples = 3;
  data.validation = data.training;
  return data;
}

inline Trainer trainer_of(const config::RunConfig& config, const at::ScalarType type = at::kFloat) {
  return {config, models::make_model(config), data_for(config), type};
}

// The largest difference of any parameter.
inline double distance(const Trainer& a, const Trainer& b) {
  double most = 0;
  for (const parameters::ParameterSpec& spec : a.parameters().specs()) {
    const at::Tensor difference = a.parameters().main_param(spec.name) - b.parameters().main_param(spec.name);
    most = std::max(most, difference.abs().max().item<double>());
  }
  return most;
}

inline const StopToken never;

inline StepResult step(Trainer& trainer) {
  EXPECT_TRUE(trainer.step(never));
  return trainer.next_result(0).value();
}

}  // namespace dtopp::train
