// Converts an exception to the program's exit status and error message.
#pragma once

#include <exception>
#include <string>

#include "dtopp/base/errors.h"

namespace dtopp::distributed {

struct Failure {
  ExitStatus status;
  std::string message;  // always a single line
};

Failure failure_of(const std::exception& error);

}  // namespace dtopp::distributed
