#include "dtopp/checkpoint/checkpoint_layout.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <system_error>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/path_kind.h"

namespace dtopp::checkpoint {
namespace {

namespace fs = std::filesystem;

// nullopt if the name is not that of a step.
std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  const auto digits = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
  if (digits.size() < 8 || digits.size() > 18 || digits.find_first_not_of("0123456789") != digits.npos)
    return std::nullopt;
  const int64_t step = std::stoll(digits);
  return checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

}  // namespace

std::string part_file(std::string_view kind, size_t number, size_t count) {
  return std::string(kind) + format("-%05zu-of-%05zu.safetensors", number, count);
}

bool is_optimizer_file(std::string_view name) {
  return name == whole_file(kOptimizer) || name == index_file(kOptimizer) ||
         (name.starts_with("optimizer-") && name.ends_with(".safetensors"));
}

std::string checkpoint_name(int64_t step) { return format("step-%08lld", static_cast<long long>(step)); }

bool is_checkpoint_name(const std::string& name) { return step_of(name).has_value(); }

std::vector<int64_t> list_checkpoint_steps(const fs::path& checkpoints) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end; it.increment(error)) {
    const auto step = step_of(it->path().filename().string());
    if (step && path_kind(it->path()) == PathKind::kDirectory) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw file_error("list", checkpoints, error.value());
  std::ranges::sort(steps, std::greater());
  return steps;
}

}  // namespace dtopp::checkpoint
