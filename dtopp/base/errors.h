// Errors that end a command, one type per exit status.
//
// Each message is one line: what is wrong, where (file, line or byte, step), and what to do. Only cli/
// catches and prints these errors.
#pragma once

#include <stdexcept>
#include <string>

namespace dtopp {

enum class ExitStatus : int {
  kDone = 0,
  kUsage = 2,       // wrong usage or configuration, also a missing configuration file
  kData = 3,        // missing, truncated or damaged input data; an output that cannot be written
  kCheckpoint = 4,  // a checkpoint does not verify
  kResource = 5,    // out of memory, device failure
  kNumerical = 6,   // non-finite beyond the allowed skips
  kStopped = 75,    // stopped by a signal or a deadline after saving; the same command resumes the run
};

class Error : public std::runtime_error {
 public:
  Error(ExitStatus status, const std::string& message) : std::runtime_error(message), status_(status) {}
  ExitStatus status() const { return status_; }

 private:
  ExitStatus status_;
};

template <ExitStatus kStatus>
struct ErrorOf : Error {
  explicit ErrorOf(const std::string& message) : Error(kStatus, message) {}
};

using UsageError = ErrorOf<ExitStatus::kUsage>;
using DataError = ErrorOf<ExitStatus::kData>;
using CheckpointError = ErrorOf<ExitStatus::kCheckpoint>;
using ResourceError = ErrorOf<ExitStatus::kResource>;
using NumericalError = ErrorOf<ExitStatus::kNumerical>;
using Stopped = ErrorOf<ExitStatus::kStopped>;

}  // namespace dtopp
