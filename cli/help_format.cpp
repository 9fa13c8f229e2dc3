#include "cli/help_format.h"

#include <algorithm>
#include <sstream>

namespace dtopp::cli {
namespace {

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

}  // namespace

std::string HelpFormat::make_description(const CLI::App* app) const {
  return wrapped(CLI::Formatter::make_description(app), kWidth) + "\n";
}

// CLI11 puts the text behind the option's name.
std::string HelpFormat::make_option_opts(const CLI::Option* option) const {
  const size_t name = make_option_name(option, option->get_positional()).size() + 3;
  const std::string text =
      wrapped(CLI::Formatter::make_option_opts(option), kWidth - std::min(name, kWidth / 2));
  return text.empty() ? "" : " " + CLI::detail::find_and_replace(text, "\n", "\n      ");
}

std::string HelpFormat::make_option_desc(const CLI::Option* option) const {
  return wrapped(option->get_description(), kWidth - get_column_width());
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  std::ostringstream out;
  CLI::detail::format_help(out, command->get_display_name(true),
                           wrapped(command->get_description(), kWidth - get_column_width()),
                           get_column_width());
  return out.str();
}

}  // namespace dtopp::cli
