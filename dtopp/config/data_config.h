// The `data` section: what is trained on and what is held out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/config/config_tree.h"
#include "dtopp/config/model_config.h"

namespace dtopp {

// A path, or {path: …, weight: …}: a share of the samples, in proportion to the weights.
struct DataSource {
  std::string path;  // a token folder, .bin prefix or .npy file; prepared images
  std::optional<double> weight{};

  bool operator==(const DataSource&) const = default;
};
void read_value(const ConfigNode& node, const std::string& key, std::vector<DataSource>& sources);
std::string print_value(const std::vector<DataSource>& sources);

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<std::string> validation;
  int64_t end_of_text = -1;  // of a language model: the id that ends a document; -1: the tokenizer's

  std::vector<std::string> train_paths() const;
  // Whether any source has a weight. Those that have none then have 1; without, all are one source.
  bool is_weighted() const;
  // One a source. Only where is_weighted().
  std::vector<double> weights() const;
};

// The section as a model of this type has it.
template <class Data>
struct DataSection {
  Data& data;
  ModelType type;
};

template <class Data, class Visitor>
void visit_fields(const DataSection<Data>& section, Visitor&& field) {
  field("train", section.data.train);
  field("validation", section.data.validation);
  if (section.type == ModelType::kLanguageModel) field("end_of_text", section.data.end_of_text);
}

// Throws InvalidValue (config/config.h).
void validate(const DataConfig& config, const ModelConfig& model);

}  // namespace dtopp
