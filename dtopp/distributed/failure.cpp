#include "dtopp/distributed/failure.h"

#include <new>

#include <c10/util/Exception.h>

namespace dtopp::distributed {
namespace {

constexpr char kMemory[] = "memory", kDeviceMemory[] = "device memory";

std::string one_line(std::string text) {
  text.resize(text.find_last_not_of("\n\r ") + 1);
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return text;
}

}  // namespace

const char* lacking_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return kDeviceMemory;
  // libtorch has no exception type of its own for a CPU tensor that it cannot allocate.
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  const bool is_tensor =
      torch && std::string_view(torch->what_without_backtrace()).find("DefaultCPUAllocator: ") !=
                   std::string_view::npos;
  return is_tensor || dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? kMemory : nullptr;
}

Failure failure_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return {own->status(), one_line(own->what())};
  if (const auto* file = dynamic_cast<const fs::filesystem_error*>(&error))
    return {ExitStatus::kData, one_line(file->path1().string() + ": " + file->code().message())};
  if (const char* const memory = lacking_memory(error)) {
    const std::string place = memory == kDeviceMemory ? "device" : "machine";
    return {ExitStatus::kResource,
            "out of " + std::string(memory) + ": free some, or use a " + place + " with more"};
  }
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error))
    return {ExitStatus::kResource, one_line(torch->what_without_backtrace())};
  return {ExitStatus::kResource, one_line(error.what())};
}

}  // namespace dtopp::distributed
