#include "dtopp/plan/devices.h"

#include <array>

#include "dtopp/base/available_memory.h"
#include "dtopp/base/errors.h"
#include "dtopp/config/config_tree.h"

namespace dtopp {
namespace {

struct KnownDevice {
  const char* name;
  uint64_t gibibytes;
  DeviceRates rates;
};

// SXM modules; FLOP/s without sparsity; of NVLink one direction; 200 and 400 Gbit/s of InfiniBand.
constexpr std::array<KnownDevice, 3> kKnownDevices = {{
    {"a100", 79, {312e12, 19.5e12, 2.0e12, 300e9, 25e9}},
    {"h100", 79, {989e12, 67e12, 3.35e12, 450e9, 50e9}},
    {"h200", 139, {989e12, 67e12, 4.8e12, 450e9, 50e9}},
}};

struct DataSheet {
  std::string_view name;  // part of the driver's; the first that is
  double bf16_flops, fp32_flops;
};

constexpr std::array<DataSheet, 8> kDataSheets = {{
    {"H200 NVL", 835.5e12, 60e12},
    {"H200", 989e12, 67e12},
    {"H100 NVL", 835.5e12, 60e12},
    {"H100 PCIe", 756e12, 51e12},
    {"H100", 989e12, 67e12},
    {"GB200", 2500e12, 80e12},
    {"B200", 2250e12, 75e12},
    {"A100", 312e12, 19.5e12},
}};

}  // namespace

std::optional<double> data_sheet_rate(std::string_view device_name, bool bf16) {
  for (const DataSheet& sheet : kDataSheets) {
    if (device_name.find(sheet.name) != std::string_view::npos)
      return bf16 ? sheet.bf16_flops : sheet.fp32_flops;
  }
  return std::nullopt;
}

PlanDevice find_device(const std::string& name) {
  if (name == "cpu") return {name, available_memory()};
  for (const KnownDevice& known : kKnownDevices) {
    if (name == known.name) return {name, known.gibibytes << 30U, known.rates};
  }
  throw UsageError("--device: expected one of cpu, a100, h100, h200, got " + quote_for_message(name));
}

}  // namespace dtopp
