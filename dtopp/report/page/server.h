// A report on this machine's loopback, by HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "dtopp/report/page/live_report.h"

namespace dtopp {

struct ServerHooks {
  std::function<void(const std::string& address)> listening;  // "http://127.0.0.1:8123/"
  std::function<bool()> stop;                                 // asked several times a second
};

// Answers GET / with the page and GET /update?since=N with its news, 404 to other paths and 403 to who names
// another host, until it is to stop. `port` 0: any that is free. UsageError where the port cannot be had.
void serve_report(LiveReport& report, uint16_t port, const ServerHooks& hooks);

}  // namespace dtopp
