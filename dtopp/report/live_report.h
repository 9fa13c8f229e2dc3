// Keeps a report up to date while its runs are training.
#pragma once

#include "dtopp/http/server.h"
#include "dtopp/report/document.h"
#include "dtopp/report/input.h"

namespace dtopp::report {
class LiveReport {
 public:
  // Reads all inputs. Throws as read_report_input does.
  LiveReport(std::vector<fs::path> paths, FindCost find_cost);

  std::string page();
  // Returns the update for a page with generation `since`, as JSON. It includes the error of the last read,
  // if any.
  std::string news(uint64_t since);

 private:
  // Size and modification time of every input file.
  using State = std::map<fs::path, std::pair<uintmax_t, int64_t>>;
  State state() const;
  void read();
  // Reads all inputs again if a file has changed.
  void refresh();

  std::vector<fs::path> paths_;
  FindCost find_cost_ = nullptr;
  std::vector<fs::path> folders_;  // folders of runs
  State state_;
  Columns columns_;
  ReportDocument document_;
  std::optional<std::string> trouble_;
};

// Serves a report over HTTP on the loopback interface. GET on the address returns the page, and GET
// update?since=N below it the page's update. The address contains a random token, so other users of the
// machine cannot read the report. Everything else returns 404.
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
