#include "dtopp/ops/moe_ffn/cuda/tune/product_table.h"

#include <cstdlib>
#include <span>

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"

namespace dtopp {
namespace {

constexpr uint64_t kMostBytes = 1 << 16;

// Empty if the variable is not set or its path is relative.
std::filesystem::path directory_of(const char* variable) {
  const char* value = std::getenv(variable);
  const std::filesystem::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : std::filesystem::path();
}

}  // namespace

FusedKernelSet taken_products(const ProductTable& table) {
  FusedKernelSet fused;
  for (const CheckedProduct& checked : table)
    fused.set(static_cast<size_t>(checked.product), checked.is_fused_taken());
  return fused;
}

nlohmann::ordered_json checked_product_json(const CheckedProduct& checked) {
  nlohmann::ordered_json json = {{"product", checked.name()},
                                 {"kernel", checked.is_fused_taken() ? "own" : "grouped_mm"}};
  if (!checked.failure.empty()) {
    json["failure"] = checked.failure;
    return json;
  }
  json["own_error"] = checked.fused_error;
  json["grouped_error"] = checked.grouped_error;
  json["own_milliseconds"] = checked.fused_milliseconds;
  json["grouped_milliseconds"] = checked.grouped_milliseconds;
  return json;
}

CheckedProduct read_checked_product(const JsonFields& fields) {
  const std::string name = fields.text("product");
  const auto product = expert_gemm_named(name);
  if (!product) fields.fail("product", "'" + name + "' is not a product of moe_ffn");
  CheckedProduct read{.product = *product};
  if (fields.has("failure")) {
    read.failure = fields.text("failure");
    return read;
  }
  const auto number = [&](const char* key) { return fields.numbers(key).front(); };
  read.fused_error = number("own_error");
  read.grouped_error = number("grouped_error");
  read.fused_milliseconds = number("own_milliseconds");
  read.grouped_milliseconds = number("grouped_milliseconds");
  return read;
}

nlohmann::ordered_json product_table_json(const ProductTable& table) {
  auto products = nlohmann::ordered_json::array();
  for (const CheckedProduct& checked : table) products.push_back(checked_product_json(checked));
  return products;
}

std::filesystem::path product_table_directory() {
  const auto cache = directory_of("XDG_CACHE_HOME"), home = directory_of("HOME");
  if (!cache.empty()) return cache / "dtopp";
  return home.empty() ? home : home / ".cache/dtopp";
}

std::filesystem::path product_table_path(const std::filesystem::path& directory,
                                         const CheckedDevice& device) {
  const std::string key = device.name + "\n" + std::to_string(device.driver) + "\n" + device.library;
  return directory / ("products-" + hash_bytes(std::as_bytes(std::span(key))).substr(0, 16) + ".json");
}

std::optional<ProductTable> read_product_table(const std::filesystem::path& path,
                                               const CheckedDevice& device) {
  try {
    const JsonFields fields(read_file(path, kMostBytes), path.string());
    if (fields.text("device") != device.name || fields.integer("driver") != device.driver ||
        fields.text("library") != device.library)
      return std::nullopt;
    ProductTable table;
    FusedKernelSet read;
    for (const JsonFields& product : fields.objects("products")) {
      table.push_back(read_checked_product(product));
      read.set(static_cast<size_t>(table.back().product));
    }
    if (!read.all() || table.size() != read.size()) return std::nullopt;
    return table;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

void write_product_table(const std::filesystem::path& path, const CheckedDevice& device,
                         const ProductTable& table) {
  const nlohmann::ordered_json file = {{"device", device.name},
                                       {"driver", device.driver},
                                       {"library", device.library},
                                       {"products", product_table_json(table)}};
  write_file_atomically(path, dump_json(file, 1) + "\n");
}

}  // namespace dtopp
