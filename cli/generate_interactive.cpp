#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <poll.h>
#include <unistd.h>

#include "cli/generate.h"
#include "cli/standard_streams.h"
#include "cli/stop_signals.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/steady_seconds.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/inference/text_session.h"

namespace dtopp::cli {
namespace {

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

// Reads the number of a command. Throws UsageError if the text is anything else.
double number_of(const std::string& command, std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number))
    throw UsageError(command + ": needs a number, as in " + command + " 2");
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
      throw UsageError(line + ": unknown; " + kHint);
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
      throw UsageError(command + ": unknown; " + kHint);
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
      print_message(format("the model reads %lld tokens: the oldest %lld were dropped",
                           static_cast<long long>(model_.config.model.sequence_length),
                           static_cast<long long>(dropped)));
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
  bool is_empty_ = true;   // true until the user types a text
  at::Tensor windows_BL_;  // on which p is solved; undefined until it is
};

}  // namespace

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

}  // namespace dtopp::cli
