// Explains errors in the command line.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace dtopp::cli {

// Returns the message for a parse error. An unknown command or option is reported first, with the nearest
// known name, because it often causes the error that CLI11 reports. Otherwise the message is CLI11's.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

}  // namespace dtopp::cli
