// Defines the result of a check of moe_ffn's GEMMs on a CUDA device, and stores it in a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/json_fields.h"
#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"

namespace dtopp {

// Compares the fused kernel of one GEMM with torch's grouped GEMM and the kernels around it.
struct CheckedProduct {
  ExpertGemm product{};
  // The reason if the check gave no numbers ("killed by signal 11 (…)", "no end in 60 s"). The numbers are
  // then 0.
  std::string failure{};
  double fused_error = 0, grouped_error = 0;                // largest error of a value, relative to fp32
  double fused_milliseconds = 0, grouped_milliseconds = 0;  // for a layer of 8 experts

  // Pre-activations, activations and results are rounded to bf16, each by at most 2^-9 of its value.
  static constexpr double kMostError = 1.0 / 64;
  // Smaller gains are within the variation between measurements.
  static constexpr double kLeastGain = 1.03;

  bool is_right() const { return failure.empty() && fused_error <= kMostError; }
  bool is_fused_taken() const {
    return is_right() && fused_milliseconds * kLeastGain <= grouped_milliseconds;
  }
  std::string_view name() const { return kExpertGemmNames[static_cast<size_t>(product)]; }
};

using ProductTable = std::vector<CheckedProduct>;  // one entry per GEMM

FusedKernelSet taken_products(const ProductTable& table);

// Format: {"product", "kernel": "own"|"grouped_mm", "own_error", …} or {"product", "kernel", "failure"}.
// Reading throws DataError for anything else.
nlohmann::ordered_json checked_product_json(const CheckedProduct& checked);
CheckedProduct read_checked_product(const JsonFields& fields);
nlohmann::ordered_json product_table_json(const ProductTable& table);  // an array of checked products

// The key of a table.
struct CheckedDevice {
  std::string name;     // "NVIDIA H200"
  int64_t driver = 0;   // the CUDA version that the driver supports
  std::string library;  // the hash of libdtopp_cuda.so
};

// The directory for tables: dtopp/ in XDG_CACHE_HOME or ~/.cache. Empty if neither is set.
std::filesystem::path product_table_directory();

// The path of the device's table in a directory.
std::filesystem::path product_table_path(const std::filesystem::path& directory, const CheckedDevice& device);

// nullopt if the file is missing, unreadable, incomplete or for another device.
std::optional<ProductTable> read_product_table(const std::filesystem::path& path,
                                               const CheckedDevice& device);
// DataError if the file cannot be written.
void write_product_table(const std::filesystem::path& path, const CheckedDevice& device,
                         const ProductTable& table);

}  // namespace dtopp
