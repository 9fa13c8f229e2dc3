// The HTTP interface of `dtopp serve`:
//
//   GET  /                  the playground page
//   GET  /health            200, or 503 while it stops
//   GET  /v1/models[/NAME]  the served model
//   POST /v1/completions    OpenAI's completions
//   GET  /metrics           counters for Prometheus
#pragma once

#include "dtopp/base/stop.h"
#include "dtopp/http/server.h"
#include "dtopp/inference/scheduler.h"
#include "dtopp/serve/completion.h"
#include "dtopp/serve/completion_request.h"

namespace dtopp::serve {

class Service final : public http::Handler {
 public:
  // The references must outlive the object. `token`: what clients send as "Authorization: Bearer TOKEN",
  // except for the page and /health; empty: none is needed, and pages of other servers are refused.
  Service(const ServedModel& model, const data::Tokenizer& tokenizer, inference::Scheduler& scheduler,
          Metrics& metrics, std::string token, StopToken stop);

  void handle(const http::Request& request, std::shared_ptr<http::Exchange> exchange) override;
  http::Answer refuse(int status) override;

 private:
  http::Answer answer_to(const http::Request& request, std::string_view path) const;
  void check_access(const http::Request& request, std::string_view path) const;
  void complete(const http::Request& request, const std::shared_ptr<http::Exchange>& exchange);

  const ServedModel& model_;
  const data::Tokenizer& tokenizer_;
  inference::Scheduler& scheduler_;
  Metrics& metrics_;
  std::string token_;
  StopToken stop_;
  int64_t started_;
};

}  // namespace dtopp::serve
