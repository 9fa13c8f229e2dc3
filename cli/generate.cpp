// Implements `dtopp generate`, and its --interactive.
#include <nlohmann/json.hpp>
#include <poll.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/inference.h"
#include "cli/option_checks.h"
#include "dtopp/base/json.h"
#include "dtopp/distributed/failure.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/inference/text_generation.h"

namespace dtopp::cli {
namespace {

struct GenerateOptions {
  InferenceOptions inference;
  inference::SamplingOptions sampling{.temperature = 0.8, .top_p = 0.95, .seed = 0};
  std::string prompt;
  std::string prompts_file;
  int64_t max_tokens = 128;
  bool show_experts = false, echo = false, json = false;
  bool interactive = false;
};

// Colors the text by the share of active experts, from blue (few) over green to red (all), with 256 terminal
// colors.
std::string colored(const std::string& text, double share) {
  constexpr int kColors[] = {27, 33, 39, 44, 42, 40, 112, 148, 184, 214, 208, 202, 196};
  constexpr double kSteps = 13;
  const int step = std::min(12, static_cast<int>(share * kSteps));
  return "\x1b[38;5;" + std::to_string(kColors[step]) + "m" + text + "\x1b[0m";
}

// Formats the text of one sequence during generation.
class Writer {
 public:
  Writer(const data::Tokenizer& tokenizer, bool show_experts, int64_t num_experts)
      : text_(tokenizer), show_experts_(show_experts), num_experts_(static_cast<double>(num_experts)) {}

  std::string add(const inference::GeneratedToken& token) {
    std::string text = text_.add(token.id);
    sum_ += token.active_experts;
    count_ += 1;
    if (!show_experts_ || text.empty()) return text;
    if (isatty(STDOUT_FILENO) != 0) return colored(text, token.active_experts / num_experts_);
    return text + format("[%.1f]", token.active_experts);
  }
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

// Throws DataError if the output is closed, which ends the generation.
void write_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_standard_output();
}

// Throws UsageError if the model has no experts for --show-experts.
checkpoint::Checkpoint open_language_model(const GenerateOptions& options) {
  checkpoint::Checkpoint checkpoint =
      open_named_checkpoint(options.inference, config::ModelType::kLanguageModel);
  if (options.show_experts && checkpoint.config().model.is_dense())
    throw UsageError("--show-experts: the model has no experts");
  return checkpoint;
}

void print_rate(int64_t tokens, double seconds, double experts, const config::ModelConfig& config) {
  const auto count = static_cast<double>(tokens);
  std::fprintf(stderr, "dtopp: %ld tokens, %.1f tok/s", tokens, count / seconds);
  if (!config.is_dense() && tokens > 0)
    std::fprintf(stderr, ", %.2f of %ld experts per token", experts / count, config.num_experts);
  std::fprintf(stderr, "\n");
}

constexpr const char* kHint = "/help lists the commands; /quit exits";
constexpr const char* kHelp = R"(commands:
  /target N       use N experts per token
  /experts        show or hide the experts of each token
  /temperature X  set the temperature of sampling; 0: the most likely token
  /again          write the last piece again
  /reset          start an empty text
  /help           list the commands
  /quit           exit)";

// The lines of standard input. A signal ends the wait for a line.
class InputLines {
 public:
  // Returns nullopt at the end of the input. Throws Stopped after a signal, DataError if a line is too long;
  // the next call then returns the line after it.
  std::optional<std::string> next() {
    size_t end = 0;
    bool too_long = false;
    while ((end = buffer_.find('\n')) == std::string::npos) {
      if (buffer_.size() > kMostBytes) {
        too_long = true;
        buffer_.clear();
      }
      if (!read_more()) {
        if (buffer_.empty() || too_long) return std::nullopt;
        buffer_ += '\n';  // the last line of the input
      }
    }
    std::string line = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    if (too_long) throw DataError("the line is longer than 1 MiB; type less");
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

 private:
  static constexpr size_t kMostBytes = size_t{1} << 20;

  bool read_more() {
    constexpr int kMilliseconds = 200;  // between two looks for a signal
    pollfd input{STDIN_FILENO, POLLIN, 0};
    int ready = 0;
    while (ready <= 0) {
      if (stop_requested()) throw Stopped("stopped");
      ready = ::poll(&input, 1, kMilliseconds);
    }
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count > 0) buffer_.append(bytes.data(), static_cast<size_t>(count));
    return count > 0;
  }

  std::string buffer_;
};

double number_of(const std::string& command, std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number))
    throw UsageError(command, ": needs a number, as in ", command, " 2");
  return number;
}

class Interactive {
 public:
  explicit Interactive(const GenerateOptions& options)
      : options_(options),
        checkpoint_(open_language_model(options)),
        model_(load_model(options.inference, checkpoint_)),
        tokenizer_(inference::load_tokenizer(checkpoint_, options.inference.tokenizer,
                                             model_.config.model.vocab_size)),
        session_(model_, tokenizer_, options.sampling, options.max_tokens),
        show_experts_(options.show_experts) {
    // Without --target-experts, --target-text serves /target.
    if (options.inference.target_experts > 0) meet_target(model_, options.inference, checkpoint_);
  }

  // Returns false on /quit.
  bool answer(const std::string& line) {
    if (!line.starts_with('/')) {
      session_.add(is_empty_ || line.empty() ? line : "\n" + line);
      is_empty_ = is_empty_ && line.empty();
      write_piece();
      return true;
    }
    const size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    const std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
    if (command == "/target") {
      set_target(number_of(command, argument));
    } else if (command == "/temperature") {
      const double temperature = number_of(command, argument);
      if (temperature < 0) throw UsageError("/temperature: must be 0 or more");
      session_.set_temperature(temperature);
    } else if (!argument.empty()) {
      throw UsageError(line, ": unknown; ", kHint);
    } else if (command == "/experts") {
      if (checkpoint_.config().model.is_dense()) throw UsageError("/experts: the model has no experts");
      show_experts_ = !show_experts_;
      print_message(show_experts_ ? "the next text shows its experts"
                                  : "the next text does not show its experts");
    } else if (command == "/again") {
      if (!session_.remove_piece()) throw UsageError("/again: there is no piece yet; type a text first");
      write_piece();
    } else if (command == "/reset") {
      session_.clear();
      is_empty_ = true;
    } else if (command == "/help") {
      print_message(kHelp);
    } else if (command == "/quit") {
      return false;
    } else {
      throw UsageError(command, ": unknown; ", kHint);
    }
    return true;
  }

 private:
  void set_target(double target) {
    inference::require_target(model_.config, target, "/target");
    if (!windows_BL_.defined())
      windows_BL_ = target_windows(options_.inference, checkpoint_, model_.config.model);
    model_.routing = solve_thresholds(model_, windows_BL_, target);
    session_.recompute();
    std::string thresholds;
    for (const double p : model_.routing.router->metric("threshold")) thresholds += format(" %.4f", p);
    print_message(format("%g experts per token: p =%s", target, thresholds.c_str()));
  }

  void write_piece() {
    const int64_t dropped = session_.begin_piece();
    if (dropped > 0)
      print_message(format("the model reads %ld tokens: the oldest %ld were dropped",
                           model_.config.model.sequence_length, dropped));
    Writer writer(tokenizer_, show_experts_, model_.config.model.num_experts);
    const double begin = steady_seconds();
    bool ended = false;
    while (!stop_requested()) {
      const auto token = session_.step();
      if (!token) break;
      ended = token->id == tokenizer_.end_of_text();
      if (!ended) write_now(writer.add(*token));
    }
    const double seconds = steady_seconds() - begin;
    write_now(writer.rest() + "\n");
    print_rate(writer.tokens(), seconds, writer.experts(), model_.config.model);
    if (ended) print_message("the model ended the text here");
  }

  const GenerateOptions& options_;
  checkpoint::Checkpoint checkpoint_;
  inference::InferenceModel model_;
  data::Tokenizer tokenizer_;
  inference::TextSession session_;
  bool show_experts_;
  bool is_empty_ = true;  // true until the user types a text
  Tensor windows_BL_;     // on which p is solved; undefined until it is
};

void generate_interactively(const GenerateOptions& options) {
  Interactive session(options);
  stop_on_signals();
  print_message("continues your text; it was not trained to answer. An empty line continues further.");
  print_message(kHint);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  InputLines lines;
  for (bool goes_on = true; goes_on;) {
    if (terminal) std::fputs("continue> ", stderr);
    try {
      const auto line = lines.next();
      goes_on = line && session.answer(*line);
    } catch (const UsageError& error) {
      print_message(error.what());
    } catch (const DataError& error) {
      if (std::ferror(stdout) != 0) throw;
      print_message(error.what());
    }
  }
}

std::vector<std::string> prompts_of(const GenerateOptions& options) {
  if (!options.prompts_file.empty()) return inference::read_prompts(options.prompts_file);
  if (options.prompt.empty())
    throw UsageError("generate: needs --prompt TEXT, --prompts FILE or --interactive");
  return {options.prompt};
}

std::string json_line(size_t index, const std::string& prompt, const std::string& text, const Writer& writer,
                      const config::ModelConfig& config) {
  ordered_json line = {{"index", index}, {"prompt", prompt}, {"text", text}, {"tokens", writer.tokens()}};
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
  inference::Generation generation(model, encoded.ids, encoded.max_new_tokens, options.sampling);
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
    is_cut = is_cut || (writers[i].tokens() == encoded.max_new_tokens[i] &&
                        encoded.max_new_tokens[i] < options.max_tokens);
    const std::string text = texts[i] + writers[i].rest();
    write_now(options.json ? json_line(i, prompts[i], text, writers[i], config) : text + "\n");
    tokens += writers[i].tokens();
    experts += writers[i].experts();
  }
  print_rate(tokens, seconds, experts, config);
  if (is_cut) print_message(format("stopped at the model's sequence length of %ld", config.sequence_length));
  if (stop_requested()) throw Stopped("stopped before the texts were complete");
}

}  // namespace

void add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Generate text that continues a prompt");
  add_inference_options(*command, options->inference);
  add_checked(*command, "--prompt", options->prompt, "the text to continue", not_empty());
  add_checked(*command, "--prompts", options->prompts_file,
              "file with one prompt per line; all are computed as one batch. Blank lines are skipped. "
              "--json shows where a text begins",
              not_empty())
      ->excludes("--prompt");
  add_number(*command, "--max-tokens", options->max_tokens,
             "maximum number of new tokens per prompt; the model's sequence length limits them too",
             positive<int64_t>());
  add_number(*command, "--temperature", options->sampling.temperature,
             "sampling temperature; 0: always take the most likely token", not_negative<double>());
  add_number(*command, "--top-p", options->sampling.top_p,
             "sample from the most likely tokens whose probabilities sum to this value",
             between<double>(0, 1));
  add_number(*command, "--seed", options->sampling.seed, "seed of the sampling", not_negative<uint64_t>());
  command->add_flag(
      "--show-experts", options->show_experts,
      "color each token by the number of active experts (without a terminal: print the number in "
      "brackets)");
  command->add_flag("--echo", options->echo, "print each prompt before its continuation");
  command
      ->add_flag(
          "--json", options->json,
          "print one JSON object per prompt and line: index, prompt, text, tokens and, for experts, the "
          "mean of active_experts per token")
      ->excludes("--echo")
      ->excludes("--show-experts");
  command
      ->add_flag("--interactive", options->interactive,
                 "continue the lines of standard input, with commands such as /target 2 between them")
      ->excludes("--prompt")
      ->excludes("--prompts")
      ->excludes("--echo")
      ->excludes("--json");
  command->callback([options] {
    distributed::with_memory_advice("lower --max-tokens", [&] {
      options->interactive ? generate_interactively(*options) : generate_texts(*options);
    });
  });
}

}  // namespace dtopp::cli
