#include "dtopp/distributed/membership/failure.h"

#include <filesystem>
#include <string_view>

namespace dtopp::distributed {
namespace {

std::string one_line(std::string text) {
  text.resize(text.find_last_not_of("\n\r ") + 1);
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

}  // namespace

bool is_out_of_host_memory(const c10::Error& error) {
  return std::string_view(error.what_without_backtrace()).find("DefaultCPUAllocator: ") !=
         std::string_view::npos;
}

Failure failure_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return {own->status(), one_line(own->what())};
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return {ExitStatus::kData, one_line(file->path1().string() + ": " + file->code().message())};
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr || (torch && is_out_of_host_memory(*torch)))
    return {ExitStatus::kResource, "out of memory: free some, or use a machine with more"};
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr)
    return {ExitStatus::kResource, "out of device memory: free some, or use a device with more"};
  if (torch != nullptr) return {ExitStatus::kResource, one_line(torch->what_without_backtrace())};
  return {ExitStatus::kResource, one_line(error.what())};
}

}  // namespace dtopp::distributed
