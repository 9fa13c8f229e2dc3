// What a plan assumes of the devices it knows by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtopp {

// Peaks that vendors name.
struct DeviceRates {
  double bf16_flops = 0, fp32_flops = 0;  // a second, of matrix products
  double memory = 0;                      // bytes a second
  double inside = 0;                      // bytes a second that it sends to devices of its node (NVLink)
  double between = 0;                     // and to other nodes (InfiniBand, an adapter a device)
};

// Of those peaks, and of the passes that hide what travels.
struct AssumedShares {
  static constexpr double kCompute = 0.45;  // of the FLOP/s, with all that is between matrix products
  static constexpr double kMemory = 0.8;
  static constexpr double kInside = 0.67;
  static constexpr double kBetween = 0.9;
  static constexpr double kHiding = 0.9;  // of the seconds of a pass
};

struct PlanDevice {
  std::string name{};
  uint64_t memory_bytes = 0;                        // what its driver leaves for data
  std::optional<DeviceRates> rates = std::nullopt;  // of a CPU none are known
};

// cpu (what this process can still take), a100 or h100 (80 GB), h200. UsageError for another name.
PlanDevice find_device(const std::string& name);

// FLOP/s of dense matrix products in bf16, else in fp32, that the data sheet of a device names; by the name
// that its driver gives it ("NVIDIA H100 80GB HBM3"). nullopt for one that is not known.
std::optional<double> data_sheet_rate(std::string_view device_name, bool bf16);

}  // namespace dtopp
