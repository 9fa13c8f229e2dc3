// Defines the batches and the data that a model is trained on. Samples have one global order.
#pragma once

#include "dtopp/config/data_config.h"
#include "dtopp/config/run_config.h"
#include "dtopp/data/text/mixture.h"
#include "dtopp/ops/core/named_tensors.h"

namespace dtopp::models {
struct Batch {
  // The index of the first sample in the global order. Random values of sample i are drawn at (seed, purpose,
  // position + i). They do not depend on micro-batch size, number of processes or restarts.
  uint64_t position = 0;
  ops::NamedTensors tensors;

  bool has(std::string_view name) const;
  // Throws std::invalid_argument if no tensor has this name.
  const Tensor& tensor(std::string_view name) const { return ops::find_tensor(tensors, name, "Batch"); }
  Batch to(const at::Device& device) const;
};

// The samples of some data in one order. Safe to read from many threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  // Returns `count` samples from `position` of the order.
  virtual Batch read(uint64_t position, int64_t count) const = 0;
  // The source of the sample at `position` and its place there, as text: "data/train: tokens 1024 to 1536".
  virtual std::string describe(uint64_t position) const = 0;
};

class MixedSources;

// Held-out samples whose results validation reports separately.
struct HeldOutSource {
  std::string name{};  // as in metrics; empty: validation reports all samples together
  uint64_t first = 0;  // its first sample in TrainingData::validation
  uint64_t samples = 0;
  std::optional<double> mixture_share{};  // of the training mixture; see DataConfig::mixture_shares
};

// The data of a run.
struct TrainingData {
  std::string tokenizer_json;  // stored in checkpoints, like images_json; empty if the data has none
  std::string images_json{};
  // The name of each source and a hash of its content. The hash does not depend on the location.
  std::vector<std::pair<std::string, std::string>> training_hashes, validation_hashes;
  std::shared_ptr<const Dataset> training;      // in the training order
  std::shared_ptr<const MixedSources> sources;  // null if sources have no weights
  uint64_t validation_samples = 0;
  std::shared_ptr<const Dataset> validation;        // in the order of the data
  std::vector<HeldOutSource> validation_sources{};  // empty: reported together
};

// The use of one weighted source up to a position of the training order.
struct SourceUse {
  std::string name;   // as it appears in metrics
  double share = 0;   // share of all samples
  double epochs = 0;  // passes over the source's own samples
};

// Orders training samples by the weights of their sources.
class MixedSources {
 public:
  // Mixes the sources of config.data, which have `sizes` samples.
  MixedSources(const config::RunConfig& config, std::vector<uint64_t> sizes)
      : order_(config.data.weights(), std::move(sizes), static_cast<uint64_t>(config.training.seed)),
        names_(config::source_names(config.data.train)) {}

  data::MixedOrder::Draw operator()(uint64_t position) const { return order_(position); }
  // Returns the use of each source before `position` of the training order.
  std::vector<SourceUse> use(uint64_t position) const;

 private:
  data::MixedOrder order_;
  std::vector<std::string> names_;
};

// Returns the sources of data.validation, which have `sizes` samples, one after another; none unless
// data.validates_by_source(). Throws DataError if a source has no sample.
std::vector<HeldOutSource> held_out_sources(const config::DataConfig& data,
                                            const std::vector<uint64_t>& sizes);

// Returns the first samples of each source of `data`: `samples` of them, but at most all. Without sources,
// returns one without a name.
std::vector<HeldOutSource> first_of_each(const TrainingData& data, uint64_t samples);

}  // namespace dtopp::models
