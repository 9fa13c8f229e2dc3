// Serves a report over HTTP on the loopback interface.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dtopp/report/page/live_report.h"

namespace dtopp::report {

// GET on the address returns the page, and GET update?since=N below it the page's update. The address
// contains a random token, so other users of the machine cannot read the report. Everything else returns 404.
class ReportServer {
 public:
  // With `port` 0 the system chooses a free port. Throws UsageError if the port cannot be opened.
  explicit ReportServer(uint16_t port);
  ~ReportServer();

  std::string address() const;  // "http://127.0.0.1:8123/5f0c…/"
  // Serves requests until stop(), which is called several times per second, returns true. A slow client is
  // disconnected 10 seconds after it connected, or 30 seconds after its answer began. A server serves once.
  void serve(LiveReport& report, bool (*stop)());

 private:
  struct Listener;
  std::unique_ptr<Listener> listener_;
};

}  // namespace dtopp::report
