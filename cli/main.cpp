#include <array>
#include <sstream>

#include <sys/resource.h>

#include "cli/commands.h"
#include "cli/console.h"
#include "dtopp/config/config.h"
#include "dtopp/distributed/failure.h"

// Options of jemalloc, if it is linked. It keeps freed memory, because each training step allocates what the
// last one freed, and the kernel would clear returned pages again. By default jemalloc does not split a free
// block of more than 64 times the requested size and takes new memory instead. With varying sizes
// (token-expert pairs) a run's memory would then grow for hundreds of steps. These options let it split any
// block.
extern "C" const char* malloc_conf;
const char* malloc_conf =
    "oversize_threshold:0,lg_extent_max_active_fit:30,dirty_decay_ms:-1,muzzy_decay_ms:-1,narenas:1";

namespace {

using namespace dtopp::cli;

// Returns the innermost command of the command line: "text" for `dtopp prepare text …`.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

std::string unknown(const char* what, const std::string& word, const std::vector<std::string>& known) {
  return "unknown " + std::string(what) + " " + dtopp::config::quote_for_message(word) + "; " +
         dtopp::config::suggest(word, known, "known:", known);
}

// "write training.steps=10 without dashes" for an option that is a configuration value; empty for another
// one.
std::string override_hint(const CLI::App& command, const std::string& word) {
  if (command.get_option_no_throw("overrides") == nullptr) return "";
  const std::string setting = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  const std::string key = setting.substr(0, setting.find('='));
  if (key.find('.') == std::string::npos && key != "method" && key != "name" && key != "output") return "";
  return "write " + (key == setting ? key + "=VALUE" : setting) + " without dashes";
}

// Returns the message for a parse error. An unknown command or option is reported first, with the nearest
// known name, because it often causes the error that CLI11 reports. Otherwise the message is CLI11's.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    if (word == "--") continue;
    if (const std::string hint = override_hint(command, word); word.starts_with("-") && !hint.empty())
      return "unknown option " + dtopp::config::quote_for_message(word) + "; " + hint;
    if (word.starts_with("-"))
      return unknown("option", word.substr(0, word.find('=')), option_names(command));
    const std::vector<std::string> names = command_names(command);
    const bool is_nested = command.get_parent() != nullptr;  // "prepare", "evaluate", "convert"
    if (is_nested && command.get_require_subcommand_min() > 0 &&
        dtopp::config::nearest_key(word, names).empty())
      return command.get_name() + " needs a command before " + dtopp::config::quote_for_message(word) + ": " +
             dtopp::joined(names, ", ");
    if (!names.empty()) return unknown("command", word, names);
  }
  if (command.get_require_subcommand_min() > 0)
    return command.get_parent() == nullptr
               ? "a command is required"
               : command.get_name() + " needs a command: " + dtopp::joined(command_names(command), ", ");
  const bool excludes = dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr;
  return std::string(error.what()) + (excludes ? "; give one of them" : "");
}

constexpr size_t kWidth = 100;

// Breaks lines that are longer than `width` between words.
std::string wrapped(const std::string& text, size_t width) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line); result += "\n") {
    std::istringstream words(line);
    size_t length = 0;
    for (std::string word; words >> word; length += word.size()) {
      const bool breaks = length > 0 && length + 1 + word.size() > width;
      if (length > 0) result += breaks ? "\n" : " ";
      length = length == 0 || breaks ? 0 : length + 1;
      result += word;
    }
  }
  result.resize(result.find_last_not_of('\n') + 1);
  return result;
}

// Formats --help in lines of at most kWidth characters.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* app) const override {
    return wrapped(CLI::Formatter::make_description(app), kWidth) + "\n";
  }

  // CLI11 puts the text behind the option's name.
  std::string make_option_opts(const CLI::Option* option) const override {
    const size_t name = make_option_name(option, option->get_positional()).size() + 3;
    const std::string text =
        wrapped(CLI::Formatter::make_option_opts(option), kWidth - std::min(name, kWidth / 2));
    return text.empty() ? "" : " " + CLI::detail::find_and_replace(text, "\n", "\n      ");
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), kWidth - get_column_width());
  }

  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_display_name(true),
                             wrapped(command->get_description(), kWidth - get_column_width()),
                             get_column_width());
    return out.str();
  }
};

// The table of docs/reference/exit-status.md.
constexpr char kExitStatus[] = R"(Exit status:
  0   done
  2   wrong usage or configuration
  3   input missing or damaged; output not writable
  4   damaged checkpoint
  5   out of memory, device failure, lost rank
  6   non-finite steps; failed runs of a study
  75  signal or time limit; the same command resumes)";

constexpr std::array kExamples = {
    "dtopp prepare text novels.jsonl.zst --tokenizer tokenizer.json --output data/novels/train",
    "dtopp prepare images pictures --size 32 --output data/pictures/train",
    "dtopp tokenize --tokenizer tokenizer.json < lines.txt",
    "dtopp new mine.yaml --active 10M --data data/novels/train",
    "dtopp train mine.yaml training.steps=2000 output=runs/mine",
    "dtopp replay runs/mine --step 200",
    "dtopp evaluate text runs/mine --text data/novels/validation",
    "dtopp evaluate tasks runs/mine --data data/eval",
    "dtopp evaluate experts runs/mine --text held-out.txt",
    "dtopp evaluate images runs/pictures --images data/pictures/validation",
    "dtopp generate runs/mine --prompt \"The old man\" --max-tokens 60",
    "dtopp serve runs/mine --port 8080",
    "dtopp sample runs/pictures --classes 0,7 --count 16 --output samples.png",
    "dtopp plan mine.yaml --device h100",
    "dtopp study study.yaml --dry-run",
    "dtopp report runs/mine --output report.html",
    "dtopp convert to-hf runs/mine mine-hf",
    "dtopp convert from-hf OLMoE-1B-7B-0924 olmoe",
    "dtopp convert to-gguf runs/mine mine.gguf",
    "dtopp convert lm-eval tasks --data data/eval",
    "dtopp devices --json",
    "dtopp completion bash > ~/.local/share/bash-completion/completions/dtopp"};

// Shows each example in the help of its command. Groups of commands show their first one.
void add_examples(CLI::App& app) {
  for (const std::string example : kExamples) {
    std::istringstream words(example.substr(example.find(' ')));
    std::vector<CLI::App*> found = {&app};
    for (std::string word; words >> word;) {
      found =
          found.front()->get_subcommands([&](const CLI::App* command) { return command->check_name(word); });
      if (found.empty()) break;
      if (found.front()->get_footer().empty()) found.front()->footer("Example:\n  " + example);
    }
  }
}

int fail(dtopp::ExitStatus status, const std::string& message) {
  const char* kind = status == dtopp::ExitStatus::kStopped ? "" : "error: ";
  std::fprintf(stderr, "dtopp: %s%s\n", kind, message.c_str());
  return static_cast<int>(status);
}

int run(int argc, char** argv) {
  CLI::App app(
      "dtopp trains Mixture-of-Experts transformers in which each token selects how many experts it uses.");
  app.formatter(std::make_shared<HelpFormat>());
  app.set_version_flag("--version", "dtopp " DTOPP_VERSION);
  app.require_subcommand(1);
  for (const auto add :
       {add_prepare, add_tokenize, add_new, add_train, add_replay, add_evaluate, add_generate, add_serve,
        add_sample, add_plan, add_study, add_report, add_convert, add_devices, add_completion})
    add(app);
  add_examples(app);
  app.footer(kExitStatus);  // last: a command copies the footer when it is added
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0)
      return fail(dtopp::ExitStatus::kUsage, explain(app, error) + " (see dtopp --help)");
    std::ostringstream text;  // --help, --version
    app.exit(error, text, text);
    std::fputs(text.str().c_str(), stdout);
  }
  flush_standard_output();
  return static_cast<int>(dtopp::ExitStatus::kDone);
}

// Raises the limit on open files to the hard limit: every file of the data stays open during training.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  guard_standard_streams();
  raise_file_limit();
  int status = 0;
  try {
    status = run(argc, argv);
  } catch (const std::exception& error) {
    const dtopp::distributed::Failure failure = dtopp::distributed::failure_of(error);
    status = fail(failure.status, failure.message);
  }
  end_process(status);
}
