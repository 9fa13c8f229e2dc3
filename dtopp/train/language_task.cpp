#include <algorithm>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/sampler.h"
#include "dtopp/models/language_model.h"
#include "dtopp/train/task.h"

namespace dtopp {
namespace {

std::vector<TokenStream> open_streams(const std::vector<std::string>& paths, const ModelConfig& model) {
  std::vector<TokenStream> streams;
  for (const std::string& path : paths) {
    streams.push_back(TokenStream::open(path, /*verify=*/true, model.vocab_size));
    streams.back().require_ids_below(model.vocab_size);
  }
  return streams;
}

// The one tokenizer all streams that name one were made with.
void check_same_tokenizer(const std::vector<TokenStream>& train, const std::vector<TokenStream>& validation) {
  const TokenStream* first = nullptr;
  for (const auto* streams : {&train, &validation}) {
    for (const TokenStream& stream : *streams) {
      if (!stream.tokenizer_hash()) continue;
      if (first == nullptr) first = &stream;
      if (*stream.tokenizer_hash() != *first->tokenizer_hash()) {
        throw UsageError(stream.path().string() + " and " + first->path().string() +
                         " were prepared with different tokenizers: prepare both with the same one");
      }
    }
  }
}

std::string find_tokenizer(const std::vector<TokenStream>& streams) {
  for (const TokenStream& stream : streams) {
    const auto path = stream.path() / "tokenizer.json";
    if (std::filesystem::is_regular_file(path)) return read_file(path);
  }
  return {};
}

std::function<at::Tensor(uint64_t, int64_t)> batches(std::shared_ptr<const WindowSampler> sampler,
                                                     void (WindowSampler::*read)(uint64_t, std::span<int64_t>)
                                                         const) {
  return [sampler = std::move(sampler), read](uint64_t first, int64_t count) {
    const int64_t length = sampler->sequence_length() + 1;
    at::Tensor windows = at::empty({count, length}, at::kLong);
    auto* tokens = windows.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      (sampler.get()->*read)(first + static_cast<uint64_t>(i),
                             std::span(tokens + i * length, static_cast<size_t>(length)));
    }
    return windows;
  };
}

}  // namespace

std::function<LossFunction(const ParameterLookup&)> bind_language_model_losses(const RunConfig& config) {
  return [config](const ParameterLookup& parameter) {
    const LossWeights weights{config.loss.lm_z, config.loss.load_balance, config.loss.dynamic,
                              config.loss.router_z};
    return [model = bind_language_model(config.model, config.routing, parameter), weights](
               const at::Tensor& windows, const RoutingInputs& inputs) {
      return language_model_losses(model, windows, inputs, weights);
    };
  };
}

TrainingTask language_model_task(const RunConfig& config) {
  const ModelConfig& model = config.model;
  const auto seed = static_cast<uint64_t>(config.training.seed);
  std::vector<TokenStream> train = open_streams(config.data.train, model);
  std::vector<TokenStream> validation = open_streams(config.data.validation, model);
  check_same_tokenizer(train, validation);

  TrainingTask task;
  task.parameters = language_model_parameters(model, config.routing);
  task.num_routed_layers = model.is_dense() ? 0 : model.num_layers;
  task.tokens_per_sample = model.sequence_length;
  task.tokenizer_json = find_tokenizer(train);
  task.training_batch = batches(
      std::make_shared<WindowSampler>(std::move(train), model.sequence_length, seed), &WindowSampler::sample);
  if (!validation.empty()) {
    auto sampler = std::make_shared<WindowSampler>(std::move(validation), model.sequence_length, seed);
    task.validation_samples = sampler->num_windows();
    task.validation_batch = batches(std::move(sampler), &WindowSampler::window);
  }
  task.bind = bind_language_model_losses(config);
  return task;
}

}  // namespace dtopp
