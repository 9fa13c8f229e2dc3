#include <algorithm>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/sampler.h"
#include "dtopp/models/batch.h"
#include "dtopp/models/language_model/language_model.h"

namespace dtopp {
namespace {

std::vector<TokenStream> open_streams(const std::vector<std::string>& paths, const ModelConfig& model,
                                      Verify verify) {
  std::vector<TokenStream> streams;
  for (const std::string& path : paths) {
    streams.push_back(TokenStream::open(path, verify, model.vocab_size));
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

using ReadWindow = void (WindowSampler::*)(uint64_t, std::span<int64_t>) const;

std::function<Batch(uint64_t, int64_t)> batches(std::shared_ptr<const WindowSampler> sampler,
                                                ReadWindow read) {
  return [sampler = std::move(sampler), read](uint64_t position, int64_t count) {
    const int64_t length = sampler->sequence_length() + 1;
    const at::Tensor windows = at::empty({count, length}, at::kLong);
    auto* tokens = windows.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      (sampler.get()->*read)(position + static_cast<uint64_t>(i),
                             std::span(tokens + i * length, static_cast<size_t>(length)));
    }
    return Batch{position, {{"tokens", windows}}};
  };
}

}  // namespace

TrainingData language_model_data(const RunConfig& config, Verify verify) {
  const ModelConfig& model = config.model;
  const auto seed = static_cast<uint64_t>(config.training.seed);
  std::vector<TokenStream> train = open_streams(config.data.train, model, verify);
  std::vector<TokenStream> validation = open_streams(config.data.validation, model, verify);
  check_same_tokenizer(train, validation);

  TrainingData data;
  data.tokenizer_json = find_tokenizer(train);
  for (const auto* streams : {&train, &validation})
    for (const TokenStream& stream : *streams)
      data.content_hashes.emplace_back(stream.path().string(), stream.content_hash());
  data.training_batch = batches(
      std::make_shared<WindowSampler>(std::move(train), model.sequence_length, seed), &WindowSampler::sample);
  if (!validation.empty()) {
    auto sampler = std::make_shared<WindowSampler>(std::move(validation), model.sequence_length, seed);
    data.validation_samples = sampler->num_windows();
    data.validation_batch = batches(std::move(sampler), &WindowSampler::window);
  }
  return data;
}

}  // namespace dtopp
