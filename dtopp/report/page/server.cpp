#include "dtopp/report/page/server.h"

#include <charconv>
#include <string_view>

namespace dtopp::report {
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
