#include "dtopp/serve/api_error.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"

namespace dtopp::serve {
namespace {

const char* type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

http::Answer error_answer(const ApiError& error) {
  nlohmann::ordered_json body = {
      {"message", error.what()}, {"type", type_of(error.status)}, {"param", nullptr}, {"code", nullptr}};
  if (!error.field.empty()) body["param"] = error.field;
  if (error.status == 404 && error.field == "model") body["code"] = "model_not_found";
  http::Answer answer{error.status, "application/json", dump_json({{"error", body}}) + "\n"};
  if (error.status == 401) answer.fields = {{"WWW-Authenticate", "Bearer"}};
  if (error.status == 429 || error.status == 503) answer.fields = {{"Retry-After", "1"}};
  return answer;
}

}  // namespace dtopp::serve
