// Standard input, output and error as a long-running program needs them.
#pragma once

#include <string>

namespace dtopp::cli {

// "dtopp: TEXT", a line of standard error.
void print_message(const std::string& text);

// Call first. A write to a pipe that nobody reads, or past a limit on file size, fails with an error instead
// of killing the process: a run whose console went away trains on. Streams that the caller closed stay
// unusable, so that no file opened later takes their number and the text meant for them.
void guard_standard_streams();

// Returns once everything printed has been taken; DataError when not.
void flush_standard_output();

}  // namespace dtopp::cli
