#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "cli/inference.h"
#include "cli/option_checks.h"
#include "cli/standard_streams.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/steady_seconds.h"
#include "dtopp/inference/generator.h"
#include "dtopp/inference/text_generation.h"

namespace dtopp::cli {
namespace {

struct GenerateOptions {
  InferenceOptions inference;
  SamplingOptions sampling{.temperature = 0.8, .top_p = 0.95, .seed = 0};
  std::string prompt;
  std::string prompts_file;
  int64_t max_tokens = 128;
  bool show_experts = false;
};

std::vector<std::string> prompts_of(const GenerateOptions& options) {
  if (options.prompts_file.empty() == options.prompt.empty())
    throw UsageError("generate needs --prompt TEXT or --prompts FILE, and not both");
  if (options.prompts_file.empty()) return {options.prompt};
  return read_prompts(options.prompts_file);
}

// From blue (few) over green to red (all of them), in the terminal's 256 colours.
std::string coloured(const std::string& text, double share) {
  constexpr int kColours[] = {27, 33, 39, 44, 42, 40, 112, 148, 184, 214, 208, 202, 196};
  constexpr double kSteps = 13;
  const int step = std::min(12, static_cast<int>(share * kSteps));
  return "\x1b[38;5;" + std::to_string(kColours[step]) + "m" + text + "\x1b[0m";
}

// How one sequence is written while it grows.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, bool show_experts, int64_t num_experts)
      : text_(tokenizer), show_experts_(show_experts), num_experts_(static_cast<double>(num_experts)) {}

  std::string add(const GeneratedToken& token) {
    std::string text = text_.add(token.id);
    sum_ += token.active_experts;
    count_ += 1;
    if (!show_experts_ || text.empty()) return text;
    if (isatty(STDOUT_FILENO) != 0) return coloured(text, token.active_experts / num_experts_);
    char number[16];
    std::snprintf(number, sizeof number, "[%.1f]", token.active_experts);
    return text + number;
  }
  std::string rest() const { return text_.rest(); }
  double experts() const { return sum_; }  // of all tokens together
  int64_t tokens() const { return count_; }

 private:
  TextStream text_;
  bool show_experts_;
  double num_experts_;
  double sum_ = 0;
  int64_t count_ = 0;
};

// Text that nobody can read any more need not be made: DataError.
void write_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_standard_output();
}

void print_rate(int64_t tokens, double seconds, double experts, const ModelConfig& config) {
  const auto count = static_cast<double>(tokens);
  std::fprintf(stderr, "dtopp: %lld tokens, %.1f tok/s", static_cast<long long>(tokens), count / seconds);
  if (!config.is_dense() && tokens > 0) {
    std::fprintf(stderr, ", %.2f of %lld experts a token", experts / count,
                 static_cast<long long>(config.num_experts));
  }
  std::fprintf(stderr, "\n");
}

void generate_texts(const GenerateOptions& options) {
  const std::vector<std::string> prompts = prompts_of(options);
  const Checkpoint checkpoint = open_named_checkpoint(options.inference, ModelType::kLanguageModel);
  InferenceModel model = load_model(options.inference, checkpoint);
  meet_target(model, options.inference, checkpoint);
  const ModelConfig& config = model.config.model;
  const Tokenizer tokenizer = load_tokenizer(checkpoint, options.inference.tokenizer, config.vocab_size);
  const EncodedPrompts encoded =
      encode_prompts(prompts, tokenizer, config.sequence_length, options.max_tokens);
  stop_on_signals();

  // One prompt is streamed; several are shown once each is whole, in their order.
  const bool stream = prompts.size() == 1;
  std::vector<Writer> writers(prompts.size(), Writer(tokenizer, options.show_experts, config.num_experts));
  std::vector<std::string> texts(prompts.size());
  const double begin = steady_seconds();
  generate(model, encoded.ids, encoded.room, options.sampling, [&](const GeneratedToken& token) {
    if (token.id == tokenizer.end_of_text() || stop_requested()) return false;
    const std::string text = writers[token.sequence].add(token);
    if (!stream) {
      texts[token.sequence] += text;
    } else {
      write_now(text);
    }
    return true;
  });
  const double seconds = steady_seconds() - begin;
  int64_t tokens = 0;
  double experts = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    write_now(texts[i] + writers[i].rest() + "\n");
    tokens += writers[i].tokens();
    experts += writers[i].experts();
  }
  print_rate(tokens, seconds, experts, config);
  if (stop_requested()) throw Stopped("stopped before the texts were complete");
}

}  // namespace

void add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* verb = app.add_subcommand("generate", "Continue a text");
  add_inference_options(*verb, options->inference);
  verb->add_option("--prompt", options->prompt, "the text to continue");
  verb->add_option("--prompts", options->prompts_file,
                   "a file with one prompt a line, computed side by side");
  verb->add_option("--max-tokens", options->max_tokens,
                   "new tokens of each prompt at most (and what the model's sequence length leaves)")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--temperature", options->sampling.temperature, "0: the likeliest token each time")
      ->capture_default_str()
      ->check(finite_number())
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--top-p", options->sampling.top_p,
                   "draw from the likeliest tokens that reach this probability together")
      ->capture_default_str()
      ->check(finite_number())
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--seed", options->sampling.seed, "of the draws")->capture_default_str();
  verb->add_flag("--show-experts", options->show_experts,
                 "colour each token by the experts that chose it (a number in brackets where there is no "
                 "terminal)");
  verb->callback([options] { generate_texts(*options); });
}

}  // namespace dtopp::cli
