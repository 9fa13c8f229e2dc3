// Defines the `data` section: the data for training and for validation.
#pragma once

#include "dtopp/config/config_tree.h"
#include "dtopp/config/model_config.h"

namespace dtopp::config {

// A path, or {path: …, name: …, weight: …}. With weights, each source of data.train provides samples in
// proportion to its weight.
struct DataSource {
  std::string path;  // token folder, .bin prefix or .npy file; for images, a prepared folder
  std::optional<double> weight{};
  std::string name{};  // in metrics; empty: from the path (source_names)

  bool operator==(const DataSource&) const = default;
};
void read_value(const ConfigNode& node, const std::string& key, std::vector<DataSource>& sources);
std::string print_value(const std::vector<DataSource>& sources);

std::vector<std::string> paths_of(const std::vector<DataSource>& sources);
// Returns the names of sources in metrics. Without a name of its own, a source has the stem of its path. If
// such stems are equal, parent folders are put before all of them, joined by "_", until they differ.
// Precondition: no normalized path occurs twice.
std::vector<std::string> source_names(const std::vector<DataSource>& sources);

struct DataConfig {
  std::vector<DataSource> train, validation;
  // Language models only: id of the token that ends a document; -1: from the tokenizer.
  int64_t end_of_text = -1;

  // True if any source of `train` has a weight; then the weight of the others is 1. Without weights, all
  // sources together count as one.
  bool is_weighted() const;
  // One weight per source. Call it only if is_weighted().
  std::vector<double> weights() const;
  // True if validation reports each source: there are several, or one has a name.
  bool validates_by_source() const;
  // The share of each validation source in the training mixture: the weight of the training source with its
  // name, 0 if there is none. Empty unless validation reports each source, `train` has weights, and each of
  // its sources has a validation source with its name.
  std::vector<double> mixture_shares() const;
};

template <SectionOf<DataConfig> Data>
void visit_fields(const TypedSection<Data>& section, auto&& field) {
  field("train", section.values.train);
  field("validation", section.values.validation);
  if (section.type == ModelType::kLanguageModel) field("end_of_text", section.values.end_of_text);
}

// Throws InvalidValue (config/config.h).
void validate(const DataConfig& config, const ModelConfig& model);

}  // namespace dtopp::config
