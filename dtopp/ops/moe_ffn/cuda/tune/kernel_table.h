// Defines the result of the tuner (tuner.h) on a CUDA device, and stores it in a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/json.h"
#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"

namespace dtopp::ops {

// The fused kernel of one GEMM, compared with torch's grouped GEMM and the kernels around it.
struct TunedGemm {
  ExpertGemm gemm{};
  // The reason if the test gave no numbers ("killed by signal 11 (…)", "no end in 60 s"). The numbers are
  // then 0.
  std::string failure{};
  double fused_error = 0, grouped_error = 0;                // largest error of a value, relative to fp32
  double fused_milliseconds = 0, grouped_milliseconds = 0;  // for a layer of 8 experts

  // Pre-activations, activations and results are rounded to bf16, each by at most 2^-9 of its value.
  static constexpr double kMostError = 1.0 / 64;
  // Smaller gains are within the variation between measurements.
  static constexpr double kLeastGain = 1.03;

  bool is_right() const { return failure.empty() && fused_error <= kMostError; }
  bool takes_fused() const { return is_right() && fused_milliseconds * kLeastGain <= grouped_milliseconds; }
  std::string name() const { return std::string(kExpertGemmNames[static_cast<size_t>(gemm)]); }
  const char* kernel() const { return takes_fused() ? "fused" : "grouped_mm"; }
};

using KernelTable = std::vector<TunedGemm>;  // one entry per GEMM

FusedKernelSet taken_kernels(const KernelTable& table);

// Format: {"gemm", "kernel": "fused"|"grouped_mm", "fused_error", …} or {"gemm", "kernel", "failure"}.
// Reading throws DataError for anything else.
nlohmann::ordered_json tuned_gemm_json(const TunedGemm& tuned);
TunedGemm read_tuned_gemm(const JsonFields& fields);
nlohmann::ordered_json kernel_table_json(const KernelTable& table);  // an array of tuned GEMMs

// The key of a table.
struct TunedDevice {
  std::string name;     // "NVIDIA H200"
  int64_t driver = 0;   // the CUDA version that the driver supports
  std::string library;  // the hash of libdtopp_cuda.so
};

// The directory for tables: dtopp/ in XDG_CACHE_HOME or ~/.cache. Empty if neither is set.
std::filesystem::path kernel_table_directory();

// The path of the device's table in a directory.
std::filesystem::path kernel_table_path(const std::filesystem::path& directory, const TunedDevice& device);

// nullopt if the file is missing, unreadable, incomplete or for another device.
std::optional<KernelTable> read_kernel_table(const std::filesystem::path& path, const TunedDevice& device);
// DataError if the file cannot be written.
void write_kernel_table(const std::filesystem::path& path, const TunedDevice& device,
                        const KernelTable& table);

}  // namespace dtopp::ops
