// Formats --help in lines of at most 100 characters.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace dtopp::cli {

class HelpFormat : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* app) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

}  // namespace dtopp::cli
