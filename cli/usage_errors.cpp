#include "cli/usage_errors.h"

#include <algorithm>
#include <vector>

#include "dtopp/config/config.h"

namespace dtopp::cli {
namespace {

// Returns the innermost command of the command line: "text" for `dtopp prepare text …`.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list.append(list.empty() ? "" : ", ").append(name);
  return list;
}

std::string unknown(const char* what, const std::string& word, const std::vector<std::string>& known) {
  return "unknown " + std::string(what) + " " + config::quote_for_message(word) + "; " +
         config::suggest(word, known, "known:", known);
}

// "write training.steps=10 without dashes" for an option that is a configuration value; empty for another
// one.
std::string override_hint(const CLI::App& verb, const std::string& word) {
  if (verb.get_option_no_throw("overrides") == nullptr) return "";
  const std::string setting = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  const std::string key = setting.substr(0, setting.find('='));
  if (key.find('.') == std::string::npos && key != "method" && key != "name" && key != "output") return "";
  return "write " + (key == setting ? key + "=VALUE" : setting) + " without dashes";
}

}  // namespace

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& verb = innermost(app);
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    if (word == "--") continue;
    if (const std::string hint = override_hint(verb, word); word.starts_with("-") && !hint.empty())
      return "unknown option " + config::quote_for_message(word) + "; " + hint;
    if (word.starts_with("-")) return unknown("option", word.substr(0, word.find('=')), options_of(verb));
    const std::vector<std::string> verbs = verbs_of(verb);
    const bool is_nested = verb.get_parent() != nullptr;  // "prepare", "evaluate", "convert"
    if (is_nested && verb.get_require_subcommand_min() > 0 && config::nearest_key(word, verbs).empty())
      return verb.get_name() + " needs a command before " + config::quote_for_message(word) + ": " +
             list_of(verbs);
    if (!verbs.empty()) return unknown("command", word, verbs);
  }
  if (verb.get_require_subcommand_min() > 0)
    return verb.get_parent() == nullptr ? "a command is required"
                                        : verb.get_name() + " needs a command: " + list_of(verbs_of(verb));
  const bool excludes = dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr;
  return std::string(error.what()) + (excludes ? "; give one of them" : "");
}

}  // namespace dtopp::cli
