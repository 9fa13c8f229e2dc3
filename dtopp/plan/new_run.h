// Chooses the sizes and the recipe of a new language model, for `dtopp new`.
//
// docs/how-to/new-run.md lists each rule with its source.
#pragma once

#include <map>

#include "dtopp/config/run_config.h"

namespace dtopp::plan {

// Prepared folders, and the facts about them.
struct NewRunData {
  std::vector<config::DataSource> train, validation;
  int64_t vocab_size = 0;  // of the tokenizer
  uint64_t train_tokens = 0, validation_tokens = 0;
};

struct NewRunSize {
  int64_t active = 0;                                             // active parameters, as Plan counts them
  std::optional<int64_t> tokens{};                                // of training; nullopt: by the rules
  int64_t experts = 8, num_experts = 64, sequence_length = 1024;  // only of new_run
};

// A configuration and, by key ("model.hidden_size"), the reason of a value.
struct NewRun {
  config::RunConfig config;
  std::map<std::string, std::string> reasons;
};

// Throws UsageError if no model of about that size has the vocabulary, or if the data are shorter than a
// sequence.
NewRun new_run(const NewRunSize& size, const NewRunData& data);

// A run with the ratios, the router and the recipe of `like`, which messages call `source`. `data` replaces
// its data. Throws UsageError as new_run does, or if `like` is no language model or starts from another run.
NewRun scaled_run(const config::RunConfig& like, const std::string& source, const NewRunSize& size,
                  const std::optional<NewRunData>& data);

// Sets training.micro_batch_size to the largest one that fits (largest_micro_batch). Throws UsageError if
// none does.
void fit_micro_batch(NewRun& run, config::Device device, uint64_t memory);

// The configuration as YAML: the keys that have a reason or differ from their default. A key without a reason
// gets `otherwise` as its reason.
std::string commented_yaml(const NewRun& run, const std::string& otherwise);

}  // namespace dtopp::plan
