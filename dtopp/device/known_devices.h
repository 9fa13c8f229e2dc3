// Defines what a plan assumes about the devices that it knows by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtopp/ops/core/torch.h"

namespace dtopp::device {
// Peak rates that vendors state.
struct DeviceRates {
  double bf16_flops = 0, fp32_flops = 0;  // matrix multiplication, per second
  double memory = 0;                      // bytes per second
  double inside = 0;                      // bytes per second sent to devices of the same node (NVLink)
  // Bytes per second sent to other nodes (InfiniBand, one adapter per device).
  double between = 0;
};

// The assumed shares of those peaks, and of a pass that can hide communication.
struct AssumedShares {
  // Share of the FLOP/s, including everything between matrix multiplications.
  static constexpr double kCompute = 0.45;
  static constexpr double kMemory = 0.8;
  static constexpr double kInside = 0.67;
  static constexpr double kBetween = 0.9;
  static constexpr double kHiding = 0.9;  // of the seconds of a pass
};

struct PlanDevice {
  std::string name{};
  uint64_t memory_bytes = 0;                        // memory that the driver leaves for data
  std::optional<DeviceRates> rates = std::nullopt;  // unknown for a CPU
};

// Finds cpu (the memory that this process can still allocate), a100 or h100 (80 GB), or h200. Throws
// UsageError for another name.
PlanDevice find_device(const std::string& name);

// Data-sheet FLOP/s of dense matrix multiplication in bf16, else in fp32, for a driver's device name ("NVIDIA
// H100 80GB HBM3"). nullopt for an unknown device.
std::optional<double> data_sheet_rate(std::string_view device_name, bool bf16);

// Measures the machine's matrix rate, from which studies forecast their hours, and a CPU's memory rate.

// Returns the FLOP/s of at::mm in the given type on the given device, with the current number of threads.
//
// It takes at most a quarter of a second and multiplies 4096 x 768 x 768, or larger matrices if the device
// needs them to be busy. bf16 on a device without bf16 instructions is measured in fp32, in which that device
// computes it.
double measure_matrix_rate(const at::TensorOptions& compute);

// Returns the bytes per second that a CPU reads and writes while it copies 128 MiB, with the current number
// of threads. It takes at most a quarter of a second.
double measure_memory_rate();

}  // namespace dtopp::device
