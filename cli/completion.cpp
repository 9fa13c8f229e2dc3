// Implements `dtopp completion`: completes commands, options and configuration keys in a shell.
#include <cstdio>

#include "cli/commands.h"
#include "dtopp/config/config.h"
#include "dtopp/config/run_config.h"

namespace dtopp::cli {
namespace {

// Each script asks `dtopp completion words` for the last word. Without an answer it completes file names.
constexpr char kBash[] = R"(_dtopp() {
  local IFS=$'\n'
  COMPREPLY=($(dtopp completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  case "${COMPREPLY[*]}" in *=) compopt -o nospace 2>/dev/null ;; esac
}
complete -o default -F _dtopp dtopp
)";
constexpr char kZsh[] = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n";
constexpr char kFish[] =
    "complete -c dtopp -a '(dtopp completion words -- (commandline -opc)[2..-1] \"$(commandline -ct)\" "
    "2>/dev/null)'\n";

// Returns what may stand in place of the last word, when those before it follow `dtopp`.
std::vector<std::string> candidates(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const auto named =
        command->get_subcommands([&](const CLI::App* each) { return each->check_name(words[i]); });
    if (!named.empty()) command = named.front();
  }
  const CLI::Option* last =
      words.size() < 2 ? nullptr : command->get_option_no_throw(words[words.size() - 2]);
  if (last != nullptr && !last->get_positional() && last->get_items_expected_max() > 0) return {};
  std::vector<std::string> all = command_names(*command);
  std::ranges::move(option_names(*command), std::back_inserter(all));
  if (command->get_option_no_throw("overrides") != nullptr) {
    for (const auto& [key, value] : config::flatten_config(config::RunConfig())) all.push_back(key + "=");
    all.emplace_back("method=");
  }
  const std::string begin = words.empty() ? "" : words.back();
  std::erase_if(all, [&](const std::string& word) {
    return !word.starts_with(begin) || (begin.empty() && word.starts_with("-"));
  });
  return all;
}

}  // namespace

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "completion", "Print a script that completes commands, options and configuration keys in a shell");
  command->add_option("shell", *shell, "bash, zsh or fish; words: what may stand for the last word")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish", "words"}));
  command->add_option("words", *words, "words of a command line, after dtopp and --");
  command->callback([shell, words, &app] {
    if (*shell == "words")
      for (const std::string& word : candidates(app, *words)) std::puts(word.c_str());
    else
      std::printf("%s%s", *shell == "zsh" ? kZsh : "", *shell == "fish" ? kFish : kBash);
  });
}

}  // namespace dtopp::cli
