// Declares the commands of `dtopp`. Each command has its own file.
//
// A command adds its options to the command line and sets the callback that runs it. main() prints an
// exception as one line and converts it to the exit status.
#pragma once

#include <CLI/CLI.hpp>

namespace dtopp::cli {

void add_prepare(CLI::App& app);
void add_train(CLI::App& app);
void add_replay(CLI::App& app);
void add_convert(CLI::App& app);
void add_devices(CLI::App& app);
void add_evaluate(CLI::App& app);
void add_new(CLI::App& app);
void add_plan(CLI::App& app);
void add_report(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_generate(CLI::App& app);
void add_serve(CLI::App& app);
void add_sample(CLI::App& app);
void add_study(CLI::App& app);
void add_completion(CLI::App& app);

// The names of the commands in `app`, and of its options: "--output".
std::vector<std::string> command_names(const CLI::App& app);
std::vector<std::string> option_names(const CLI::App& app);

}  // namespace dtopp::cli
