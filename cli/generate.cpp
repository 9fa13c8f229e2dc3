#include "cli/generate.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "cli/option_checks.h"
#include "cli/standard_streams.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/base/steady_seconds.h"
#include "dtopp/distributed/membership/failure.h"

namespace dtopp::cli {
namespace {

// Colors the text by the share of active experts, from blue (few) over green to red (all), with 256 terminal
// colors.
std::string colored(const std::string& text, double share) {
  constexpr int kColors[] = {27, 33, 39, 44, 42, 40, 112, 148, 184, 214, 208, 202, 196};
  constexpr double kSteps = 13;
  const int step = std::min(12, static_cast<int>(share * kSteps));
  return "\x1b[38;5;" + std::to_string(kColors[step]) + "m" + text + "\x1b[0m";
}

std::vector<std::string> prompts_of(const GenerateOptions& options) {
  if (!options.prompts_file.empty()) return inference::read_prompts(options.prompts_file);
  if (options.prompt.empty())
    throw UsageError("generate: needs --prompt TEXT, --prompts FILE or --interactive");
  return {options.prompt};
}

// One line of --json.
std::string json_line(size_t index, const std::string& prompt, const std::string& text, const Writer& writer,
                      const config::ModelConfig& config) {
  nlohmann::ordered_json line = {
      {"index", index}, {"prompt", prompt}, {"text", text}, {"tokens", writer.tokens()}};
  if (!config.is_dense() && writer.tokens() > 0)
    line["active_experts"] = writer.experts() / static_cast<double>(writer.tokens());
  return dump_json(line) + "\n";
}

void generate_texts(const GenerateOptions& options) {
  const std::vector<std::string> prompts = prompts_of(options);
  const checkpoint::Checkpoint checkpoint = open_language_model(options);
  inference::InferenceModel model = load_model(options.inference, checkpoint);
  meet_target(model, options.inference, checkpoint);
  const config::ModelConfig& config = model.config.model;
  const data::Tokenizer tokenizer =
      inference::load_tokenizer(checkpoint, options.inference.tokenizer, config.vocab_size);
  const inference::EncodedPrompts encoded =
      inference::encode_prompts(prompts, tokenizer, config.sequence_length, options.max_tokens);
  stop_on_signals();

  // A single prompt is streamed. Several are printed in order at the end.
  const bool stream = prompts.size() == 1 && !options.json;
  std::vector<Writer> writers(prompts.size(), Writer(tokenizer, options.show_experts, config.num_experts));
  std::vector<std::string> texts =
      options.echo && !stream ? prompts : std::vector<std::string>(prompts.size());
  if (options.echo && stream) write_now(prompts[0]);
  const double begin = steady_seconds();
  inference::Generation generation(model, encoded.ids, encoded.room, options.sampling);
  while (!stop_requested()) {
    const std::vector<inference::GeneratedToken> tokens = generation.step();
    if (tokens.empty()) break;
    for (const inference::GeneratedToken& token : tokens) {
      if (token.id == tokenizer.end_of_text()) {
        generation.finish(token.sequence);
        continue;
      }
      const std::string text = writers[token.sequence].add(token);
      if (stream)
        write_now(text);
      else
        texts[token.sequence] += text;
    }
  }
  const double seconds = steady_seconds() - begin;
  int64_t tokens = 0;
  double experts = 0;
  bool is_cut = false;  // a text filled the sequence length
  for (size_t i = 0; i < prompts.size(); ++i) {
    is_cut = is_cut || (writers[i].tokens() == encoded.room[i] && encoded.room[i] < options.max_tokens);
    const std::string text = texts[i] + writers[i].rest();
    write_now(options.json ? json_line(i, prompts[i], text, writers[i], config) : text + "\n");
    tokens += writers[i].tokens();
    experts += writers[i].experts();
  }
  print_rate(tokens, seconds, experts, config);
  if (is_cut)
    print_message(format("stopped at the model's sequence length of %lld",
                         static_cast<long long>(config.sequence_length)));
  if (stop_requested()) throw Stopped("stopped before the texts were complete");
}

}  // namespace

std::string Writer::add(const inference::GeneratedToken& token) {
  std::string text = text_.add(token.id);
  sum_ += token.active_experts;
  count_ += 1;
  if (!show_experts_ || text.empty()) return text;
  if (isatty(STDOUT_FILENO) != 0) return colored(text, token.active_experts / num_experts_);
  return text + format("[%.1f]", token.active_experts);
}

void write_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_standard_output();
}

checkpoint::Checkpoint open_language_model(const GenerateOptions& options) {
  checkpoint::Checkpoint checkpoint =
      open_named_checkpoint(options.inference, config::ModelType::kLanguageModel);
  if (options.show_experts && checkpoint.config().model.is_dense())
    throw UsageError("--show-experts: the model has no experts");
  return checkpoint;
}

void print_rate(int64_t tokens, double seconds, double experts, const config::ModelConfig& config) {
  const auto count = static_cast<double>(tokens);
  std::fprintf(stderr, "dtopp: %lld tokens, %.1f tok/s", static_cast<long long>(tokens), count / seconds);
  if (!config.is_dense() && tokens > 0) {
    std::fprintf(stderr, ", %.2f of %lld experts per token", experts / count,
                 static_cast<long long>(config.num_experts));
  }
  std::fprintf(stderr, "\n");
}

void add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* verb = app.add_subcommand("generate", "Generate text that continues a prompt");
  add_inference_options(*verb, options->inference);
  verb->add_option("--prompt", options->prompt, "the text to continue")->check(not_empty());
  verb->add_option("--prompts", options->prompts_file,
                   "file with one prompt per line; all are computed as one batch. Blank lines are skipped. "
                   "--json shows where a text begins")
      ->check(not_empty())
      ->excludes("--prompt");
  verb->add_option("--max-tokens", options->max_tokens,
                   "maximum number of new tokens per prompt; the model's sequence length limits them too")
      ->capture_default_str()
      ->check(positive<int64_t>());
  verb->add_option("--temperature", options->sampling.temperature,
                   "sampling temperature; 0: always take the most likely token")
      ->capture_default_str()
      ->check(not_negative<double>());
  verb->add_option("--top-p", options->sampling.top_p,
                   "sample from the most likely tokens whose probabilities sum to this value")
      ->capture_default_str()
      ->check(between<double>(0, 1));
  verb->add_option("--seed", options->sampling.seed, "seed of the sampling")
      ->capture_default_str()
      ->check(not_negative<uint64_t>());
  verb->add_flag("--show-experts", options->show_experts,
                 "color each token by the number of active experts (without a terminal: print the number in "
                 "brackets)");
  verb->add_flag("--echo", options->echo, "print each prompt before its continuation");
  verb->add_flag(
          "--json", options->json,
          "print one JSON object per prompt and line: index, prompt, text, tokens and, for experts, the "
          "mean of active_experts per token")
      ->excludes("--echo")
      ->excludes("--show-experts");
  verb->add_flag("--interactive", options->interactive,
                 "continue the lines of standard input, with commands such as /target 2 between them")
      ->excludes("--prompt")
      ->excludes("--prompts")
      ->excludes("--echo")
      ->excludes("--json");
  verb->callback([options] {
    distributed::with_memory_advice("lower --max-tokens", [&] {
      options->interactive ? generate_interactively(*options) : generate_texts(*options);
    });
  });
}

}  // namespace dtopp::cli
