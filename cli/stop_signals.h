// SIGTERM and SIGINT ask a verb to save and stop; a second one, a tenth of a second or more later, ends the
// process at once.
#pragma once

namespace dtopp::cli {

// Who ends a process that does not stop in time.
enum class Impatience {
  kSecondSignal,
  kLauncher,  // its launcher passes signals on, so that one request can come as several; it kills when asked
};

// Installs the handlers for the rest of the process.
void stop_on_signals(Impatience impatience = Impatience::kSecondSignal);

// True once a signal has come.
bool stop_requested();

}  // namespace dtopp::cli
