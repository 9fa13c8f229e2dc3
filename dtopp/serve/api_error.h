// The errors of the HTTP interface, as OpenAI's clients expect them.
#pragma once

#include <stdexcept>
#include <string>

#include "dtopp/http/server.h"

namespace dtopp::serve {

// A request that is refused with this status.
struct ApiError : std::runtime_error {
  ApiError(int status, const std::string& message, std::string field = "")
      : std::runtime_error(message), status(status), field(std::move(field)) {}
  int status;
  std::string field;  // the member of the request that is wrong; empty: none
};

// {"error": {"message", "type", "param", "code"}}
http::Answer error_answer(const ApiError& error);

}  // namespace dtopp::serve
