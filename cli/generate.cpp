#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "cli/inference.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"
#include "dtopp/base/errors.h"
#include "dtopp/eval/generator.h"

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

std::vector<std::string> read_prompts(const GenerateOptions& options) {
  if (options.prompts_file.empty() == options.prompt.empty())
    throw UsageError("generate needs --prompt TEXT or --prompts FILE, and not both");
  if (options.prompts_file.empty()) return {options.prompt};
  std::ifstream file(options.prompts_file);
  if (!file) throw DataError(options.prompts_file + ": cannot be read");
  std::vector<std::string> prompts;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) prompts.push_back(line);
  }
  if (prompts.empty()) throw DataError(options.prompts_file + ": holds no prompt (one a line)");
  return prompts;
}

struct EncodedPrompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<int64_t> room;  // new tokens: what is asked for, or what the model's sequence length leaves
};

EncodedPrompts encode(const std::vector<std::string>& prompts, const Tokenizer& tokenizer,
                      int64_t sequence_length, int64_t max_tokens) {
  EncodedPrompts encoded;
  for (const std::string& prompt : prompts) {
    encoded.ids.push_back(tokenizer.encode(prompt));
    const auto length = static_cast<int64_t>(encoded.ids.back().size());
    if (length >= sequence_length)
      throw UsageError("a prompt of " + std::to_string(length) + " tokens leaves no room in the model's " +
                       "sequence length of " + std::to_string(sequence_length));
    encoded.room.push_back(std::min(max_tokens, sequence_length - length));
  }
  return encoded;
}

// The text of a growing list of ids, given out as far as it is certain: a character may need several tokens.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::string add(int32_t id) {
    pending_.push_back(id);
    std::string text = tokenizer_.decode_generated(pending_);
    constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
    const bool cut = text.ends_with(kReplacement) && pending_.size() < 4;  // no character has more bytes
    if (cut) return {};
    pending_.clear();
    return text;
  }
  std::string rest() const { return tokenizer_.decode_generated(pending_); }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> pending_;
};

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

void generate_texts(const GenerateOptions& options) {
  const std::vector<std::string> prompts = read_prompts(options);
  const Checkpoint checkpoint = open_named_checkpoint(options.inference);
  InferenceModel model = load_model(options.inference, checkpoint);
  meet_target(model, options.inference, checkpoint);
  const ModelConfig& config = model.config.model;
  const Tokenizer tokenizer = load_tokenizer(options.inference, checkpoint, config.vocab_size);
  const EncodedPrompts encoded = encode(prompts, tokenizer, config.sequence_length, options.max_tokens);
  stop_on_signals();

  // One prompt is streamed; several are shown once each is whole, in their order.
  const bool stream = prompts.size() == 1;
  std::vector<Writer> writers(prompts.size(), Writer(tokenizer, options.show_experts, config.num_experts));
  std::vector<std::string> texts(prompts.size());
  const auto begin = std::chrono::steady_clock::now();
  generate(model, encoded.ids, encoded.room, options.sampling, [&](const GeneratedToken& token) {
    if (token.id == tokenizer.end_of_text() || stop_requested()) return false;
    const std::string text = writers[token.sequence].add(token);
    if (!stream) {
      texts[token.sequence] += text;
    } else {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
    return true;
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  int64_t tokens = 0;
  double experts = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::printf("%s%s\n", texts[i].c_str(), writers[i].rest().c_str());
    tokens += writers[i].tokens();
    experts += writers[i].experts();
  }
  std::fflush(stdout);
  std::fprintf(stderr, "dtopp: %lld tokens, %.1f tok/s", static_cast<long long>(tokens),
               static_cast<double>(tokens) / seconds);
  if (!config.is_dense() && tokens > 0) {
    std::fprintf(stderr, ", %.2f of %lld experts a token", experts / static_cast<double>(tokens),
                 static_cast<long long>(config.num_experts));
  }
  std::fprintf(stderr, "\n");
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
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--top-p", options->sampling.top_p,
                   "draw from the likeliest tokens that reach this probability together")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--seed", options->sampling.seed, "of the draws")->capture_default_str();
  verb->add_flag("--show-experts", options->show_experts,
                 "colour each token by the experts that chose it (a number in brackets where there is no "
                 "terminal)");
  verb->callback([options] { generate_texts(*options); });
}

}  // namespace dtopp::cli
