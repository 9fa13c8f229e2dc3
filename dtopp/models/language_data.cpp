
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/text/mixture.h"
#include "dtopp/models/batch.h"
#include "dtopp/models/language_model.h"

namespace dtopp::models {
namespace {

std::vector<data::TokenStream> open_streams(const std::vector<std::string>& paths,
                                            const config::ModelConfig& model, data::Verify verify) {
  std::vector<data::TokenStream> streams;
  for (const std::string& path : paths) {
    streams.push_back(data::TokenStream::open(path, verify, model.vocab_size));
    streams.back().require_ids_below(model.vocab_size);
  }
  return streams;
}

// Throws UsageError if two streams with a known tokenizer were prepared with different ones.
void check_same_tokenizer(const std::vector<data::TokenStream>& train,
                          const std::vector<data::TokenStream>& validation) {
  const data::TokenStream* first = nullptr;
  for (const auto* streams : {&train, &validation}) {
    for (const data::TokenStream& stream : *streams) {
      if (!stream.tokenizer_hash()) continue;
      if (first == nullptr) first = &stream;
      if (*stream.tokenizer_hash() != *first->tokenizer_hash())
        throw UsageError(stream.path().string() + " and " + first->path().string() +
                         " were prepared with different tokenizers; prepare both with the same one");
    }
  }
}

std::string find_tokenizer(const std::vector<data::TokenStream>& streams) {
  for (const data::TokenStream& stream : streams)
    if (const auto path = data::tokenizer_beside(stream.path())) return read_file(*path);
  return {};
}

enum class TokenOrder { kTraining, kFile };

// The number of experts of each source (routing.top_k_by_source); empty if it is not set.
std::vector<int64_t> experts_by_source(const config::RunConfig& config, TokenOrder order) {
  const std::vector<config::SourceExperts>& by_source = config.routing.top_k_by_source;
  std::vector<int64_t> experts_S;
  if (by_source.empty()) return experts_S;
  const bool trains = order == TokenOrder::kTraining;
  for (const std::string& name : config::source_names(trains ? config.data.train : config.data.validation))
    experts_S.push_back(std::ranges::find(by_source, name, &config::SourceExperts::source)->experts);
  return experts_S;
}

// The sequences of token streams: in one permutation, in an order by the weights of the streams, or in the
// order of the files.
class TokenDataset : public Dataset {
 public:
  TokenDataset(std::vector<data::TokenStream> streams, const config::RunConfig& config,
               std::optional<int64_t> end_of_text, TokenOrder order)
      : length_(config.model.sequence_length), end_of_text_(end_of_text), order_(order) {
    const auto seed = static_cast<uint64_t>(config.training.seed);
    experts_S_ = experts_by_source(config, order);
    if (order == TokenOrder::kFile || !config.data.is_weighted()) {
      samplers_.emplace_back(std::move(streams), length_, seed);
      return;
    }
    std::vector<uint64_t> sizes;
    for (data::TokenStream& stream : streams) {
      std::vector<data::TokenStream> one;
      one.push_back(std::move(stream));
      samplers_.emplace_back(std::move(one), length_, 0);
      sizes.push_back(samplers_.back().num_windows());
    }
    sources_ = std::make_shared<const MixedSources>(config, std::move(sizes));
  }

  Batch read(uint64_t position, int64_t count) const override {
    const int64_t length = length_ + 1;
    const Tensor windows = at::empty({count, length}, at::kLong);
    auto* tokens = windows.mutable_data_ptr<int64_t>();
    const Tensor experts_B = at::empty({count}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      const Window window = window_at(position + static_cast<uint64_t>(i));
      window.sampler->window(window.index, {tokens + i * length, static_cast<size_t>(length)});
      if (!experts_S_.empty()) experts_B.mutable_data_ptr<int64_t>()[i] = experts_S_.at(window.source);
    }
    Batch batch{position, {{"tokens", windows}}};
    if (!experts_S_.empty()) batch.tensors.emplace_back("experts", experts_B);
    if (end_of_text_)
      batch.tensors.emplace_back("documents", document_offsets(windows.narrow(1, 0, length_), *end_of_text_));
    return batch;
  }
  std::string describe(uint64_t position) const override {
    const Window window = window_at(position);
    return window.sampler->describe(window.index);
  }
  // Without weights: the number of samples of all streams, and of each.
  uint64_t size() const { return samplers_.front().num_windows(); }
  std::vector<uint64_t> sizes() const { return samplers_.front().windows_by_stream(); }
  const std::shared_ptr<const MixedSources>& sources() const { return sources_; }

 private:
  struct Window {
    const data::WindowSampler* sampler;
    uint64_t index;
    size_t source;  // of several weighted or held-out ones
  };
  Window window_at(uint64_t position) const {
    if (sources_) {
      const data::MixedOrder::Draw draw = (*sources_)(position);
      return {&samplers_[draw.source], draw.index, draw.source};
    }
    const data::WindowSampler& sampler = samplers_.front();
    const uint64_t index = order_ == TokenOrder::kTraining ? sampler.window_at(position) : position;
    return {&sampler, index, sampler.stream_of(index)};
  }

  int64_t length_;
  std::optional<int64_t> end_of_text_;
  TokenOrder order_;
  std::vector<int64_t> experts_S_;             // by source (routing.top_k_by_source); empty: none
  std::vector<data::WindowSampler> samplers_;  // one per weighted source, else one
  std::shared_ptr<const MixedSources> sources_;
};

}  // namespace

TrainingData language_model_data(const config::RunConfig& config, data::Verify verify) {
  const config::ModelConfig& model = config.model;
  std::vector<data::TokenStream> train = open_streams(config::paths_of(config.data.train), model, verify);
  std::vector<data::TokenStream> validation =
      open_streams(config::paths_of(config.data.validation), model, verify);
  check_same_tokenizer(train, validation);

  TrainingData data;
  data.tokenizer_json = find_tokenizer(train);
  for (const data::TokenStream& stream : train)
    data.training_hashes.emplace_back(stream.path().string(), stream.content_hash());
  for (const data::TokenStream& stream : validation)
    data.validation_hashes.emplace_back(stream.path().string(), stream.content_hash());
  const std::optional<int64_t> end_of_text = end_of_documents(config, train, validation);
  const auto training =
      std::make_shared<const TokenDataset>(std::move(train), config, end_of_text, TokenOrder::kTraining);
  data.training = training;
  data.sources = training->sources();
  if (!validation.empty()) {
    const auto held_out =
        std::make_shared<const TokenDataset>(std::move(validation), config, end_of_text, TokenOrder::kFile);
    data.validation = held_out;
    data.validation_samples = held_out->size();
    data.validation_sources = held_out_sources(config.data, held_out->sizes());
  }
  return data;
}

}  // namespace dtopp::models
