// What is said about a command line that cannot be read.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace dtopp::cli {

// CLI11's words; but an unknown verb or option is named, with the nearest one there is, since what CLI11 then
// finds missing only follows from it.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

}  // namespace dtopp::cli
