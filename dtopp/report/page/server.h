// Serves a report over HTTP on the loopback interface.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "dtopp/report/page/live_report.h"

namespace dtopp {

struct ServerHooks {
  std::function<void(const std::string& address)> listening;  // "http://127.0.0.1:8123/"
  std::function<bool()> stop;                                 // called several times per second
};

// Serves requests until hooks.stop() returns true.
//
// GET / returns the page and GET /update?since=N its update. Other paths return 404; requests with another
// Host header return 403. With `port` 0 the system chooses a free port.
//
// Throws: UsageError if the port cannot be opened
void serve_report(LiveReport& report, uint16_t port, const ServerHooks& hooks);

}  // namespace dtopp
