#include "dtopp/serve/service.h"

#include <ctime>

#include <nlohmann/json.hpp>

#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/serve/playground_files.h"

namespace dtopp::serve {
namespace {

constexpr char kCompletions[] = "/v1/completions";
constexpr std::string_view kModels = "/v1/models";

http::Answer json_answer(int status, const ordered_json& body) {
  return {status, "application/json", dump_json(body) + "\n"};
}

// Returns whether a header field Host names this machine's loopback interface.
bool is_loopback(std::string_view host) {
  const std::string_view name =
      host.starts_with('[') ? host.substr(0, host.find(']') + 1) : host.substr(0, host.find(':'));
  return name == "localhost" || name == "127.0.0.1" || name == "[::1]";
}

// Takes the same time wherever the texts differ.
bool is_same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

std::string page() {
  std::string text =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
      "'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri "
      "'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>dtopp serve</title>\n<style>\n";
  text.append(kReportStyle).append(kPlaygroundStyle).append("</style>\n</head>\n<body>\n");
  text.append(kPlaygroundBody).append("<script>\n\"use strict\";\n").append(kPlaygroundScript);
  return text + "</script>\n</body>\n</html>\n";
}

}  // namespace

Service::Service(const ServedModel& model, const data::Tokenizer& tokenizer, inference::Scheduler& scheduler,
                 Metrics& metrics, std::string token, StopToken stop)
    : model_(model),
      tokenizer_(tokenizer),
      scheduler_(scheduler),
      metrics_(metrics),
      token_(std::move(token)),
      stop_(stop),
      started_(std::time(nullptr)) {}

void Service::handle(const http::Request& request, std::shared_ptr<http::Exchange> exchange) {
  const std::string_view path = std::string_view(request.target).substr(0, request.target.find('?'));
  try {
    check_access(request, path);
    if (path == kCompletions && request.method == "POST") return complete(request, exchange);
    exchange->answer(answer_to(request, path));
  } catch (const ApiError& error) {
    exchange->answer(error_answer(error));
  }
}

void Service::check_access(const http::Request& request, std::string_view path) const {
  if (path == "/" || path == "/health") return;
  if (!token_.empty()) {
    constexpr std::string_view kBearer = "Bearer ";
    const std::string_view given = request.authorization;
    if (!given.starts_with(kBearer) || !is_same_secret(given.substr(kBearer.size()), token_))
      throw ApiError(401, "the request needs the header field Authorization: Bearer TOKEN");
    return;
  }
  // A browser sends Origin. A page of another server, or of a name that leads here, must not use the model.
  if (!request.origin.empty() && (request.origin != "http://" + request.host || !is_loopback(request.host)))
    throw ApiError(403, "the page " + request.origin + " may not use this server");
}

http::Answer Service::answer_to(const http::Request& request, std::string_view path) const {
  const bool is_model = path == kModels || path == std::string(kModels) + "/" + model_.name;
  if (path == kCompletions) throw ApiError(405, std::string(path) + ": needs POST");
  if (!is_model && path != "/" && path != "/health" && path != "/metrics")
    throw ApiError(404,
                   std::string(path) + ": there is no such path; POST " + kCompletions + " completes a text");
  if (request.method != "GET") throw ApiError(405, std::string(path) + ": needs GET");
  if (path == "/") return {.type = "text/html; charset=utf-8", .body = page()};
  if (path == "/metrics")
    return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_.text(scheduler_)};
  if (path == "/health") {
    if (stop_.stop_requested()) return json_answer(503, {{"status", "stopping"}});
    return json_answer(200, {{"status", "ok"}});
  }
  ordered_json model = {{"id", model_.name},
                        {"object", "model"},
                        {"created", started_},
                        {"owned_by", "dtopp"},
                        {"sequence_length", model_.sequence_length},
                        {"num_experts", model_.num_experts},
                        {"largest_target_experts", model_.budgets.empty() ? 0 : *model_.budgets.rbegin()},
                        {"solved_target_experts", scheduler_.budgets()}};
  if (path != kModels) return json_answer(200, model);
  return json_answer(200, {{"object", "list"}, {"data", ordered_json::array({std::move(model)})}});
}

void Service::complete(const http::Request& request, const std::shared_ptr<http::Exchange>& exchange) {
  std::shared_ptr<Completion> completion;
  try {
    CompletionRequest read = read_completion_request(request.body, model_, tokenizer_);
    std::vector<inference::SequenceInput> sequences = sequences_of(read);
    for (const inference::SequenceInput& sequence : sequences) {
      const int64_t needed = inference::Scheduler::reservation(sequence);
      if (needed > scheduler_.limits().cache_tokens)
        throw ApiError(400,
                       format("max_tokens: the request needs a cache of %ld tokens, and --kv-tokens is %ld",
                              needed, scheduler_.limits().cache_tokens),
                       "max_tokens");
    }
    completion = std::make_shared<Completion>(std::move(read), model_, tokenizer_, metrics_, exchange);
    using enum inference::Scheduler::Admission;
    const auto admission =
        stop_.stop_requested() ? kClosed : scheduler_.submit(std::move(sequences), completion);
    if (admission == kFull) throw ApiError(429, "the queue is full; try again later");
    if (admission == kClosed) throw ApiError(503, "the server stops");
  } catch (const ApiError& error) {
    if (completion) return completion->refuse(error);
    metrics_.count_request(error.status, 0);
    throw;
  }
}

http::Answer Service::refuse(int status) {
  if (status != 503) metrics_.count_request(status, 0);  // a completion that took too long counts itself
  static const std::map<int, const char*> kReasons = {{408, "the rest of the request did not arrive in time"},
                                                      {413, "the request's body is too large"},
                                                      {431, "the request's header is too large"},
                                                      {503, "the answer took longer than --timeout"}};
  const auto reason = kReasons.find(status);
  return error_answer({status, reason == kReasons.end() ? "not an HTTP request" : reason->second});
}

}  // namespace dtopp::serve
