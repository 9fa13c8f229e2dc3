// Makes standard input, output and error safe for a long-running program.
#pragma once

#include <string>

namespace dtopp::cli {

// Prints the line "dtopp: TEXT" to standard error.
void print_message(const std::string& text);

// Sets up signals and standard streams; call it before anything else.
//
// A write to a closed pipe or beyond a file-size limit then returns an error instead of killing the process.
// A run therefore continues without its console. Streams that the caller closed stay unusable: no file that
// is opened later gets their descriptor and receives text meant for them.
void guard_standard_streams();

// Flushes standard output. Throws DataError if it cannot be written.
void flush_standard_output();

// Flushes all streams and ends the process. Skips the destructors of the libraries' static objects, which
// take longer than many commands.
[[noreturn]] void end_process(int status);

}  // namespace dtopp::cli
