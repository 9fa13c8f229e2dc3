// Serves a report over HTTP on the loopback interface.
#pragma once

#include <cstdint>
#include <string>

#include "dtopp/http/server.h"
#include "dtopp/report/page/live_report.h"

namespace dtopp::report {

// GET on the address returns the page, and GET update?since=N below it the page's update. The address
// contains a random token, so other users of the machine cannot read the report. Everything else returns 404.
class ReportServer final : private http::Handler {
 public:
  // With `port` 0 the system chooses a free port. Throws UsageError if the port cannot be opened.
  explicit ReportServer(uint16_t port);

  std::string address() const;  // "http://127.0.0.1:8123/5f0c…/"
  // Serves requests until `stop`. A slow client is disconnected 10 seconds after it connected, or 30 seconds
  // after its answer began. A server serves once.
  void serve(LiveReport& report, const StopToken& stop);

 private:
  void handle(const http::Request& request, std::shared_ptr<http::Exchange> exchange) override;
  http::Answer refuse(int status) override;

  http::Server server_;
  std::string root_;
  LiveReport* report_ = nullptr;
};

}  // namespace dtopp::report
