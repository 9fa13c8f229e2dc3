// Errors that end a command, one type per exit status.
//
// Each message is one line: what is wrong, where (file, line or byte, step), and what to do. Only cli/
// catches and prints these errors.
#pragma once

#include <concepts>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dtopp {

namespace fs = std::filesystem;

enum class ExitStatus : int {
  kDone = 0,
  kUsage = 2,       // wrong usage or configuration, also a missing configuration file
  kData = 3,        // missing, truncated or damaged input data; an output that cannot be written
  kCheckpoint = 4,  // a checkpoint does not verify
  kResource = 5,    // out of memory, device failure
  kNumerical = 6,   // non-finite beyond the allowed skips
  kStopped = 75,    // stopped by a signal or a deadline after saving; the same command resumes the run
};

// The parts one after another: texts, paths and whole numbers.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  const auto append = [&]<class Part>(const Part& part) {
    if constexpr (std::same_as<Part, fs::path>)
      text += part.native();
    else if constexpr (std::integral<Part> && !std::same_as<Part, bool> && !std::same_as<Part, char>)
      text += std::to_string(part);
    else
      text += std::string_view(part);
  };
  (append(parts), ...);
  return text;
}

// Each error takes the parts of its message, as concat() does.
class Error : public std::runtime_error {
 public:
  template <class... Parts>
  explicit Error(ExitStatus status, const Parts&... message)
      : std::runtime_error(concat(message...)), status_(status) {}
  ExitStatus status() const { return status_; }

 private:
  ExitStatus status_;
};

template <ExitStatus kStatus>
struct ErrorOf : Error {
  template <class... Parts>
  explicit ErrorOf(const Parts&... message) : Error(kStatus, message...) {}
};

using UsageError = ErrorOf<ExitStatus::kUsage>;
using DataError = ErrorOf<ExitStatus::kData>;
using CheckpointError = ErrorOf<ExitStatus::kCheckpoint>;
using ResourceError = ErrorOf<ExitStatus::kResource>;
using NumericalError = ErrorOf<ExitStatus::kNumerical>;
using Stopped = ErrorOf<ExitStatus::kStopped>;

}  // namespace dtopp
