#include "dtopp/ops/moe_ffn/cuda/tune/kernel_table.h"

#include <cstdlib>
#include <span>

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"

namespace dtopp::ops {
namespace {

constexpr uint64_t kMostBytes = 1 << 16;

// Empty if the variable is not set or its path is relative.
std::filesystem::path directory_of(const char* variable) {
  const char* value = std::getenv(variable);
  const std::filesystem::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : std::filesystem::path();
}

}  // namespace

FusedKernelSet taken_kernels(const KernelTable& table) {
  FusedKernelSet fused;
  for (const TunedGemm& tuned : table) fused.set(static_cast<size_t>(tuned.gemm), tuned.takes_fused());
  return fused;
}

nlohmann::ordered_json tuned_gemm_json(const TunedGemm& tuned) {
  nlohmann::ordered_json json = {{"gemm", tuned.name()}, {"kernel", tuned.kernel()}};
  if (!tuned.failure.empty()) {
    json["failure"] = tuned.failure;
    return json;
  }
  json["fused_error"] = tuned.fused_error;
  json["grouped_error"] = tuned.grouped_error;
  json["fused_milliseconds"] = tuned.fused_milliseconds;
  json["grouped_milliseconds"] = tuned.grouped_milliseconds;
  return json;
}

TunedGemm read_tuned_gemm(const JsonFields& fields) {
  const std::string name = fields.text("gemm");
  const auto gemm = expert_gemm_named(name);
  if (!gemm) fields.fail("gemm", "'" + name + "' is not a GEMM of moe_ffn");
  TunedGemm read{.gemm = *gemm};
  if (fields.has("failure")) {
    read.failure = fields.text("failure");
    return read;
  }
  const auto number = [&](const char* key) { return fields.numbers(key).front(); };
  read.fused_error = number("fused_error");
  read.grouped_error = number("grouped_error");
  read.fused_milliseconds = number("fused_milliseconds");
  read.grouped_milliseconds = number("grouped_milliseconds");
  return read;
}

nlohmann::ordered_json kernel_table_json(const KernelTable& table) {
  auto gemms = nlohmann::ordered_json::array();
  for (const TunedGemm& tuned : table) gemms.push_back(tuned_gemm_json(tuned));
  return gemms;
}

std::filesystem::path kernel_table_directory() {
  const auto cache = directory_of("XDG_CACHE_HOME"), home = directory_of("HOME");
  if (!cache.empty()) return cache / "dtopp";
  return home.empty() ? home : home / ".cache/dtopp";
}

std::filesystem::path kernel_table_path(const std::filesystem::path& directory, const TunedDevice& device) {
  const std::string key = device.name + "\n" + std::to_string(device.driver) + "\n" + device.library;
  return directory / ("expert_gemms-" + hash_bytes(std::as_bytes(std::span(key))).substr(0, 16) + ".json");
}

std::optional<KernelTable> read_kernel_table(const std::filesystem::path& path, const TunedDevice& device) {
  try {
    const JsonFields fields(read_file(path, kMostBytes), path.string());
    if (fields.text("device") != device.name || fields.integer("driver") != device.driver ||
        fields.text("library") != device.library)
      return std::nullopt;
    KernelTable table;
    FusedKernelSet read;
    for (const JsonFields& gemm : fields.objects("gemms")) {
      table.push_back(read_tuned_gemm(gemm));
      read.set(static_cast<size_t>(table.back().gemm));
    }
    if (!read.all() || table.size() != read.size()) return std::nullopt;
    return table;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

void write_kernel_table(const std::filesystem::path& path, const TunedDevice& device,
                        const KernelTable& table) {
  const nlohmann::ordered_json file = {{"device", device.name},
                                       {"driver", device.driver},
                                       {"library", device.library},
                                       {"gemms", kernel_table_json(table)}};
  write_file_atomically(path, dump_json(file, 1) + "\n");
}

}  // namespace dtopp::ops
