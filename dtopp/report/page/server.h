// Serves a report over HTTP on the loopback interface.
#pragma once

#include <cstdint>
#include <string>

#include "dtopp/report/page/live_report.h"

namespace dtopp::report {

// GET / returns the page and GET /update?since=N its update. Other paths return 404; requests with another
// Host header return 403.
class ReportServer {
 public:
  // With `port` 0 the system chooses a free port. Throws UsageError if the port cannot be opened.
  explicit ReportServer(uint16_t port);
  ~ReportServer();
  ReportServer(const ReportServer&) = delete;
  ReportServer& operator=(const ReportServer&) = delete;

  std::string address() const;  // "http://127.0.0.1:8123/"
  // Serves requests until stop(), which is called several times per second, returns true.
  void serve(LiveReport& report, bool (*stop)());

 private:
  int listener_ = -1;
};

}  // namespace dtopp::report
