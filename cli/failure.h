// What an exception means to whoever started the program.
#pragma once

#include <exception>
#include <string>

#include "dtopp/base/errors.h"

namespace dtopp::cli {

struct Failure {
  ExitStatus status;
  std::string message;  // one line whatever it quotes
};

Failure failure_of(const std::exception& error);

}  // namespace dtopp::cli
