#include "dtopp/device/known_devices.h"

#include <array>

#include "dtopp/base/errors.h"
#include "dtopp/config/config_tree.h"
#include "dtopp/device/available_memory.h"

namespace dtopp::device {
namespace {

// Data-sheet FLOP/s of dense matrix multiplication.
struct MatrixRates {
  double bf16, fp32;
};
constexpr MatrixRates kA100{312e12, 19.5e12}, kHopper{989e12, 67e12};  // SXM modules

struct KnownDevice {
  const char* name;
  uint64_t gibibytes;
  DeviceRates rates;
};

// SXM modules; NVLink in one direction; InfiniBand at 200 and 400 Gbit/s.
constexpr std::array<KnownDevice, 3> kKnownDevices = {{
    {"a100", 79, {kA100.bf16, kA100.fp32, 2.0e12, 300e9, 25e9}},
    {"h100", 79, {kHopper.bf16, kHopper.fp32, 3.35e12, 450e9, 50e9}},
    {"h200", 139, {kHopper.bf16, kHopper.fp32, 4.8e12, 450e9, 50e9}},
}};

struct DataSheet {
  std::string_view name;  // part of the driver's device name; the first match counts
  MatrixRates rates;
};

constexpr std::array<DataSheet, 8> kDataSheets = {{
    {"H200 NVL", {835.5e12, 60e12}},
    {"H200", kHopper},
    {"H100 NVL", {835.5e12, 60e12}},
    {"H100 PCIe", {756e12, 51e12}},
    {"H100", kHopper},
    {"GB200", {2500e12, 80e12}},
    {"B200", {2250e12, 75e12}},
    {"A100", kA100},
}};

}  // namespace

std::optional<double> data_sheet_rate(std::string_view device_name, bool bf16) {
  for (const DataSheet& sheet : kDataSheets) {
    if (device_name.find(sheet.name) != std::string_view::npos)
      return bf16 ? sheet.rates.bf16 : sheet.rates.fp32;
  }
  return std::nullopt;
}

PlanDevice find_device(const std::string& name) {
  if (name == "cpu") return {name, available_memory()};
  for (const KnownDevice& known : kKnownDevices) {
    if (name == known.name) return {name, known.gibibytes << 30U, known.rates};
  }
  throw UsageError("--device: expected one of cpu, a100, h100, h200, got " + config::quote_for_message(name));
}

}  // namespace dtopp::device
