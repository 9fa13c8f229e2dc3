// SIGTERM and SIGINT ask a verb to save and stop; a second one ends the process at once.
#pragma once

namespace dtopp::cli {

// Installs the handlers for the rest of the process.
void stop_on_signals();

// True once a signal has come.
bool stop_requested();

}  // namespace dtopp::cli
