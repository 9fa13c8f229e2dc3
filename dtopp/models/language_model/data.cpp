#include <algorithm>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/tokens/sampler.h"
#include "dtopp/models/batch.h"
#include "dtopp/models/language_model/documents.h"
#include "dtopp/models/language_model/language_model.h"
#include "dtopp/models/mixed_sources.h"

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

// Throws UsageError if two streams with a known tokenizer were prepared with different ones.
void check_same_tokenizer(const std::vector<TokenStream>& train, const std::vector<TokenStream>& validation) {
  const TokenStream* first = nullptr;
  for (const auto* streams : {&train, &validation}) {
    for (const TokenStream& stream : *streams) {
      if (!stream.tokenizer_hash()) continue;
      if (first == nullptr) first = &stream;
      if (*stream.tokenizer_hash() != *first->tokenizer_hash()) {
        throw UsageError(stream.path().string() + " and " + first->path().string() +
                         " were prepared with different tokenizers; prepare both with the same one");
      }
    }
  }
}

std::string find_tokenizer(const std::vector<TokenStream>& streams) {
  for (const TokenStream& stream : streams) {
    if (const auto path = tokenizer_beside(stream.path())) return read_file(*path);
  }
  return {};
}

// Reads sequence `position` of an order into sequence_length + 1 tokens.
using ReadWindow = std::function<void(uint64_t position, std::span<int64_t> tokens)>;

std::function<Batch(uint64_t, int64_t)> batches(const ModelConfig& model, std::optional<int64_t> end_of_text,
                                                ReadWindow read) {
  return [length = model.sequence_length + 1, end_of_text, read = std::move(read)](uint64_t position,
                                                                                   int64_t count) {
    const at::Tensor windows = at::empty({count, length}, at::kLong);
    auto* tokens = windows.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i)
      read(position + static_cast<uint64_t>(i), std::span(tokens + i * length, static_cast<size_t>(length)));
    Batch batch{position, {{"tokens", windows}}};
    if (end_of_text)
      batch.tensors.emplace_back("documents",
                                 document_offsets(windows.narrow(1, 0, length - 1), *end_of_text));
    return batch;
  };
}

// Permutes the sequences of all sources together.
ReadWindow one_order(std::vector<TokenStream> streams, const ModelConfig& model, uint64_t seed) {
  return [sampler = std::make_shared<WindowSampler>(std::move(streams), model.sequence_length, seed)](
             uint64_t position, std::span<int64_t> tokens) { sampler->sample(position, tokens); };
}

// Orders the sequences by the weights of their sources.
ReadWindow mixed_order(std::vector<TokenStream> streams, const RunConfig& config, TrainingData& data) {
  auto samplers = std::make_shared<std::vector<WindowSampler>>();
  std::vector<uint64_t> sizes;
  for (TokenStream& stream : streams) {
    std::vector<TokenStream> one;
    one.push_back(std::move(stream));
    samplers->emplace_back(std::move(one), config.model.sequence_length, 0);
    sizes.push_back(samplers->back().num_windows());
  }
  const auto order = mixed_order_of(config, std::move(sizes), data);
  return [samplers, order](uint64_t position, std::span<int64_t> tokens) {
    const MixedOrder::Draw draw = (*order)(position);
    (*samplers)[draw.source].window(draw.index, tokens);
  };
}

}  // namespace

TrainingData language_model_data(const RunConfig& config, Verify verify) {
  const ModelConfig& model = config.model;
  const auto seed = static_cast<uint64_t>(config.training.seed);
  std::vector<TokenStream> train = open_streams(config.data.train_paths(), model, verify);
  std::vector<TokenStream> validation = open_streams(config.data.validation, model, verify);
  check_same_tokenizer(train, validation);

  TrainingData data;
  data.tokenizer_json = find_tokenizer(train);
  for (const auto* streams : {&train, &validation})
    for (const TokenStream& stream : *streams)
      data.content_hashes.emplace_back(stream.path().string(), stream.content_hash());
  const std::optional<int64_t> end_of_text = end_of_documents(config, train, validation);
  data.training_batch = batches(model, end_of_text,
                                config.data.is_weighted() ? mixed_order(std::move(train), config, data)
                                                          : one_order(std::move(train), model, seed));
  if (!validation.empty()) {
    const auto sampler = std::make_shared<WindowSampler>(std::move(validation), model.sequence_length, seed);
    data.validation_samples = sampler->num_windows();
    data.validation_batch = batches(
        model, end_of_text,
        [sampler](uint64_t position, std::span<int64_t> tokens) { sampler->window(position, tokens); });
  }
  return data;
}

}  // namespace dtopp
