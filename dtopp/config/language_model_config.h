// What the `model` section holds for a language model alone.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace dtopp {

struct LanguageModelConfig {
  int64_t vocab_size = 50432;
  int64_t sequence_length = 2048;
  bool tie_embeddings = true;
};

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, LanguageModelConfig>
void visit_fields(Config& config, Visitor&& field) {
  field("vocab_size", config.vocab_size);
  field("sequence_length", config.sequence_length);
  field("tie_embeddings", config.tie_embeddings);
}

}  // namespace dtopp
