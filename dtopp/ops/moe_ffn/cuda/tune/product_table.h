// What a check of moe_ffn's products on a CUDA device has found, and the file it is kept in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/json_fields.h"
#include "dtopp/ops/moe_ffn/moe_products.h"

namespace dtopp {

// One product by an own kernel, beside torch's grouped product with the kernels round it.
struct CheckedProduct {
  MoeProduct product{};
  // Why the check of it gave no numbers ("killed by signal 11 (…)", "no end in 60 s"); then those below are
  // 0.
  std::string failure{};
  double own_error = 0, grouped_error = 0;                // of the worst number, against fp32
  double own_milliseconds = 0, grouped_milliseconds = 0;  // of a layer of 8 experts

  // Pre-activations, activations and results are rounded to bf16, 2^-9 of them each at most.
  static constexpr double kMostError = 1.0 / 64;
  // Less is within what times differ by from one measurement to the next.
  static constexpr double kLeastGain = 1.03;

  bool is_right() const { return failure.empty() && own_error <= kMostError; }
  bool is_own_taken() const { return is_right() && own_milliseconds * kLeastGain <= grouped_milliseconds; }
  std::string_view name() const { return kMoeProductNames[static_cast<size_t>(product)]; }
};

using ProductTable = std::vector<CheckedProduct>;  // of every product

OwnProducts taken_products(const ProductTable& table);

// {"product", "kernel": "own"|"grouped_mm", "own_error", …} or {"product", "kernel", "failure"}. DataError
// where it is not that.
nlohmann::ordered_json checked_product_json(const CheckedProduct& checked);
CheckedProduct read_checked_product(const JsonFields& fields);
nlohmann::ordered_json product_table_json(const ProductTable& table);  // an array of them

// What a table holds for.
struct CheckedDevice {
  std::string name;     // "NVIDIA H200"
  int64_t driver = 0;   // CUDA's version that it knows
  std::string library;  // the hash of libdtopp_cuda.so
};

// Where tables are kept: dtopp/ in XDG_CACHE_HOME or ~/.cache. Empty where neither is known.
std::filesystem::path product_table_directory();

// The table's file in a directory.
std::filesystem::path product_table_path(const std::filesystem::path& directory, const CheckedDevice& device);

// nullopt where the file is not there, cannot be read, or is not of this device or not whole.
std::optional<ProductTable> read_product_table(const std::filesystem::path& path,
                                               const CheckedDevice& device);
// DataError where it cannot be written.
void write_product_table(const std::filesystem::path& path, const CheckedDevice& device,
                         const ProductTable& table);

}  // namespace dtopp
