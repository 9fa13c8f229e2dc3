#include "dtopp/report/live_report.h"

#include <charconv>
#include <system_error>

#include "dtopp/base/errors.h"
#include "dtopp/report/page.h"
#include "dtopp/report/sections.h"

namespace dtopp::report {
LiveReport::LiveReport(std::vector<fs::path> paths, FindCost find_cost)
    : paths_(std::move(paths)), find_cost_(find_cost) {
  read();
  state_ = state();
}

void LiveReport::read() {
  ReportInput input = read_report_input(paths_, find_cost_);
  folders_ = std::move(input.folders);
  columns_.begin_generation();
  document_ = make_document(input, columns_);
}

LiveReport::State LiveReport::state() const {
  State state;
  const auto add = [&](const fs::path& file) {
    std::error_code error;
    const uintmax_t size = fs::file_size(file, error);
    if (error) return;
    state[file] = {size, fs::last_write_time(file, error).time_since_epoch().count()};
  };
  for (const fs::path& run : folders_) {
    add(run / "metrics.jsonl");
    for (const fs::path& folder : {run, run / "samples"}) {
      std::error_code error;
      for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (folder != run || it->path().extension() == ".json") add(it->path());
    }
  }
  for (const fs::path& path : paths_) {
    const fs::path folder = path.filename() == "study.json" ? path.parent_path() : path;
    for (const char* file : {"study.json", "curves.json"}) add(folder / file);
  }
  return state;
}

void LiveReport::refresh() {
  State now = state();
  if (now == state_) return;
  state_ = std::move(now);
  try {
    read();
    trouble_.reset();
  } catch (const Error& error) {
    trouble_ = error.what();
  }
}

std::string LiveReport::page() {
  refresh();
  return render_page(document_, columns_, columns_.generation());
}

std::string LiveReport::news(uint64_t since) {
  refresh();
  return news_json(document_, columns_, since, trouble_);
}

namespace {

constexpr int kBadRequest = 400, kNotFound = 404, kMethodNotAllowed = 405;
constexpr char kLoopback[] = "127.0.0.1";

}  // namespace

ReportServer::ReportServer(uint16_t port)
    : server_(kLoopback, port, {}, "--serve"), root_("/" + http::random_token() + "/") {}

std::string ReportServer::address() const {
  return "http://" + std::string(kLoopback) + ":" + std::to_string(server_.port()) + root_;
}

void ReportServer::serve(LiveReport& report, const StopToken& stop) {
  report_ = &report;
  server_.run(*this, stop);
}

void ReportServer::handle(const http::Request& request, std::shared_ptr<http::Exchange> exchange) {
  std::string_view target = request.target;
  if (!target.starts_with(root_)) return exchange->answer(refuse(kNotFound));
  if (request.method != "GET") return exchange->answer(refuse(kMethodNotAllowed));
  target.remove_prefix(root_.size());
  if (target.empty()) return exchange->answer({.type = "text/html; charset=utf-8", .body = report_->page()});
  constexpr std::string_view kUpdate = "update?since=";
  if (!target.starts_with(kUpdate)) return exchange->answer(refuse(kNotFound));
  target.remove_prefix(kUpdate.size());
  uint64_t since = 0;
  const auto [end, error] = std::from_chars(target.data(), target.data() + target.size(), since);
  if (error != std::errc{} || end != target.data() + target.size())
    return exchange->answer(refuse(kBadRequest));
  exchange->answer({.type = "application/json", .body = report_->news(since)});
}

http::Answer ReportServer::refuse(int status) {
  return {status, "text/plain; charset=utf-8", std::to_string(status) + "\n"};
}

}  // namespace dtopp::report
