// The parts that `dtopp generate` and `dtopp generate --interactive` share.
#pragma once

#include <cstdint>
#include <string>

#include "cli/inference.h"
#include "dtopp/inference/generator.h"
#include "dtopp/inference/text_generation.h"

namespace dtopp::cli {

struct GenerateOptions {
  InferenceOptions inference;
  inference::SamplingOptions sampling{.temperature = 0.8, .top_p = 0.95, .seed = 0};
  std::string prompt;
  std::string prompts_file;
  int64_t max_tokens = 128;
  bool show_experts = false, echo = false, json = false;
  bool interactive = false;
};

// Formats the text of one sequence during generation.
class Writer {
 public:
  Writer(const data::Tokenizer& tokenizer, bool show_experts, int64_t num_experts)
      : text_(tokenizer), show_experts_(show_experts), num_experts_(static_cast<double>(num_experts)) {}

  std::string add(const inference::GeneratedToken& token);
  std::string rest() const { return text_.rest(); }
  double experts() const { return sum_; }  // sum over all tokens
  int64_t tokens() const { return count_; }

 private:
  inference::TextStream text_;
  bool show_experts_;
  double num_experts_;
  double sum_ = 0;
  int64_t count_ = 0;
};

// Prints and flushes the text. Throws DataError if the output is closed, which ends the generation.
void write_now(const std::string& text);

// Prints the tokens per second and the experts per token to standard error.
void print_rate(int64_t tokens, double seconds, double experts, const config::ModelConfig& config);

// Opens the language model. Throws UsageError if it has no experts for --show-experts.
checkpoint::Checkpoint open_language_model(const GenerateOptions& options);

// Continues the lines of standard input until it ends.
void generate_interactively(const GenerateOptions& options);

}  // namespace dtopp::cli
