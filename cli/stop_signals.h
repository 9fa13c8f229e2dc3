// Handles SIGTERM, SIGINT and SIGHUP (a closed terminal): the command saves and stops. A second SIGTERM or
// SIGINT at least a tenth of a second later ends the process immediately. An ignored SIGHUP stays ignored.
#pragma once

#include "dtopp/base/stop_token.h"

namespace dtopp::cli {

// Selects how a process that does not stop in time is ended.
enum class Impatience {
  kSecondSignal,  // a second signal ends it
  kLauncher,      // only its launcher kills it: one request may arrive as several forwarded signals
};

// Installs the handlers for the rest of the process.
void stop_on_signals(Impatience impatience = Impatience::kSecondSignal);

// Returns true after a signal has arrived.
bool stop_requested();

// The same as a value.
StopToken stop_token();

}  // namespace dtopp::cli
